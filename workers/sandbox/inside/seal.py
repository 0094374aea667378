"""Applies the sandbox layers in order: first in the zygote, then the rest in each child.

Every layer is attempted; a failure is recorded with its reason, never ignored.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import kernel, seccomp

OK = "ok"
LEFT_OUT = "left out on request"
NAMESPACES = {
    "pidns": kernel.CLONE_NEWPID,
    "netns": kernel.CLONE_NEWNET,
    "ipcns": kernel.CLONE_NEWIPC,
    "mountns": kernel.CLONE_NEWNS,
    "utsns": kernel.CLONE_NEWUTS,
}
STACK_BYTES = 8 << 20
MAX_FILES = 12
"""Limit on descriptors, enough for the zygote: three of /dev/null, jobs, replies, both ends of three pipes."""
LAYERS = ("landlock", "seccomp", "userns", *NAMESPACES)


@dataclass
class Seal:
    """State of the seal: which layers hold, and what each child must still apply."""

    without: tuple[str, ...]
    memory_bytes: int
    deny_clock: bool
    layers: dict[str, str] = field(default_factory=dict)
    """Layer -> "ok", or why it is missing."""
    landlock_fd: int = -1
    filter: kernel.Filter | None = None

    def holds(self, layer: str) -> bool:
        return self.layers.get(layer) == OK

    def attempt(self, layer: str, step: Callable[[], Any]) -> bool:
        """Apply a layer unless it is left out; record the outcome and return whether it holds."""
        if layer in self.without:
            self.layers[layer] = LEFT_OUT
            return False
        try:
            step()
        except (OSError, StopIteration, KeyError) as error:
            self.layers[layer] = str(error) or type(error).__name__
            return False
        self.layers[layer] = OK
        return True


def seal_zygote(seal: Seal) -> None:
    """Apply all layers that do not depend on a program. May return in another process: the new pid 1."""
    is_root = os.geteuid() == 0
    may_drop = is_root and _trial(kernel.become_nobody) is None
    before: tuple[Callable[[], None], ...] = (kernel.become_nobody,) if may_drop else ()
    refused = LEFT_OUT if "userns" in seal.without else _trial(*before, _new_user_namespace)
    if refused is None:
        # Root becomes nobody first; from here on all users follow the same path.
        for step in before:
            step()
        seal.attempt("userns", _new_user_namespace)
    else:
        seal.layers["userns"] = refused
    _enter_namespaces(seal, allowed=refused is None or (is_root and "userns" not in seal.without))
    if may_drop and refused is not None:
        kernel.become_nobody()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    if seal.holds("pidns"):
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # after all id changes, which clear it
    seal.attempt("seccomp", lambda: _prepare_filter(seal))
    seal.attempt("landlock", lambda: _landlock(seal))
    for limit, value in (
        (resource.RLIMIT_AS, seal.memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, STACK_BYTES),
        (resource.RLIMIT_NOFILE, MAX_FILES),
    ):
        resource.setrlimit(limit, (value, value))


def _trial(*steps: Callable[[], None]) -> str | None:
    """Try the steps in a forked child; returns why they fail, or None."""
    reason_r, reason_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for step in steps:
                step()
            code = 0
        except OSError as error:
            os.write(reason_w, str(error).encode()[:1000])
        finally:
            os._exit(code)
    os.close(reason_w)
    reason = os.read(reason_r, 1000).decode(errors="replace")
    os.close(reason_r)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None if code == 0 else reason or f"the trial ended with code {code}"


def _new_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    kernel.map_own_ids(uid, gid)


def _enter_namespaces(seal: Seal, *, allowed: bool) -> None:
    """Enter each namespace separately, so that a missing kind does not cost the others."""
    for name, flag in NAMESPACES.items():
        if not allowed and name not in seal.without:
            seal.layers[name] = "needs a user namespace, or root"
            continue
        seal.attempt(name, lambda flag=flag: kernel.unshare(flag))  # type: ignore[misc]
    if seal.holds("pidns"):
        _become_pid_one()
    if seal.holds("mountns"):
        seal.attempt("mountns", kernel.empty_root)
    if seal.holds("utsns"):
        seal.attempt("utsns", lambda: kernel.set_host_name(b"sandbox"))


def _become_pid_one() -> None:
    """Continue in a child, pid 1 of the new pid namespace; the current process only waits for it.

    When pid 1 dies, the kernel kills everything in its namespace, so no process outlives the zygote.
    """
    pid = os.fork()
    if pid:
        os.closerange(0, 1 << 16)
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _prepare_filter(seal: Seal) -> None:
    """Build the filter and test it in a child: a filter that fails or kills must not count as a layer."""
    if not seccomp.supported(machine := os.uname().machine):
        raise OSError(f"no filter for {machine}")
    seal.filter = kernel.Filter(seccomp.assemble(allow_clock=not seal.deny_clock))
    if reason := _trial(seal.filter.install):
        seal.filter = None
        raise OSError(reason)


def _landlock(seal: Seal) -> None:
    abi = kernel.landlock_abi()
    seal.landlock_fd = kernel.landlock_ruleset(abi)
    kernel.landlock_restrict(seal.landlock_fd)
    if abi < 6 or seal.holds("pidns"):
        # A Landlock domain per child keeps the child from signalling its zygote. Pid 1 does not need that protection,
        # and ABI versions before 6 do not offer it.
        os.close(seal.landlock_fd)
        seal.landlock_fd = -1


def seal_child(seal: Seal, pipes: Sequence[tuple[int, int]], cpu_s: int, memory_bytes: int) -> None:
    """Apply the remaining layers in the child, just before the program: Landlock domain, descriptors, limits, seccomp.

    pipes: (descriptor, number to move it to), greatest number last; all descriptors above that are closed.
    memory_bytes: limit of the address space; 0 keeps the zygote's limit.
    """
    if seal.landlock_fd >= 0:
        kernel.landlock_restrict(seal.landlock_fd)
    for pipe, number in pipes:
        os.dup2(pipe, number)
    os.closerange(number + 1, 1 << 16)
    if not seal.holds("pidns"):
        os.setsid()
    # The soft limit sends SIGXCPU, which identifies the cause; the hard limit is for programs that ignore it.
    kernel.set_limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)
    kernel.set_limit(resource.RLIMIT_NPROC, 0, 0)
    if memory_bytes:
        kernel.set_limit(resource.RLIMIT_AS, memory_bytes, memory_bytes)
    if seal.deny_clock:
        kernel.prctl(kernel.PR_SET_TSC, kernel.PR_TSC_SIGSEGV)
    if seal.filter is not None:
        seal.filter.install()
