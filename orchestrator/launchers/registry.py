"""A launcher by its name in a profile: one of ours, or a class of somebody else's as MODULE:CLASS."""

from __future__ import annotations

from importlib import import_module

from orchestrator.launchers.launcher import Launcher
from profiles.errors import ExitCode, LonghaulError
from profiles.launchers import LAUNCHERS


def launcher_named(name: str) -> Launcher:
    """A new launcher. Raises LonghaulError(INPUT) where the class cannot be loaded, or lacks a method."""
    module, _, class_name = LAUNCHERS.get(name, name).partition(":")
    try:
        launcher = getattr(import_module(module), class_name)()
    except Exception as error:  # whatever somebody else's module raises
        raise _unusable(name, f"cannot be loaded: {error!r}") from error
    if not isinstance(launcher, Launcher):
        missing = [method for method in _METHODS if not hasattr(launcher, method)]
        raise _unusable(name, f"has no {', '.join(missing)}")
    return launcher


_METHODS = ("start", "poll", "signal", "wait", "adopt")


def _unusable(name: str, why: str) -> LonghaulError:
    return LonghaulError(
        f"run.launcher = {name!r} {why}",
        kept="the run as it is; nothing was started",
        next_command="the same command with the launcher's folder in PYTHONPATH, or with --set run.launcher=local",
        exit_code=ExitCode.INPUT,
    )
