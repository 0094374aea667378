"""Intervals, random streams, rollout files, the cursor, and the rules of the cycle that are pure."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Optimizer, Profile
from tests.workers.harness import make_spec
from workers import process
from workers.cycle import rollout_file
from workers.cycle.cursor import Cursor, Exhausted, Place
from workers.cycle.rollout_file import Header
from workers.cycle.train import checkpoint_is_due
from workers.cycle.validate import mean_over_tasks
from workers.failures import exit_code_of
from workers.fake import faults
from workers.intervals import wilson
from workers.models.optimizer import learning_rate_at
from workers.rng import derive, stream
from workers.runtime import failure

HEADER = Header(run_id="r", profile_sha256="p", step=3)
RECORDS = [{"a": 0.1, "b": [1, 2]}, {"c": "ü\n"}]


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"),
    [(70, 300, 0.1890, 0.2844), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson_by_hand(correct: int, n: int, low: float, high: float) -> None:
    assert wilson(correct, n) == pytest.approx((low, high), abs=5e-4)


def test_streams_belong_to_seed_step_and_purpose() -> None:
    keys = [(0, 1, "a", 0), (1, 1, "a", 0), (0, 2, "a", 0), (0, 1, "b", 0), (0, 1, "a", 1)]
    assert len({derive(*key) for key in keys}) == len(keys)
    assert all(0 <= derive(*key) < 2**63 for key in keys)
    assert stream(0, 1, "a").random() == stream(0, 1, "a").random()
    assert derive(0, 1, "propose") == 7233536788631100056  # the same on every machine and in every version


def test_rollouts_come_back_as_they_were(tmp_path: Path) -> None:
    rollout_file.write(tmp_path / "x" / "rollouts", HEADER, RECORDS)
    assert rollout_file.read(tmp_path / "x" / "rollouts", HEADER) == RECORDS


@pytest.mark.parametrize("cut", [1, 5, 70, 100])
def test_a_torn_rollout_file_counts_as_missing(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rollouts"
    rollout_file.write(path, HEADER, RECORDS)
    path.write_bytes(path.read_bytes()[:-cut])
    assert rollout_file.read(path, HEADER) is None


def test_a_rollout_file_of_something_else_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "rollouts"
    rollout_file.write(path, HEADER, RECORDS)
    for other in (Header("q", "p", 3), Header("r", "q", 3), Header("r", "p", 4), Header("r", "p", 3, reseeds=1)):
        assert rollout_file.read(path, other) is None
    assert rollout_file.read(tmp_path / "none", HEADER) is None


def test_a_changed_rollout_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rollouts"
    rollout_file.write(path, HEADER, RECORDS)
    path.write_bytes(path.read_bytes().replace(b"0.1", b"0.2"))
    assert rollout_file.read(path, HEADER) is None


def test_an_epoch_shows_each_task_once_and_the_next_in_another_order() -> None:
    cursor = Cursor(10, seed=1, at_end="reshuffle")
    epochs = []
    for _ in range(2):
        seen: list[int] = []
        for _ in range(5):
            numbers, cursor.place = cursor.peek(2)
            seen += numbers
        epochs.append(seen)
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]


def test_a_batch_may_reach_into_the_next_epoch() -> None:
    cursor = Cursor(3, seed=1, at_end="reshuffle")
    numbers, place = cursor.peek(7)
    assert sorted(numbers[:3]) == sorted(numbers[3:6]) == [0, 1, 2]
    assert place == Place(2, 1)


def test_looking_ahead_moves_nothing() -> None:
    cursor = Cursor(5, seed=1, at_end="reshuffle")
    assert cursor.peek(3) == cursor.peek(3)
    assert cursor.place == Place()


def test_the_end_of_a_source_is_a_small_batch_and_then_exhausted() -> None:
    cursor = Cursor(5, seed=1, at_end="stop")
    for size in (3, 2):
        numbers, cursor.place = cursor.peek(3)
        assert len(numbers) == size
    with pytest.raises(Exhausted):
        cursor.peek(3)
    assert not issubclass(Exhausted, StopIteration)


def test_a_cursor_resumes_where_it_was(tmp_path: Path) -> None:
    one, two = (Cursor(50, seed=4, at_end="reshuffle") for _ in range(2))
    _, one.place = one.peek(60)
    one.save(tmp_path / "cursor")
    two.load(tmp_path / "cursor")
    assert two.peek(40) == one.peek(40)


@pytest.mark.parametrize(
    ("step", "saved", "asked", "due"),
    [
        pytest.param(3, 2, False, False, id="nothing to do"),
        pytest.param(5, 2, False, True, id="every fifth step"),
        pytest.param(3, 2, True, True, id="asked for"),
        pytest.param(3, 3, True, False, id="asked for, but this step is saved"),
        pytest.param(19, 15, False, True, id="the last step of the cycle"),
        pytest.param(0, -1, False, True, id="the seed"),
        pytest.param(7, 4, False, True, id="the fifth step could not be saved"),
        pytest.param(8, 7, False, False, id="it was saved late"),
        pytest.param(10, 7, False, True, id="every fifth step, whatever was saved late"),
    ],
)
def test_when_a_checkpoint_is_due(step: int, saved: int, asked: bool, due: bool) -> None:
    assert checkpoint_is_due(step, saved=saved, last=19, every=5, asked=asked) is due


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LonghaulError("x", kept="", next_command="", exit_code=ExitCode.INPUT), 66),
        (faults.OutOfMemoryError("CUDA out of memory"), 71),
        (RuntimeError("CUresult 2: CUDA_ERROR_OUT_OF_MEMORY"), 71),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), 71),
        (RuntimeError("Triton Error [CUDA]: out of memory"), 71),
        (RuntimeError("CUDA error: device-side assert"), 72),
        (OSError(28, "No space left on device"), 73),
        (OSError(30, "Read-only file system"), 73),
        (OSError(5, "Input/output error"), 73),
        (PermissionError(13, "Permission denied"), 77),
        (KeyError("x"), 70),
        (MemoryError(), 70),
    ],
)
def test_exit_codes_by_class(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code


def test_the_learning_rate_warms_up_holds_and_decays() -> None:
    knobs = Optimizer(learning_rate=1.0, warmup_steps=4, decay_steps=8, final_learning_rate=0.2)
    rates = [learning_rate_at(step, knobs) for step in (1, 2, 4, 6, 8, 100)]
    assert rates == pytest.approx([0.25, 0.5, 1.0, 0.6, 0.2, 0.2])
    assert learning_rate_at(1, Optimizer(learning_rate=0.5, warmup_steps=0)) == 0.5


def test_faults_are_read_from_text() -> None:
    (nan, kill) = faults.parse("nan:3:2, kill:5!")
    assert [nan.strikes(step, 1) for step in (2, 3, 4, 5)] == [False, True, True, False]
    assert not nan.strikes(3, 2) and kill.strikes(5, 2)
    with pytest.raises(ValueError, match="unknown fault"):
        faults.parse("sneeze:3")


def test_the_mean_over_tasks_weighs_them_equally() -> None:
    tasks = {
        "ded": {"n": 300.0, "correct": 300.0, "accuracy": 1.0, "sampled_accuracy": 0.5},
        "ind": {"n": 100.0, "correct": 0.0, "accuracy": 0.0, "sampled_accuracy": 0.0},
    }
    mean = mean_over_tasks(tasks)
    assert (mean["accuracy"], mean["sampled_accuracy"], mean["n"], mean["correct"]) == (0.5, 0.25, 400, 300)
    assert mean["low"] < 0.75 < mean["high"]


def test_global_generators_come_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    from workers.rng import GlobalGenerators, seed_globals

    def draw() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.random()), float(torch.rand(()))

    seed_globals(1)
    draw()
    GlobalGenerators().save(tmp_path / "rng.json")
    expected = draw()
    seed_globals(2)
    GlobalGenerators().load(tmp_path / "rng.json")
    assert draw() == expected


def test_an_operation_without_a_fixed_order_is_named_with_the_knob_that_allows_it(tmp_path: Path) -> None:
    error = RuntimeError("histc_cuda does not have a deterministic implementation, but you set ...")
    assert exit_code_of(error) == ExitCode.INPUT
    spec = make_spec(tmp_path, Profile(name="x"), head=None, end_step=1)
    assert "run.deterministic=false" in failure(spec, error, None).advice


def test_garbage_is_not_looked_for_while_importing_and_what_was_imported_is_left_out_afterwards() -> None:
    with pytest.raises(ImportError), process.importing():
        assert not gc.isenabled()
        raise ImportError
    try:
        assert gc.isenabled() and gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
