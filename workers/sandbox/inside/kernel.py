"""The kernel's doors, one function each, by ctypes: each does its step or raises OSError.

Numbers are Linux ABI. Those of x86_64 and aarch64 agree where only one is given.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# For the calls of each job. They answer -1 where Python's own would raise, fill what is already there, and look neither
# after errno nor after the interpreter's lock: half as many pages are touched.
_quick = ctypes.PyDLL(None)
_wait4, _setrlimit, _prctl = _quick.wait4, _quick.setrlimit, _quick.prctl
_STATUS, _USAGE, _LIMIT = ctypes.c_int(), (ctypes.c_long * 18)(), (ctypes.c_ulong * 2)()
_STATUS_REF, _USAGE_REF, _LIMIT_REF = ctypes.byref(_STATUS), ctypes.byref(_USAGE), ctypes.byref(_LIMIT)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_TSC = 1, 4, 22, 26
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
PR_TSC_SIGSEGV, SECCOMP_MODE_FILTER = 2, 2

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 0x4_0000
MNT_DETACH = 2

LANDLOCK_CREATE, LANDLOCK_RESTRICT = 444, 446
LANDLOCK_VERSION = 1
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION_3 = 0x2008_0522

UNPRIVILEGED = 65_534
"""User and group that root becomes: `nobody`, who owns nothing."""


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *arguments: object) -> int:
    return _check(int(_libc.syscall(ctypes.c_long(number), *arguments)), what)


def prctl(option: int, value: int = 0, extra: object = 0) -> None:
    """prctl(2) with the unused arguments zero, as some options demand."""
    zero = ctypes.c_ulong(0)
    argument = ctypes.c_ulong(extra) if isinstance(extra, int) else extra
    _check(_libc.prctl(option, ctypes.c_ulong(value), argument, zero, zero), f"prctl {option}")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _check(_libc.unshare(flags), "unshare")


def map_own_ids(uid: int, gid: int) -> None:
    """Give the new user namespace one user and one group: ours."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def become_nobody() -> None:
    """Stop being root."""
    os.setgroups([])
    os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    # Changing ids makes /proc/self root's; the id maps of a user namespace must still be written.
    prctl(PR_SET_DUMPABLE, 1)


def drop_capabilities() -> None:
    """Give up what a new user namespace, or root, has."""
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    number = CAPSET[os.uname().machine]
    _syscall("capset", number, ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))


def empty_root() -> None:
    """Make an empty read-only file system the root of this mount namespace; the old tree is gone from it."""
    place = next(path for path in (b"/tmp", b"/dev", b"/proc", b"/sys") if os.path.isdir(path))  # noqa: PTH112  bytes
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount = _libc.mount
    _check(mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "mount private")
    _check(mount(b"none", place, b"tmpfs", ctypes.c_ulong(flags), b"size=4k,mode=555"), "mount tmpfs")
    os.chdir(place)
    _syscall("pivot_root", PIVOT_ROOT[os.uname().machine], ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    # New and old root are stacked at "." now, the old one on top.
    _check(_libc.umount2(b".", MNT_DETACH), "umount old root")
    os.chdir("/")


def set_host_name(name: bytes) -> None:
    """Name the machine, in this namespace."""
    _check(_libc.sethostname(name, ctypes.c_size_t(len(name))), "sethostname")


def landlock_abi() -> int:
    """Version of Landlock that the kernel offers. Raises OSError where it offers none."""
    return _syscall("landlock", LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(LANDLOCK_VERSION))


def landlock_ruleset(abi: int) -> int:
    """A descriptor of a rule set that handles every right of this version and grants none."""
    file_bits = 13 + (abi >= 2) + (abi >= 3) + (abi >= 5)
    attributes = struct.pack("=QQQ", (1 << file_bits) - 1, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    return _syscall(
        "landlock_create_ruleset",
        LANDLOCK_CREATE,
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(size),
        ctypes.c_uint32(0),
    )


def landlock_restrict(ruleset: int) -> None:
    """Put this process under the rule set; children inherit it. Needs NO_NEW_PRIVS."""
    _syscall("landlock_restrict_self", LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))


class Filter:
    """A seccomp filter in the form that the kernel takes, kept alive by this object."""

    def __init__(self, code: bytes) -> None:
        self._code = ctypes.create_string_buffer(code, len(code))
        address = ctypes.addressof(self._code)
        self._program = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(code) // 8, address))
        self._program_ref = ctypes.byref(self._program)

    def install(self) -> None:
        """Filter this process's system calls from now on. Needs NO_NEW_PRIVS."""
        if _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self._program_ref, 0, 0):
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self._program_ref)  # refused again, with its reason


def end(pid: int, *, alone: bool, filtered: bool) -> tuple[int, float]:
    """End a child and what it may have left, and reap them; wait status and CPU seconds of the child.

    alone: as pid 1 of a namespace we can name everything but ourselves. filtered: it could not make processes.
    """
    try:
        os.kill(-1 if alone else pid, signal.SIGKILL)  # the child is there, be it dead: nobody has waited for it
        if not alone and not filtered:
            os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    if _wait4(pid, _STATUS_REF, 0, _USAGE_REF) != pid:
        raise OSError(f"child {pid} cannot be waited for")
    status, spent = _STATUS.value, _USAGE[0] + _USAGE[2] + (_USAGE[1] + _USAGE[3]) / 1e6
    while _wait4(-1, None, 0 if alone else os.WNOHANG, None) > 0:
        pass
    return status, spent


def set_limit(resource: int, soft: int, hard: int) -> None:
    """setrlimit(2)."""
    _LIMIT[0], _LIMIT[1] = soft, hard
    if _setrlimit(resource, _LIMIT_REF):
        raise OSError(f"limit {resource} cannot be set")
