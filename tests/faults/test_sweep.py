"""A kill at every named point: after a resume, the run ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from state.crash import POINTS
from tests.faults.conftest import Clean
from tests.faults.harness import KNOBS, Scene, faults, scene
from tests.faults.invariants import check_invariants, check_recovery
from tests.faults.test_recovery import POINTS_OF_RECOVERY

KILLED = -signal.SIGKILL
LOST_AT_MOST = KNOBS["run.checkpoint_every"]
IN_RECOVERY = frozenset(name for name in POINTS if name.startswith("recover."))
"""Hit only where something is to be repaired: test_recovery's, and test_store's."""
TELLING = "recover.told"
IN_EVALUATION = frozenset(name for name in POINTS if name.startswith(("evaluate.", "export.")))
"""No run passes these: tests/orchestrator/test_evaluate.py kills there."""

IN_HASHING = frozenset(name for name in POINTS if name.startswith("hash."))
"""Large checkpoints alone: test_large_checkpoints kills there."""


IN_OVERLAP = frozenset({"ahead.named", "worker.loaded"})
"""With validation.overlap alone: test_validation_overlap kills there."""


BETWEEN = 24
"""More hits of a point that are tried when all cases are."""


PARTS, KILLED_RUNS = 6, 8
LASTS_S = 1.2
"""About as long as a run, from its master's start."""


def in_the_middle(hits: int) -> set[int]:
    return {(hits + 1) // 2}


def first_and_last(hits: int) -> set[int]:
    return {1, hits} - in_the_middle(hits)


def some_between(hits: int) -> set[int]:
    """Up to BETWEEN others, spread evenly."""
    others = sorted(set(range(1, hits + 1)) - in_the_middle(hits) - first_and_last(hits))
    return set(others[:: -(-len(others) // BETWEEN) or 1])


@pytest.mark.parametrize(
    "chosen",
    [in_the_middle, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (first_and_last, some_between))],
    ids=["middle", "ends", "between"],
)
@pytest.mark.parametrize("name", sorted(POINTS - IN_RECOVERY - IN_EVALUATION - IN_HASHING - IN_OVERLAP))
def test_a_kill_at_any_point_changes_nothing_in_the_end(
    name: str, chosen: Callable[[int], set[int]], clean: Clean, tmp_path: Path
) -> None:
    assert clean.hits[name], f"{name} is not reached by a clean run"
    for nth in chosen(clean.hits[name]):
        with scene(tmp_path / f"at-{nth}") as run:
            master = run.start(f"{name}:{nth}")
            code = master.end()
            faults.append(f"{name}:{nth}")
            assert code in (0, KILLED), f"{name}:{nth}\n{master.text()}"
            if code == KILLED:
                check_recovery(run, tmp_path / "copy", LOST_AT_MOST)
                run.finish()
            check_invariants(run, clean.ending)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, PARTS))])
def test_kills_at_any_moment_change_nothing_in_the_end(part: int, clean: Clean, tmp_path: Path) -> None:
    """Moments that have no name: the master or the worker that it started last, up to three times in one run."""
    for number in range(part * KILLED_RUNS, (part + 1) * KILLED_RUNS):
        draw = Random(number)
        with scene(tmp_path / f"run-{number}") as run:
            for kill in range(draw.randint(1, 3)):
                if killed_somewhere(run, draw):
                    faults.append(f"run {number}, kill {kill}")
            run.finish()
            check_invariants(run, clean.ending)


def killed_somewhere(run: Scene, draw: Random) -> bool:
    """Start the run and kill its master, or its newest worker and then its master. False if it ended before that."""
    master, of_worker = run.start(), draw.random() < 1 / 3
    time.sleep(draw.uniform(0, LASTS_S))
    if of_worker and (worker := master.newest_worker()):
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        time.sleep(draw.uniform(0, LASTS_S))
    master.kill()
    run.wait_until_nobody_is_left()
    return master.end() == -signal.SIGKILL


def test_every_point_is_reached(clean: Clean) -> None:
    """By the sweep above, or by the one through recovery, which checks that it reaches all of its points."""
    assert set(clean.hits) | set(POINTS_OF_RECOVERY) | IN_EVALUATION | IN_HASHING | IN_OVERLAP | {TELLING} == POINTS
