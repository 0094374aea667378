"""latest.json and best.json: what the store says, in files that are whole at any moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import pointers
from orchestrator.evaluation.target import choose_checkpoint
from profiles.load import profile_sha256, resolved_json
from profiles.schema import Profile
from state import durable
from state.crash import Armed
from state.history import CheckpointFacts
from state.layout import RunDir
from state.reader import Reader
from state.states import CycleState
from state.store import NewAttempt, NewRun, Store


class Made:
    """A run with a checkpoint and a validation for each score, steps 10, 20, 30 ..."""

    def __init__(self, root: Path) -> None:
        self.run = RunDir(root)
        root.mkdir()
        profile = Profile(name="x")
        new = NewRun("r0", "x", resolved_json(profile).decode(), profile_sha256(profile), 0, "0.1.0", 1.0)
        self.store = Store.open(self.run, new)
        self.reader = Reader.open(self.run)

    def add(self, step: int, scores: dict[str, float] | None) -> None:
        cycle = step // 10
        parent = f"id{step - 10}" if step > 10 else None
        self.store.plan_cycle(cycle, "train", step - 9, step + 1, 0, 1.0)
        self.store.plan_attempt(NewAttempt(cycle, "train", 1, f"t{step}", step - 9, 0, 1.0))
        facts = CheckpointFacts(f"id{step}", parent, cycle, step, f"checkpoints/{step}", f"d{step}", 9, True, True)
        self.store.commit_checkpoint(facts, 1, 1.0)
        if scores is not None:
            metrics = {
                suite: {"mean": {"accuracy": score, "correct": int(100 * score), "n": 100}}
                for suite, score in scores.items()
            }
            self.store.set_cycle_state(cycle, CycleState.TRAINED)
            self.store.plan_attempt(NewAttempt(cycle, "validate", 1, f"v{step}", step + 1, 0, 1.0))
            self.store.commit_validation(f"id{step}", cycle, 1, step, metrics, 1.0)
        pointers.publish(self.run, self.reader)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    found = Made(tmp_path / "x")
    yield found
    found.reader.close()
    found.store.close()


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        pytest.param([0.2, 0.5, 0.4], 20, id="the highest, not the newest"),
        pytest.param([0.5, 0.5, 0.5], 10, id="ties go to the earlier"),
        pytest.param([0.2, 0.5, 0.5], 20, id="also between the later two"),
        pytest.param([0.0, 0.0, 0.1], 30, id="the newest, where it is the highest"),
    ],
)
def test_which_checkpoint_is_the_best(scores: list[float], best: int, made: Made) -> None:
    for number, score in enumerate(scores, start=1):
        made.add(10 * number, {"pocket": score, "gsm8k": 1 - score})
    said = json.loads(made.run.best.read_bytes())
    assert said == {
        "run_id": "r0", "checkpoint": f"checkpoints/{best}", "step": best, "cycle": best // 10,
        "checkpoint_id": f"id{best}", "digest": f"d{best}", "suite": "pocket", "accuracy": scores[best // 10 - 1],
        "correct": int(100 * scores[best // 10 - 1]), "n": 100,
    }  # fmt: skip
    assert json.loads(made.run.latest.read_bytes())["step"] == 30
    assert choose_checkpoint(made.run, "best").target.step == best
    assert choose_checkpoint(made.run, "latest").target.step == 30


def test_a_checkpoint_that_is_not_validated_is_the_latest_alone(made: Made) -> None:
    made.add(10, None)
    assert json.loads(made.run.latest.read_bytes())["checkpoint"] == "checkpoints/10"
    assert not made.run.best.exists()


def test_walking_back_takes_the_best_back_too(made: Made) -> None:
    made.add(10, {"pocket": 0.1})
    made.add(20, {"pocket": 0.9})
    made.store.walk_back("id10", 1.0)
    pointers.publish(made.run, made.reader)
    assert [json.loads(path.read_bytes())["step"] for path in (made.run.latest, made.run.best)] == [10, 10]


def test_a_write_that_fails_leaves_the_old_file_whole(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.add(10, {"pocket": 0.1})
    before = made.run.latest.read_bytes()
    monkeypatch.setattr(durable, "crash_point", Armed("durable.before_rename:1:enospc").hit)
    with pytest.raises(Exception, match="No space left"):
        made.add(20, None)
    assert made.run.latest.read_bytes() == before
    monkeypatch.undo()
    pointers.publish(made.run, made.reader)  # what the next start does
    assert json.loads(made.run.latest.read_bytes())["step"] == 20


def test_a_file_that_says_the_same_is_left_alone(made: Made) -> None:
    made.add(10, {"pocket": 0.1})
    before = [path.stat().st_ino for path in (made.run.latest, made.run.best)]
    pointers.publish(made.run, made.reader)
    assert [path.stat().st_ino for path in (made.run.latest, made.run.best)] == before
