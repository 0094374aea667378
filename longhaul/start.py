"""Starts a master, by the command line that a person would type, and waits until it drives its run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longhaul.process import Process, commands_among
from longhaul.run import Run

START_S = 300.0
LOOK_S = 0.05


def start(
    profile: str | Path = "pocket",
    *,
    name: str | None = None,
    folder: str | Path = "runs",
    settings: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    timeout_s: float = START_S,
) -> Run:
    """Start a run, or resume it if it exists, and return once its master drives it, or has ended.

    profile: the name of a shipped profile, or the path of a TOML file. name: of the run; None: the profile's. settings:
    knob -> value, as in {"run.seed": 7}. arguments: further words of `python -m orchestrator run`.

    The master is a process in a session of its own: the run goes on when Python ends. Raises LonghaulError: INPUT with
    every problem of the profile, LOCKED if the run is driven already, and what else the command reports; TimeoutError.
    """
    from profiles.load import load_profile

    overrides = overrides_of(settings or {})
    with commands_among(Path(folder)):
        name = name or load_profile(str(profile), overrides).profile.name
    words = ["--profile", str(profile), *(word for one in overrides for word in ("--set", one)), *arguments]
    return _started(name, Path(folder), words, timeout_s)


def resume(
    name: str,
    *,
    folder: str | Path = "runs",
    settings: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
    timeout_s: float = START_S,
) -> Run:
    """Resume an existing run with its stored profile, changed by `settings`. Returns and raises as `start` does."""
    from longhaul.run import open_run

    open_run(name, folder)
    words = [word for one in overrides_of(settings or {}) for word in ("--set", one)]
    return _started(name, Path(folder), [*words, *arguments], timeout_s)


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """`--set` arguments: `run.seed=7`. (pure)"""
    from profiles.toml_value import toml_value

    return [f"{knob}={toml_value(value)}" for knob, value in settings.items()]


def _started(name: str, folder: Path, words: Sequence[str], timeout_s: float) -> Run:
    from orchestrator.alive import lock_text
    from orchestrator.cli import refuse_name
    from orchestrator.control import is_listening
    from state.layout import RunDir
    from state.reader import is_born

    refuse_name(name)
    directory = RunDir(folder / name)
    command = [sys.executable, "-m", "orchestrator", "run", "--runs", str(folder), "--run", name, "--plain", *words]
    process = Process(command)
    deadline = time.monotonic() + timeout_s
    while process.is_alive():
        if lock_text(directory).get("pid") == process.pid and is_born(directory) and is_listening(directory):
            return Run(directory, process)
        if time.monotonic() >= deadline:
            raise TimeoutError(f"run '{name}' has not begun after {timeout_s:g} s; its master is process {process.pid}")
        time.sleep(LOOK_S)
    process.raise_if_failed(directory)
    return Run(directory, process)
