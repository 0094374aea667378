"""Schedules of a whole run under a simulated clock, disk, processes and sockets: faults at any tick, by seed."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.faults.harness import faults
from tests.faults.simulation.schedule import Schedule, profile_of_all

PART = 2500
"""Schedules of one part; 40 parts are 100,000."""


def played(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.faults.simulation", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


def check_schedules(first: int, last: int) -> None:
    done = played(str(first), str(last))
    assert done.returncode == 0, done.stdout + done.stderr
    faults.extend(["schedule"] * (last - first))


@pytest.mark.slow
def test_the_first_schedules_find_no_defect() -> None:
    check_schedules(0, 150)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(40))
def test_no_schedule_finds_a_defect(part: int) -> None:
    check_schedules(part * PART, (part + 1) * PART)


@pytest.mark.slow
def test_a_schedule_happens_again_as_it_did() -> None:
    told = [played("17").stdout for _ in range(2)]
    stories = [
        re.sub(r"/\S*longhaul\S*|/dev/shm/\S*|/tmp/\S*|[\d,]+ a minute|\d\d:\d\d:\d\d", "", text) for text in told
    ]
    assert stories[0] == stories[1] and "tick" in stories[0]


def test_threads_outside_the_simulation_do_not_disturb_a_schedule(tmp_path: Path) -> None:
    """The runner of the tests has some, and they write and sleep too."""
    is_over = threading.Event()

    def write() -> None:
        with (tmp_path / "other").open("wb") as file:
            while not is_over.is_set():
                os.write(file.fileno(), b"x")
                time.sleep(0.001)

    thread = threading.Thread(target=write)
    thread.start()
    logging.disable(logging.CRITICAL)
    try:
        assert Schedule(-1, tmp_path / "run", profile_of_all()).play()
    finally:
        logging.disable(logging.NOTSET)
        is_over.set()
        thread.join()
