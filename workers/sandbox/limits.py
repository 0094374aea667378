"""Resource limits of programs, and the sandbox layers that are required.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.schema import Sandbox as SandboxKnobs
from workers.sandbox.inside.modules import SCRIPT

LAYERS = ("landlock", "seccomp", "userns", "pidns", "netns", "ipcns", "mountns", "utsns")
"""Layers that a kernel may refuse. Fresh processes, closed descriptors, rlimits and CPU/wall clocks always work."""
OK = "ok"


@dataclass(frozen=True)
class Budget:
    """Resources of one job. Seconds are per call, or for the whole script."""

    cpu_s: float
    wall_s: float
    memory_mb: int = 0
    """Address space in MiB, at most the zygote's own limit; 0 means that limit."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program, and the policy for missing layers."""

    cpu_s: float = 2.0
    """CPU seconds per call. This decides whether a program is too slow."""
    wall_s: float = 10.0
    """Wall seconds per call: a safety net for programs that sleep."""
    memory_mb: int = 512
    """Address space in MiB."""
    modules: tuple[str, ...] = ()
    """Modules that programs may import in addition to `PURE` of `inside/modules.py`."""
    scripts: bool = False
    """True: scripts (whole programs) may run too. All programs may then import `SCRIPT` of `inside/modules.py`."""
    deny_clock: bool = False
    """True: clock system calls fail, and reading the processor's time-stamp counter kills a program. Needs x86_64."""
    require: tuple[str, ...] = ("landlock", "seccomp")
    """Layers that must hold, or no program runs."""
    allow_weak: bool = False
    """True: run programs even if a required layer is missing."""
    without: tuple[str, ...] = ()
    """Layers to disable on purpose, for tests that show what each one stops."""

    def __post_init__(self) -> None:
        if unknown := sorted({*self.require, *self.without} - {*LAYERS}):
            raise ValueError(f"unknown sandbox layer {unknown[0]!r}; known: {', '.join(LAYERS)}")
        if min(self.cpu_s, self.wall_s, self.memory_mb) <= 0:
            raise ValueError("cpu_s, wall_s and memory_mb must be above 0")

    @property
    def importable(self) -> tuple[str, ...]:
        """Modules that programs may import in addition to the pure ones."""
        return (*SCRIPT, *self.modules) if self.scripts else self.modules

    @property
    def budget(self) -> Budget:
        """The default budget of a job."""
        return Budget(self.cpu_s, self.wall_s)


def refusal(limits: Limits, layers: Mapping[str, str]) -> str | None:
    """Why programs may not run with these layers (name -> "ok" or the failure), or None.

    Every required layer must hold, and at least one of Landlock and seccomp must hold even if neither is required.
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
