"""The allow-list of system calls, assembled to classic BPF.

Pure. It allows what a computing Python process needs: memory, reading and writing pipes, its own signals, exit. Calls
that only an attack would make kill the process; all others fail with EPERM, which Python raises as an exception.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

AUDIT_ARCH_X86_64 = 0xC000_003E
X32_BIT = 0x4000_0000
RET_KILL, RET_ERRNO, RET_ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000
EPERM = 1
PROT_EXEC = 4
OFFSET_NUMBER, OFFSET_ARCH = 0, 4
OFFSET_ARGUMENTS = 16

LOAD, AND, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_BITS, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06

ALLOWED = {
    "read": 0,
    "write": 1,
    "close": 3,
    "fstat": 5,
    "lseek": 8,
    "munmap": 11,
    "brk": 12,
    "rt_sigaction": 13,
    "rt_sigprocmask": 14,
    "rt_sigreturn": 15,
    "mremap": 25,
    "madvise": 28,
    "exit": 60,
    "sigaltstack": 131,
    "exit_group": 231,
    "getrandom": 318,
    "restart_syscall": 219,
}
CLOCKS = {"clock_gettime": 228}
FUTEX = 202
FUTEX_COMMAND = 0x7F
"""Without the flags for private locks and for the clock."""
WAKES = {"wake": 1, "wake_op": 5, "wake_bitset": 10}
"""What may be asked of `futex`. A process of one thread that waits for a lock would wait for ever, using no CPU: the
wall clock would end it, which is no verdict."""
NOT_EXECUTABLE = {"mmap": 9, "mprotect": 10}
"""Allowed unless the third argument requests executable memory."""
ZERO = {"getpid": 39, "getppid": 110, "gettid": 186}
"""These return 0: the true ids differ from run to run."""
KILLED = {
    "clone": 56,
    "fork": 57,
    "vfork": 58,
    "execve": 59,
    "kill": 62,
    "ptrace": 101,
    "prctl": 157,
    "tkill": 200,
    "tgkill": 234,
    "rt_sigqueueinfo": 129,
    "rt_tgsigqueueinfo": 297,
    "pidfd_send_signal": 424,
    "clone3": 435,
    "execveat": 322,
    "bpf": 321,
    "seccomp": 317,
    "userfaultfd": 323,
    "perf_event_open": 298,
    "keyctl": 250,
    "add_key": 248,
    "request_key": 249,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "unshare": 272,
    "setns": 308,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "arch_prctl": 158,
    "modify_ldt": 154,
    "personality": 135,
    "pkey_mprotect": 329,
}


@dataclass(frozen=True)
class _Step:
    """One BPF instruction whose jump targets are labels."""

    code: int
    value: int
    if_true: str = ""
    if_false: str = ""


def supported(machine: str) -> bool:
    """Whether there is a filter for this machine type. System call numbers differ between types."""
    return machine == "x86_64"


def assemble(*, allow_clock: bool = True) -> bytes:
    """Assemble the filter to kernel format, eight bytes per instruction."""
    allowed = {**ALLOWED, **(CLOCKS if allow_clock else {})}
    steps = [
        _Step(LOAD, OFFSET_ARCH),
        _Step(JUMP_EQUAL, AUDIT_ARCH_X86_64, if_false="kill"),
        _Step(LOAD, OFFSET_NUMBER),
        _Step(JUMP_AT_LEAST, X32_BIT, if_true="kill"),
        *(_Step(JUMP_EQUAL, number, if_true="memory") for number in NOT_EXECUTABLE.values()),
        _Step(JUMP_EQUAL, FUTEX, if_true="lock"),
        *(_Step(JUMP_EQUAL, number, if_true="allow") for number in allowed.values()),
        *(_Step(JUMP_EQUAL, number, if_true="zero") for number in ZERO.values()),
        *(_Step(JUMP_EQUAL, number, if_true="kill") for number in KILLED.values()),
    ]
    tail = [
        ("deny", _Step(RETURN, RET_ERRNO | EPERM)),
        ("memory", _Step(LOAD, OFFSET_ARGUMENTS + 2 * 8)),
        ("", _Step(JUMP_BITS, PROT_EXEC, if_true="refuse", if_false="allow")),
        ("refuse", _Step(RETURN, RET_ERRNO | EPERM)),
        ("lock", _Step(LOAD, OFFSET_ARGUMENTS + 8)),
        ("", _Step(AND, FUTEX_COMMAND)),
        *(("", _Step(JUMP_EQUAL, command, if_true="allow")) for command in WAKES.values()),
        ("", _Step(RETURN, RET_KILL)),
        ("allow", _Step(RETURN, RET_ALLOW)),
        ("zero", _Step(RETURN, RET_ERRNO)),
        ("kill", _Step(RETURN, RET_KILL)),
    ]
    labels = {label: len(steps) + place for place, (label, _) in enumerate(tail)}
    whole = [*steps, *(step for _, step in tail)]
    return b"".join(_instruction(step, place, labels) for place, step in enumerate(whole))


def _instruction(step: _Step, place: int, labels: dict[str, int]) -> bytes:
    def distance(label: str) -> int:
        return labels[label] - place - 1 if label else 0

    return struct.pack("=HBBI", step.code, distance(step.if_true), distance(step.if_false), step.value)
