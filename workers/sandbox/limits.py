"""What a program may use, and which layers must hold it.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.schema import Sandbox as SandboxKnobs

LAYERS = ("landlock", "seccomp", "userns", "pidns", "netns", "ipcns", "mountns", "utsns")
"""Layers that a kernel may refuse. Fresh process, closed descriptors, rlimits and clocks are never missing."""
OK = "ok"


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
    deny_clock: bool = False
    """True: a program that reads the processor's clock dies. Needs x86_64."""
    require: tuple[str, ...] = ("landlock", "seccomp")
    """Layers without which programs do not run."""
    allow_weak: bool = False
    """True: run programs although a required layer is missing."""
    without: tuple[str, ...] = ()
    """Layers to leave out on purpose: for tests that show what each is for."""

    def __post_init__(self) -> None:
        if unknown := sorted({*self.require, *self.without} - {*LAYERS}):
            raise ValueError(f"unknown sandbox layer {unknown[0]!r}; known: {', '.join(LAYERS)}")
        if min(self.cpu_s, self.wall_s, self.memory_mb) <= 0:
            raise ValueError("cpu_s, wall_s and memory_mb must be above 0")


def refusal(limits: Limits, layers: Mapping[str, str]) -> str | None:
    """Why programs may not run with these layers (name -> "ok" or what is wrong), or None.

    Each required layer must hold, and of Landlock and seccomp at least one, required or not.
    """
    if limits.allow_weak:
        return None
    missing = [name for name in limits.require if layers.get(name) != OK]
    if not missing and all(layers.get(name) != OK for name in ("landlock", "seccomp")):
        missing = ["landlock", "seccomp"]
    if not missing:
        return None
    reasons = "; ".join(f"{name}: {layers.get(name, 'never tried')}" for name in missing)
    return f"the sandbox lacks {' and '.join(missing)} ({reasons})"


def limits_of(knobs: SandboxKnobs) -> Limits:
    return Limits(
        cpu_s=knobs.cpu_s,
        wall_s=knobs.wall_s,
        memory_mb=knobs.memory_mb,
        modules=knobs.modules,
        require=knobs.require,
        allow_weak=knobs.allow_weak,
    )
