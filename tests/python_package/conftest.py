"""Runs of the fake trainer, which end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import longhaul
from tests.faults.harness import KNOBS

Start = Callable[..., longhaul.Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(name, **settings): a run in tmp_path. A dot of a knob's name is `__`."""
    begun: list[longhaul.Run] = []

    def begin(name: str = "night", **settings: Any) -> longhaul.Run:
        wanted = KNOBS | {knob.replace("__", "."): value for knob, value in settings.items()}
        begun.append(longhaul.start("fake", name=name, folder=tmp_path, settings=wanted))
        return begun[-1]

    yield begin
    for run in begun:
        if (pid := run.status().master_pid) is not None:
            with suppress(psutil.Error):
                psutil.Process(pid).kill()
                psutil.Process(pid).wait(60)


@pytest.fixture
def endless(start: Start) -> longhaul.Run:
    return start(run__max_cycles=100_000, fake__step_s=0.01)
