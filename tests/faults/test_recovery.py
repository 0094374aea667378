"""Row M8: the master dies while it repairs what an earlier death left, and the next one dies there too."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.conftest import Clean
from tests.faults.harness import KNOBS, Scene, faults, scene
from tests.faults.invariants import check_invariants, check_recovery

KILLED = -signal.SIGKILL
N = KNOBS["run.checkpoint_every"]

POINTS_OF_RECOVERY = (
    "commit.after", "commit.before", "commit.inside", "durable.after_rename", "durable.before_rename",
    "ingest.before_offset", "master.ready", "prune.after_rename", "prune.marked", "prune.mid_remove",
    "recover.adopted", "recover.after_quarantine", "recover.attempt_closed", "recover.before_quarantine",
    "recover.strays_killed", "store.before_commit",
)  # fmt: skip
"""Every point that a master hits from its start until it is ready, where there is as much as possible to repair."""


@dataclass(frozen=True)
class Worst:
    """A dead run that is copied for each test, and the hits of a recovery from it."""

    run: Scene
    hits: Counter[str]

    def copy(self, root: Path) -> None:
        shutil.copytree(self.run.root, root, ignore=shutil.ignore_patterns("ballast", "*.sock", "count-*"))


@pytest.fixture(scope="module")
def worst(tmp_path_factory: pytest.TempPathFactory) -> Worst:
    """Left behind: an open attempt with an event that was not taken in yet, a whole child without a row and a damaged
    one, staging, trash."""
    folder = tmp_path_factory.mktemp("worst")
    run = Scene(folder / "run")
    run.finish("commit.before:4", code=KILLED)
    run.wait_until_nobody_is_left()
    newest = next(run.run.checkpoints.glob("c0001-s000006-*"))
    damaged = newest.with_name("c0001-s000005-damaged")
    shutil.copytree(newest, damaged)
    (damaged / "weights.json").write_text("[0.0]")
    shutil.copytree(newest, newest.with_name(".staging-dead"))
    shutil.copytree(newest, newest.with_name(".trash-c0000-s000000-old"))
    with run.run.attempt(1, 1).events.open("ab") as events:
        events.write(b'{"seq":99,"type":"warning","data":{"text":"nobody heard this"}}\n')
    made = Worst(run, Counter())
    made.copy(folder / "hits")
    with scene(folder / "hits") as counted:
        log = folder / "log"
        master = counted.launch(counted.command("--plain"), "master.ready:1", {"LONGHAUL_CRASHPOINT_LOG": str(log)})
        assert master.end() == KILLED, master.text()
        made.hits.update(log.read_text().splitlines())
    return made


def test_M8_every_point_of_recovery_is_tried(worst: Worst) -> None:
    assert set(worst.hits) == set(POINTS_OF_RECOVERY)


@pytest.mark.parametrize("name", POINTS_OF_RECOVERY)
def test_M8_master_killed_during_recovery_repeatedly_recovers_all_the_same(
    name: str, worst: Worst, clean: Clean, tmp_path: Path
) -> None:
    for nth in sorted({1, worst.hits[name]}):
        worst.copy(tmp_path / f"at-{nth}")
        with scene(tmp_path / f"at-{nth}") as run:
            run.finish(f"{name}:{nth}", code=KILLED)
            again = run.start(f"{name}:1")
            faults.append(f"{name}:{nth}, then {name}:1")
            assert again.end() in (0, KILLED), again.text()  # 0: there was nothing left to do at this point
            check_recovery(run, tmp_path / "copy", N)
            run.finish()
            check_invariants(run, clean.ending)
