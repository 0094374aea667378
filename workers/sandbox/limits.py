"""What a program may use, and which layers must hold it."""

from __future__ import annotations

from dataclasses import dataclass

LAYERS = ("landlock", "seccomp", "userns", "pidns", "netns", "ipcns", "mountns", "utsns")
"""Layers that a kernel may refuse. Fresh process, closed descriptors, rlimits and the wall clock are never missing."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program, and the policy about missing layers."""

    cpu_s: float = 2.0
    """CPU seconds of one call: what decides that a program takes too long."""
    wall_s: float = 10.0
    """Wall seconds of one call: the safety net, for programs that sleep."""
    memory_mb: int = 512
    """Address space in MiB."""
    modules: tuple[str, ...] = ()
    """Modules that programs may import beyond the pure ones of `inside/modules.py`."""
    require: tuple[str, ...] = ("landlock", "seccomp")
    """Layers without which programs do not run."""
    allow_weak: bool = False
    """True: run programs although a required layer is missing."""
    without: tuple[str, ...] = ()
    """Layers to leave out on purpose: for tests that show what each is for."""
