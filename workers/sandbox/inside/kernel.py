"""System calls by ctypes, one function each; every function succeeds or raises OSError.

Numbers are from the Linux ABI. Where only one is given, x86_64 and aarch64 share it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# Faster bindings for the calls made per job. They return -1 instead of raising, reuse preallocated buffers, do not save
# errno and do not release the GIL, which halves the number of pages touched.
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
"""User and group id to switch to from root: `nobody`, who owns nothing."""


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *arguments: object) -> int:
    return _check(int(_libc.syscall(ctypes.c_long(number), *arguments)), what)


def prctl(option: int, value: int = 0, extra: object = 0) -> None:
    """prctl(2) with unused arguments set to zero, as some options require."""
    zero = ctypes.c_ulong(0)
    argument = ctypes.c_ulong(extra) if isinstance(extra, int) else extra
    _check(_libc.prctl(option, ctypes.c_ulong(value), argument, zero, zero), f"prctl {option}")


def unshare(flags: int) -> None:
    """unshare(2): move this process into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def map_own_ids(uid: int, gid: int) -> None:
    """Map only our own user and group into the new user namespace."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def become_nobody() -> None:
    """Switch from root to `nobody`."""
    os.setgroups([])
    os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    # Changing ids gives /proc/self to root, but we must still write the id maps of a user namespace there.
    prctl(PR_SET_DUMPABLE, 1)


def drop_capabilities() -> None:
    """Drop all capabilities, as granted by a new user namespace or held by root."""
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    number = CAPSET[os.uname().machine]
    _syscall("capset", number, ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))


def empty_root() -> None:
    """Make an empty read-only file system the root of this mount namespace and detach the old tree."""
    place = next(path for path in (b"/tmp", b"/dev", b"/proc", b"/sys") if os.path.isdir(path))  # noqa: PTH112  bytes
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount = _libc.mount
    _check(mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "mount private")
    _check(mount(b"none", place, b"tmpfs", ctypes.c_ulong(flags), b"size=4k,mode=555"), "mount tmpfs")
    os.chdir(place)
    _syscall("pivot_root", PIVOT_ROOT[os.uname().machine], ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    # The new and the old root are now stacked at ".", the old one on top.
    _check(_libc.umount2(b".", MNT_DETACH), "umount old root")
    os.chdir("/")


def set_host_name(name: bytes) -> None:
    """Set the host name in this UTS namespace."""
    _check(_libc.sethostname(name, ctypes.c_size_t(len(name))), "sethostname")


def landlock_abi() -> int:
    """Landlock ABI version of the kernel. Raises OSError if Landlock is unavailable."""
    return _syscall("landlock", LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(LANDLOCK_VERSION))


def landlock_ruleset(abi: int) -> int:
    """Descriptor of a rule set that handles every access right of this ABI version and grants none."""
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
    """Restrict this process and its children by the rule set. Needs NO_NEW_PRIVS."""
    _syscall("landlock_restrict_self", LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))


class Filter:
    """A seccomp filter in kernel format; owns the filter's memory."""

    def __init__(self, code: bytes) -> None:
        self._code = ctypes.create_string_buffer(code, len(code))
        address = ctypes.addressof(self._code)
        self._program = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(code) // 8, address))
        self._program_ref = ctypes.byref(self._program)

    def install(self) -> None:
        """Filter this process's system calls from now on. Needs NO_NEW_PRIVS."""
        if _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self._program_ref, 0, 0):
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self._program_ref)  # fails again, now with errno


def end(pid: int, *, alone: bool, filtered: bool) -> tuple[int, float]:
    """Kill and reap a child and any processes it left; returns the child's wait status and CPU seconds.

    alone: we are pid 1 of a namespace, so `kill(-1)` hits everything but us. filtered: the child could not fork.
    """
    try:
        os.kill(-1 if alone else pid, signal.SIGKILL)  # the pid is still valid, even if dead: it is not reaped yet
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
