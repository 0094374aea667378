"""Rollouts drawn beside an update: by which weights, how they are corrected, and what an error of their thread does."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from profiles.errors import ExitCode
from profiles.schema import Profile
from tests.workers import harness as h
from tests.workers.grpo.small import rows_of, sums, tiny_model, write_problems
from tests.workers.grpo.test_grpo_worker import (
    checkpoint_of,
    do,
    leave_torch_as_it_was,
    metrics_of,
    plain_profile,
    profile_of,
    trained,
)
from tests.workers.grpo.test_segments import collected, log_probs_of, model_before
from tests.workers.torch_settings import torch_as_it_was
from workers.contract import CheckpointRef, Outcome, Result
from workers.cycle.ahead import Ahead
from workers.grpo.rows import Collected
from workers.grpo.segments import of_older_policy
from workers.models import lora
from workers.rollout.native import NativeEngine

__all__ = ["leave_torch_as_it_was"]

STEPS = 4


def beside(profile: Profile, **run: Any) -> Profile:
    return replace(profile, run=replace(profile.run, overlap=1, **run))


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_problems(tmp_path_factory.mktemp("problems") / "sums.jsonl", sums(40))


def coins(problems: Path, **run: Any) -> Profile:
    """Rewards by chance, so that every step has an update."""
    found = beside(plain_profile(problems), checkpoint_every=1, **run)
    return replace(found, grpo=replace(found.grpo, variants=replace(found.grpo.variants, random_rewards=True)))


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory: pytest.TempPathFactory, problems: Path) -> Iterator[Path]:
    """One cycle with a checkpoint after each step."""
    with torch_as_it_was():
        root = tmp_path_factory.mktemp("beside") / "run"
        trained(root, coins(problems), STEPS)
        yield root


def seeded(root: Path, profile: Profile) -> CheckpointRef:
    return checkpoint_of(trained(root, profile))


def cycle(root: Path, profile: Profile, head: CheckpointRef) -> Result:
    return do(h.make_spec(root, profile, head=head, end_step=STEPS + 1))


# --- what is drawn ---------------------------------------------------------------------------------------------------


def test_rollouts_keep_the_log_probs_of_the_weights_before_the_last_update(overlapped: Path) -> None:
    moved = 0.0
    for step in range(1, STEPS + 1):
        drawing, training = (model_before(overlapped, max(1, one)) for one in (step - 1, step))
        for row in collected(overlapped, step).rows:
            own = log_probs_of(drawing, row)
            torch.testing.assert_close(torch.tensor(row.log_probs).double(), own, atol=1e-4, rtol=0)
            moved = max(moved, float((log_probs_of(training, row) - own).abs().max()))
    assert moved > 1e-2  # or the other weights would have done


def test_all_tokens_but_those_of_a_cycle_s_first_step_count_as_drawn_by_an_older_policy(overlapped: Path) -> None:
    first, *others = (collected(overlapped, step).rows for step in range(1, STEPS + 1))
    assert all(row.segments == () and row.num_fresh > 0 for row in first)
    assert all(row.segments == (len(row.completion_ids), 0) for rows in others for row in rows)


def test_older_tokens_get_importance_weights_and_say_nothing_of_the_engine(overlapped: Path) -> None:
    first, *others = metrics_of(overlapped)
    assert first["mismatch_tokens"] > 0 and first["mismatch_mean"] < 1e-4 and first["tis_weight"] == pytest.approx(1)
    for step in others:
        assert step["older_share"] == 1 and step["mismatch_tokens"] == 0
        assert "mismatch_mean" not in step and "mismatch_max" not in step
        assert abs(step["tis_weight"] - 1) > 1e-4


def test_problems_come_in_the_order_of_a_run_without_overlap(overlapped: Path, tmp_path: Path, problems: Path) -> None:
    profile = coins(problems)
    trained(tmp_path / "run", replace(profile, run=replace(profile.run, overlap=0)), STEPS)
    asked = [
        [[row.problem for row in collected(root, step).rows] for step in range(1, STEPS + 1)]
        for root in (overlapped, tmp_path / "run")
    ]
    assert asked[0] == asked[1]


def test_a_run_with_everything_on_ends_in_the_same_bits_from_each_of_its_checkpoints(
    tmp_path: Path, problems: Path
) -> None:
    """Curriculum, extra draws, running mask, reference and adapter; no rollout file is left to be reused."""
    profile, root = beside(profile_of(problems), checkpoint_every=1), tmp_path / "run"
    whole = checkpoint_of(cycle(root, profile, seeded(root, profile)))
    saved = h.events_at(root / "cycles/0001/attempt-1", "checkpoint")
    assert [event.step for event in saved] == [1, 2, 3, STEPS]
    for attempt, event in enumerate(saved[:-1], start=2):
        shutil.rmtree(root / "cycles/0001/rollouts")
        head = CheckpointRef(step=event.step, **event.data)
        resumed = do(h.make_spec(root, profile, head=head, end_step=STEPS + 1, attempt=attempt))
        assert checkpoint_of(resumed).digest == whole.digest


def test_tokens_of_earlier_segments_stay_apart() -> None:
    rows = [replace(row, segments=(2, len(row.completion_ids) - 2)) for row in rows_of(tiny_model(), 1, 2)]
    found = of_older_policy(Collected(rows=rows, train=(0,)))
    assert [row.segments for row in found.rows] == [(*row.segments, 0) for row in rows]
    assert found.metrics["older_share"] == 1 and all(row.num_fresh == 0 for row in found.rows)


# --- errors of the thread --------------------------------------------------------------------------------------------


class Failing:
    """`NativeEngine.generate` that fails once outside the main thread."""

    def __init__(self, error: Exception) -> None:
        self.error, self.calls = error, 0
        self._generate = NativeEngine.generate

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def generate(engine: NativeEngine, *arguments: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                self.calls += 1
                if self.calls == 1:
                    raise self.error
            return self._generate(engine, *arguments)

        monkeypatch.setattr(NativeEngine, "generate", generate)


def test_memory_that_runs_out_in_the_thread_halves_the_rollouts_and_repeats_them(
    overlapped: Path, tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(torch.OutOfMemoryError("CUDA out of memory"))
    failing.install(monkeypatch)
    trained(tmp_path / "run", coins(problems), STEPS)
    (retry,) = h.events_at(tmp_path / "run/cycles/0001/attempt-1", "oom_retry")
    assert retry.data["phase"] == "rollout" and failing.calls == STEPS  # of which one failed
    for step in range(1, STEPS + 1):
        ours, theirs = (collected(root, step).rows for root in (tmp_path / "run", overlapped))
        assert [row.completion_ids for row in ours] == [row.completion_ids for row in theirs]


def test_another_error_of_the_thread_ends_the_attempt_before_the_update(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = coins(problems)
    head = seeded(tmp_path / "run", profile)
    Failing(OSError(28, "No space left on device")).install(monkeypatch)
    result = cycle(tmp_path / "run", profile, head)
    assert (result.outcome, result.exit_code, result.last_step) == (Outcome.FAILED, ExitCode.DISK, 0)


def test_a_model_that_plain_transformers_draws_is_refused(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.rollout.select.reason_of", lambda model: "an unknown layer")
    result = do(h.make_spec(tmp_path, coins(problems), head=None, end_step=1, cycle=0))
    assert result.exit_code == ExitCode.INPUT and "HfEngine" in result.error


def test_a_plan_is_drawn_once_however_often_it_begins() -> None:
    drawn = []
    with Ahead() as ahead:
        ahead.plan(2, lambda: drawn.append(2) or [{"a": 1}])  # type: ignore[func-returns-value]
        for _ in range(3):
            ahead.begin()
            ahead.finish()
        assert drawn == [2] and ahead.take(2) == [{"a": 1}] and ahead.take(2) is None


def test_a_thread_that_draws_has_cast_copies_of_its_own() -> None:
    layer = lora.LoraLinear(torch.nn.Linear(4, 4), 2, 1.0, seed=0)
    main = layer.cast(torch.bfloat16)
    with lora.copies_apart():
        apart = layer.cast(torch.bfloat16)
    assert all(torch.equal(one, other) and one is not other for one, other in zip(main, apart, strict=True))
    assert layer.cast(torch.bfloat16)[0] is main[0]
