"""Rollouts drawn from a copy of the policy on a device of its own: the bytes are those of the trainer's own device."""

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
from profiles.schema import Adapter, Profile
from tests.workers import harness as h
from tests.workers.grpo.small import sums, tiny_model, write_problems
from tests.workers.grpo.test_beside import STEPS, Failing, beside, coins, cycle, seeded
from tests.workers.grpo.test_grpo_worker import (
    checkpoint_of,
    do,
    leave_torch_as_it_was,
    metrics_of,
    profile_of,
    trained,
)
from tests.workers.grpo.test_segments import collected
from tests.workers.torch_settings import torch_as_it_was
from workers.contract import CheckpointRef, Outcome
from workers.cycle.ahead import Ahead
from workers.grpo.update import GroupUpdate
from workers.models.adapters import adapter_of
from workers.models.fast_stack import has_stack
from workers.models.policy import open_policy
from workers.rollout.native import NativeEngine
from workers.rollout.sampler import Sampler, groups_of, sampler_of

__all__ = ["leave_torch_as_it_was"]


def apart(profile: Profile) -> Profile:
    return replace(profile, run=replace(profile.run, sampler_device="cpu"))


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_problems(tmp_path_factory.mktemp("problems") / "sums.jsonl", sums(40))


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory, problems: Path) -> Iterator[Path]:
    """All weights are trained, with two updates a step and a checkpoint after each step."""
    with torch_as_it_was():
        root = tmp_path_factory.mktemp("sampler") / "run"
        trained(root, apart(coins(problems)), STEPS)
        yield root


def digests(root: Path) -> list[str]:
    return [event.data["digest"] for event in h.events_at(root / "cycles/0001/attempt-1", "checkpoint")]


# --- the same bytes --------------------------------------------------------------------------------------------------


def test_each_checkpoint_is_that_of_a_run_whose_trainer_s_device_draws(
    sampled: Path, tmp_path: Path, problems: Path
) -> None:
    trained(tmp_path / "run", coins(problems), STEPS)
    assert digests(sampled) == digests(tmp_path / "run") and len(digests(sampled)) == STEPS
    assert metrics_of(sampled) == metrics_of(tmp_path / "run")


def test_a_run_with_everything_on_ends_in_the_same_bits_from_each_of_its_checkpoints(
    tmp_path: Path, problems: Path
) -> None:
    """Curriculum, extra draws, running mask, reference and adapter; no rollout file is left to be reused."""
    plain = beside(profile_of(problems), checkpoint_every=1)
    assert plain.adapter.rank and plain.optimizer.updates_per_step == 2
    alone = checkpoint_of(cycle(tmp_path / "alone", plain, seeded(tmp_path / "alone", plain)))
    profile, root = apart(plain), tmp_path / "run"
    whole = checkpoint_of(cycle(root, profile, seeded(root, profile)))
    assert whole.digest == alone.digest
    saved = h.events_at(root / "cycles/0001/attempt-1", "checkpoint")
    assert [event.step for event in saved] == [1, 2, 3, STEPS]
    for attempt, event in enumerate(saved[:-1], start=2):
        shutil.rmtree(root / "cycles/0001/rollouts")
        head = CheckpointRef(step=event.step, **event.data)
        resumed = do(h.make_spec(root, profile, head=head, end_step=STEPS + 1, attempt=attempt))
        assert checkpoint_of(resumed).digest == whole.digest


def test_a_resumed_run_may_go_on_with_a_copy_or_without(sampled: Path, tmp_path: Path, problems: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(sampled, root)
    *_, third, last = h.events_at(root / "cycles/0001/attempt-1", "checkpoint")
    shutil.rmtree(root / "cycles/0001/rollouts")
    head = CheckpointRef(step=third.step, **third.data)
    resumed = do(h.make_spec(root, coins(problems), head=head, end_step=STEPS + 1, attempt=2))
    assert checkpoint_of(resumed).digest == last.data["digest"]


# --- beside the whole update -----------------------------------------------------------------------------------------


def test_drawing_begins_before_the_update_and_may_end_after_it(
    sampled: Path, tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each draw waits until the update beside it is over, which on one device would be a deadlock."""
    is_over, begun = threading.Event(), list[bool]()
    generate, apply = NativeEngine.generate, GroupUpdate.apply

    def draw(engine: NativeEngine, *arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            begun.append(True)
            assert is_over.wait(60)
            is_over.clear()
        return generate(engine, *arguments)

    def update(one: GroupUpdate, step: int, *arguments: Any, **named: Any) -> Any:
        found = apply(one, step, *arguments, **named)
        if step < STEPS:
            is_over.set()
        return found

    monkeypatch.setattr(NativeEngine, "generate", draw)
    monkeypatch.setattr(GroupUpdate, "apply", update)
    trained(tmp_path / "run", apart(coins(problems)), STEPS)
    assert len(begun) == STEPS - 1 and digests(tmp_path / "run") == digests(sampled)


def test_a_plan_over_a_copy_begins_at_once_and_is_not_waited_for_before_a_weight_changes() -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def draw() -> list[dict[str, bool]]:
        has_begun.set()
        return [{"ended": may_end.wait(60)}]

    with Ahead() as ahead:
        ahead.reads_copy = True
        ahead.plan(2, draw)
        assert has_begun.wait(60)
        ahead.before_change()
        may_end.set()
        ahead.complete()
        assert ahead.take(2) == [{"ended": True}]


# --- errors of the thread --------------------------------------------------------------------------------------------


def test_memory_that_runs_out_in_the_thread_repeats_the_rollouts_with_the_weights_before_the_update(
    sampled: Path, tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(torch.OutOfMemoryError("CUDA out of memory"))
    failing.install(monkeypatch)
    trained(tmp_path / "run", apart(coins(problems)), STEPS)
    (retry,) = h.events_at(tmp_path / "run/cycles/0001/attempt-1", "oom_retry")
    assert retry.data["phase"] == "rollout" and failing.calls == STEPS  # of which one failed
    for step in range(1, STEPS + 1):
        ours, theirs = (collected(root, step).rows for root in (tmp_path / "run", sampled))
        assert [row.completion_ids for row in ours] == [row.completion_ids for row in theirs]


def test_another_error_of_the_thread_ends_the_attempt_and_nothing_of_that_step_is_saved(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = apart(coins(problems))
    head = seeded(tmp_path / "run", profile)
    Failing(OSError(28, "No space left on device")).install(monkeypatch)
    result = cycle(tmp_path / "run", profile, head)
    assert (result.outcome, result.exit_code, result.last_step) == (Outcome.FAILED, ExitCode.DISK, 0)
    assert not h.events_at(tmp_path / "run/cycles/0001/attempt-1", "checkpoint")


# --- the copy --------------------------------------------------------------------------------------------------------


def test_the_probe_compares_the_sampler_s_engine_with_the_trainer_s_model(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that never arrive are found at the start, before anything is trained on what they draw."""
    profile = apart(coins(problems))
    head = seeded(tmp_path / "run", profile)
    monkeypatch.setattr(Sampler, "copy_weights", lambda sampler: None)
    result = cycle(tmp_path / "run", profile, head)  # of a checkpoint's config, with arbitrary weights
    assert (result.outcome, result.exit_code) == (Outcome.FAILED, ExitCode.INPUT)
    assert "off plain transformers" in result.error


def test_the_copy_reads_prompts_through_the_layers_that_the_trainer_s_device_would(problems: Path) -> None:
    plain = apart(profile_of(problems))
    profile = replace(plain, model=replace(plain.model, gradient_checkpointing=True))
    model = open_policy(profile, None, torch.device("cpu")).model
    sampler = sampler_of(profile, None, model)
    assert sampler is not None and has_stack(sampler.model) and has_stack(model)


def test_an_adapter_arrives_whole_and_its_casts_are_made_anew() -> None:
    mine, copy = (tiny_model(adapter=Adapter(rank=2, alpha=4.0, targets=("q_proj", "v_proj")), seed=n) for n in (0, 1))
    sources, targets = (list(adapter_of(model).values()) for model in (mine, copy))
    layer = copy.model.layers[0].self_attn.q_proj
    before = layer.cast(torch.bfloat16)
    Sampler(copy, sources, targets).copy_weights()
    assert len(targets) == 8 and all(torch.equal(one, other) for one, other in zip(sources, targets, strict=True))
    after = layer.cast(torch.bfloat16)
    assert not torch.equal(before[0], after[0]) and torch.equal(after[0], layer.matrices[0].bfloat16())


def test_small_weights_travel_together_and_a_large_one_alone() -> None:
    sizes = [("a", 4), ("a", 4), ("a", 4), ("b", 1), ("a", 50), ("a", 1)]
    assert list(groups_of(sizes, 10)) == [[0, 1], [2], [3], [4], [5]]


def test_a_device_of_another_kind_is_refused_by_the_worker(tmp_path: Path, problems: Path) -> None:
    """`run.device = "auto"` tells no rule what the trainer will have."""
    profile = coins(problems)
    profile = replace(profile, run=replace(profile.run, device="cpu", sampler_device="cuda:1"))
    result = do(h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0))
    assert result.exit_code == ExitCode.INPUT and "must be of one kind" in result.error
