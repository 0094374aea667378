"""Trackers: committed points, each once, whatever is killed; and a failure that costs a line, never a run."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator import tracking
from profiles.load import profile_sha256, resolved_json
from profiles.schema import Profile, Trackers
from state.facts import Line
from state.history import CheckpointFacts
from state.layout import RunDir
from state.states import CycleState
from state.store import NewAttempt, NewRun, Store
from tests.faults.harness import scene
from workers.line_contract import TrackSpec
from workers.track import job, sinks
from workers.track.job import CURSOR, Tracking
from workers.track.points import flat

event_pb2: Any = pytest.importorskip("tensorboardX.proto.event_pb2")
KILLED = -signal.SIGKILL


@pytest.fixture(autouse=True)
def leave_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own process the tracker keeps torch out; here it may be in already."""
    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch"))


def events(folder: Path) -> Iterator[Any]:
    """Every event of a folder's files, in the order in which they were written."""
    for path in sorted(folder.glob("events.*")):
        data = path.read_bytes()
        while len(data) >= 12:
            (length,) = struct.unpack("<Q", data[:8])
            yield event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def seen(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What TensorBoard shows: a restart hides what an earlier writer said of its step and later ones."""
    points: list[tuple[int, dict[str, float]]] = []
    for event in events(folder):
        if event.HasField("session_log"):
            points = [point for point in points if point[0] < event.step]
        elif event.HasField("summary"):
            points.append((event.step, {value.tag: value.simple_value for value in event.summary.value}))
    return points


class Made:
    """A run whose steps and validations come when the test says so, and its trackers."""

    def __init__(self, root: Path) -> None:
        self.run = RunDir(root)
        root.mkdir()
        self.run.trackers.mkdir()
        profile = Profile(name="x")
        new = NewRun("r0", "x", resolved_json(profile).decode(), profile_sha256(profile), 0, "0.1.0", 1.0)
        self.store = Store.open(self.run, new)
        self.told: list[str] = []
        self.cycle = 0

    def steps(self, first: int, last: int, *, commit: bool = True) -> None:
        self.cycle += 1
        token = f"t{self.cycle}"
        self.store.plan_cycle(self.cycle, "train", first, last + 1, 0, 1.0)
        self.store.plan_attempt(NewAttempt(self.cycle, "train", 1, token, first, 0, 1.0))
        for step in range(first, last + 1):
            metrics = {"loss": step / 2, "reward/solve": 0.25, "seconds": 1.0, "text": "no number"}
            line = Line(step, "step", step, 1000.0 + step, 0.0, metrics, "")
            self.store.ingest(token, [line], step)
        if commit:
            self.commit(first, last)

    def commit(self, first: int, last: int) -> None:
        parent = f"id{first - 1}" if first > 1 else None
        facts = CheckpointFacts(f"id{last}", parent, self.cycle, last, f"checkpoints/{last}", "d", 9, True, True)
        self.store.commit_checkpoint(facts, 1, 1.0)

    def validate(self, step: int, accuracy: float) -> None:
        self.store.set_cycle_state(self.cycle, CycleState.TRAINED)
        self.store.plan_attempt(NewAttempt(self.cycle, "validate", 1, f"v{step}", step + 1, 0, 1.0))
        metrics = {"pocket": {"mean": {"accuracy": accuracy, "correct": 1, "n": 4}}}
        self.store.commit_validation(f"id{step}", self.cycle, 1, step, metrics, 2000.0)

    def tracking(self, *use: Any) -> Tracking:
        spec = TrackSpec(
            run_dir=str(self.run.root), run_id="r0", name="x", folder=str(self.run.trackers),
            tensorboard=str(self.run.tensorboard), trackers=Trackers(use=use or ("tensorboard",)), config={},
        )  # fmt: skip
        return Tracking(spec, lambda message: self.told.append(message.text))

    def seen(self, kind: str = "train") -> list[tuple[int, dict[str, float]]]:
        return seen(self.run.tensorboard / kind)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    found = Made(tmp_path / "x")
    yield found
    found.store.close()


def test_numbers_are_named_by_their_path_and_all_else_is_left_out() -> None:
    metrics = {"a": 1, "b": {"c": 0.5, "d": {"e": True}}, "f": "x", "g": float("nan"), "h": float("inf"), "i": None}
    assert flat(metrics) == {"a": 1.0, "b/c": 0.5}


def test_tensorboard_gets_committed_steps_and_validations(made: Made) -> None:
    made.steps(1, 3)
    made.validate(3, 0.75)
    tracking = made.tracking()
    tracking.catch_up()
    assert made.seen() == [(step, {"loss": step / 2, "reward/solve": 0.25, "seconds": 1.0}) for step in (1, 2, 3)]
    assert made.seen("validation") == [
        (3, {"pocket/mean/accuracy": 0.75, "pocket/mean/correct": 1, "pocket/mean/n": 4})
    ]
    assert [event.wall_time for event in events(made.run.tensorboard / "train")][1:] == [1001.0, 1002.0, 1003.0]
    tracking.close()
    assert made.told == []


def test_a_long_run_is_sent_in_pieces_in_the_same_order(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PIECE", 4)
    for first in (1, 4, 7, 10):
        made.steps(first, first + 2)
        made.validate(first + 2, 0.5)
    held, sent = 0, []

    class Log:
        repeats = True

        def write(self, point: Any) -> None:
            nonlocal held
            held += 1
            sent.append((point.step, point.kind))

        def flush(self) -> None:
            nonlocal held
            assert held <= 6  # four steps and the validations between them
            held = 0

    monkeypatch.setattr(job, "open_sink", lambda *_: Log())
    made.tracking().catch_up()
    assert sent == sorted([(step, "train") for step in range(1, 13)] + [(s, "validation") for s in (3, 6, 9, 12)])
    made.tracking().catch_up()
    assert len(sent) == 16


def test_a_step_is_drawn_when_a_checkpoint_holds_it_and_never_again(made: Made) -> None:
    made.steps(1, 2)
    made.steps(3, 4, commit=False)
    tracking = made.tracking()
    for _ in range(2):
        tracking.catch_up()
        assert [step for step, _ in made.seen()] == [1, 2]
    made.commit(3, 4)
    tracking.catch_up()
    assert [step for step, _ in made.seen()] == [1, 2, 3, 4]
    tracking.close()


def test_a_resumed_tracker_goes_on_where_it_was(made: Made) -> None:
    made.steps(1, 2)
    made.tracking().catch_up()
    made.steps(3, 5)
    resumed = made.tracking()
    resumed.catch_up()
    resumed.close()
    assert [step for step, _ in made.seen()] == [1, 2, 3, 4, 5]


def test_points_that_were_written_but_not_noted_are_seen_once(made: Made) -> None:
    """It died between the flush and the note."""
    made.steps(1, 2)
    made.tracking().catch_up()
    noted = (made.run.trackers / CURSOR).read_bytes()
    made.steps(3, 4)
    made.tracking().catch_up()
    (made.run.trackers / CURSOR).write_bytes(noted)
    resumed = made.tracking()
    resumed.catch_up()
    resumed.close()
    assert [step for step, _ in made.seen()] == [1, 2, 3, 4]
    raw = [event.step for event in events(made.run.tensorboard / "train") if event.HasField("summary")]
    assert raw == [1, 2, 3, 4, 3, 4]  # so the test can fail


def test_a_tracker_that_fails_is_told_once_and_the_others_go_on(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    made.steps(1, 2)
    tracking = made.tracking("wandb", "tensorboard")
    for _ in range(3):
        tracking.catch_up()
    assert len(made.told) == 1 and made.told[0].startswith("wandb gets nothing more: ")
    assert [step for step, _ in made.seen()] == [1, 2]


class Recorder:
    """A tracker that notes what it is given, and may fail."""

    def __init__(self, repeats: bool, fails_at: int = -1) -> None:
        self.repeats, self.fails_at = repeats, fails_at
        self.steps: list[int] = []

    def write(self, point: Any) -> None:
        if point.step == self.fails_at:
            raise OSError("the network is gone")
        self.steps.append(point.step)

    def flush(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("repeats", "again"), [(True, [1, 2, 3]), (False, [])])
def test_what_cannot_be_repeated_is_noted_before_it_is_sent(
    repeats: bool, again: list[int], made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails at step 2 of 3; the next start repeats all where that is harmless, and nothing where it is not."""
    made.steps(1, 3)
    recorders = [Recorder(repeats, fails_at=2), Recorder(repeats)]
    left = iter(recorders)
    monkeypatch.setattr("workers.track.job.open_sink", lambda name, spec, written: next(left))
    for _ in recorders:
        made.tracking("trackio").catch_up()
    assert recorders[0].steps == [1] and recorders[1].steps == again
    assert made.told == ["trackio gets nothing more: OSError: the network is gone"]


def test_wandb_in_its_offline_mode(made: Made) -> None:
    pytest.importorskip("wandb")
    made.steps(1, 2)
    spec = made.tracking()._spec
    offline = msgspec.structs.replace(spec, trackers=Trackers(use=("wandb",), wandb_mode="offline"))
    tracking = Tracking(offline, lambda message: made.told.append(str(message)))
    tracking.catch_up()
    tracking.close()
    assert made.told == [] and list(made.run.trackers.glob("wandb/offline-run-*-r0/*.wandb"))


# --- the process, and the master -------------------------------------------------------------------------------------


def test_a_library_that_is_missing_is_told_where_it_was_named(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    said: list[str] = []
    for use in (("tensorboard",), ("tensorboard", "wandb")):
        tracker = tracking.Tracker(made.run, "r0", Profile(name="x", trackers=Trackers(use=use)), said.append)
        tracker.nudge()
        tracker.close()
    assert said == ["trackers.use names wandb, which is not installed; the run goes on without it"]


def test_secrets_go_to_the_trackers_that_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "mine")
    monkeypatch.setenv("OTHER_API_KEY", "not yours")
    assert "WANDB_API_KEY" not in tracking.environment_for(["tensorboard"], "r0")
    found = tracking.environment_for(["wandb"], "r0")
    assert found["WANDB_API_KEY"] == "mine" and "OTHER_API_KEY" not in found


TRACKED = {"trackers.use": '["tensorboard"]'}


def test_a_run_that_is_killed_and_resumed_has_every_step_once(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.knobs = TRACKED
        run.finish("commit.after:3", code=KILLED)
        run.wait_until_nobody_is_left()
        run.finish()
        assert [step for step, _ in seen(run.run.tensorboard / "train")] == [1, 2, 3, 4, 5, 6]
        assert [step for step, _ in seen(run.run.tensorboard / "validation")] == [0, 6]
        run.wait_until_nobody_is_left()


def test_a_tracker_that_cannot_write_costs_the_run_a_line(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.knobs = TRACKED
        run.run.root.mkdir(parents=True)
        run.run.tensorboard.write_text("in the way")
        out = run.finish().out.read_text()
        assert out.count("tensorboard gets nothing more") == 1
        assert run.one("SELECT state FROM runs") == "succeeded" or "finished" in out


def test_the_tracker_process_keeps_torch_out() -> None:
    """tensorboardX would import it: three seconds and 300 MB for nothing."""
    import subprocess

    code = (
        "import sys; from pathlib import Path; from workers.track.sinks import TensorBoard;"
        "import tempfile; TensorBoard(Path(tempfile.mkdtemp()), {'train': -1}).close();"
        "print(sys.modules.get('torch'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "None", json.dumps(done.stderr)


@pytest.mark.parametrize("library", [name for name, *_ in sinks.EVENT_FILES])
def test_either_library_writes_what_tensorboard_reads(
    library: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    monkeypatch.setattr(sinks, "EVENT_FILES", [one for one in sinks.EVENT_FILES if one[0] == library])
    made.steps(1, 2)
    made.tracking().catch_up()
    made.steps(3, 3)
    made.tracking().catch_up()
    assert [step for step, _ in made.seen()] == [1, 2, 3]
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(made.run.tensorboard / "train"))
    reader.Reload()
    assert [(one.step, one.value) for one in reader.Scalars("loss")] == [(1, 0.5), (2, 1.0), (3, 1.5)]
