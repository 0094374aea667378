"""Loads a launcher by its name in a profile: a built-in one, or a third-party class as MODULE:CLASS."""

from __future__ import annotations

from importlib import import_module

from orchestrator.launchers.launcher import Launcher
from profiles.errors import ExitCode, LonghaulError
from profiles.launchers import LAUNCHERS
from profiles.schema import Profile


def launcher_named(name: str, profile: Profile) -> Launcher:
    """Create a launcher for runs of `profile`. Raises LonghaulError (INPUT) if its class cannot be used."""
    module, _, class_name = LAUNCHERS.get(name, name).partition(":")
    try:
        launcher = getattr(import_module(module), class_name)(profile)
    except Exception as error:  # a third-party module may raise anything
        raise _unusable(name, f"cannot be loaded: {error!r}") from error
    if not isinstance(launcher, Launcher):
        missing = [method for method in _METHODS if not hasattr(launcher, method)]
        raise _unusable(name, f"has no {', '.join(missing)}")
    return launcher


_METHODS = ("start", "poll", "signal", "wait", "adopt")


def _unusable(name: str, why: str) -> LonghaulError:
    return LonghaulError(
        f"launch.launcher = {name!r} {why}",
        kept="the run as it is; nothing was started",
        next_command="the same command with the launcher's folder in PYTHONPATH, or with --set launch.launcher=local",
        exit_code=ExitCode.INPUT,
    )
