"""Which doors are closed and in what order: once in the zygote, once more in each child.

Every step is tried; what the kernel refuses is reported with its reason, never passed over.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
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
MAX_FILES = 8
"""Descriptors of the zygote: null three times, jobs, replies, both ends of a result pipe."""
LAYERS = ("landlock", "seccomp", "userns", *NAMESPACES)


@dataclass
class Seal:
    """The state of sealing: what holds, and what each child must still do."""

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
        """Take the step unless the layer is left out; note how it went."""
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
    """Close what can be closed before any program is there. May return in another process: the new pid 1."""
    is_root = os.geteuid() == 0
    may_drop = is_root and _trial(kernel.become_nobody) is None
    before: tuple[Callable[[], None], ...] = (kernel.become_nobody,) if may_drop else ()
    refused = LEFT_OUT if "userns" in seal.without else _trial(*before, _new_user_namespace)
    if refused is None:
        # Root becomes nobody first, and then it is the same story for everybody.
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
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # last, because a change of ids clears it
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
    """Why a process like this one cannot take the steps, or None: a child tries them."""
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
    """Each kind alone, so that a kernel which lacks one still gives the others."""
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
    """Go on in the first process of the new pid namespace; the present one only waits for it.

    When pid 1 dies the kernel kills whatever else is in its namespace: no stray survives the zygote.
    """
    pid = os.fork()
    if pid:
        os.closerange(0, 1 << 16)
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _prepare_filter(seal: Seal) -> None:
    """Build the filter and try it in a child: a filter that kills honest programs must not count as a layer."""
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
        # A domain of its own keeps a child from signalling its zygote. Pid 1 needs no such protection, and before
        # version 6 there was none.
        os.close(seal.landlock_fd)
        seal.landlock_fd = -1


def seal_child(seal: Seal, pipe: int, result_fd: int, cpu_s: int) -> None:
    """Close the rest, in the child, just before the program: descriptors, limits, domain, system calls."""
    if seal.landlock_fd >= 0:
        kernel.landlock_restrict(seal.landlock_fd)
    os.dup2(pipe, result_fd)
    os.closerange(result_fd + 1, 1 << 16)
    if not seal.holds("pidns"):
        os.setsid()
    # The soft limit ends by a signal that says why; the hard one is for programs that ignore it.
    kernel.set_limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)
    kernel.set_limit(resource.RLIMIT_NPROC, 0, 0)
    if seal.deny_clock:
        kernel.prctl(kernel.PR_SET_TSC, kernel.PR_TSC_SIGSEGV)
    if seal.filter is not None:
        seal.filter.install()
