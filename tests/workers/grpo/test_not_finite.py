"""Rollouts whose numbers are NaN or infinite: left out where rows are made, and counted; three such steps end it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from profiles.errors import ExitCode
from profiles.schema import Adapter, Optimizer, Profile
from tests.workers import harness as h
from tests.workers.grpo import test_grpo_worker as worker
from tests.workers.grpo.small import SIZES, advantages_of, profile_of, rows_of, tiny_model, update_of
from workers.contract import Outcome
from workers.cycle import rollout_file
from workers.grpo.collecting import Asker
from workers.grpo.entropy import EntropyMask
from workers.grpo.prepare import prepare
from workers.grpo.rows import Collected, Row
from workers.grpo.scoring import score_rows
from workers.grpo.trainer import chosen
from workers.rollout.engine import Request, Rollout, Sampling
from workers.rollout.hf import HfEngine
from workers.rollout.native import NativeEngine

pytestmark = pytest.mark.usefixtures("one_thread")
leave_torch_as_it_was, problems = worker.leave_torch_as_it_was, worker.problems

BAD = [pytest.param(value, id=str(value)) for value in (math.nan, math.inf, -math.inf)]


def rollout(log_probs: Sequence[float], entropies: Sequence[float] = ()) -> Rollout:
    return Rollout((5,), (7,) * len(log_probs), tuple(log_probs), "length", tuple(entropies))


@pytest.mark.parametrize("bad", BAD)
def test_one_number_that_is_not_finite_is_enough(bad: float) -> None:
    assert rollout([-1.0, -0.5], [0.1, 0.0]).is_finite
    assert not rollout([-1.0, bad], [0.1, 0.0]).is_finite
    assert not rollout([-1.0, -0.5], [bad, 0.0]).is_finite


@pytest.mark.parametrize("engine", [NativeEngine, HfEngine])
@pytest.mark.parametrize("entropies", [True, False], ids=["with entropies", "without"])
def test_weights_of_nan_give_rollouts_that_say_so(engine: Callable[[Any], Any], entropies: bool) -> None:
    model = tiny_model()
    requests = [Request((5, 6, 7), seed) for seed in range(3)]
    how = Sampling(max_new_tokens=4, entropies=entropies)
    assert all(one.is_finite for one in engine(model).generate(requests, how))
    with torch.no_grad():
        model.lm_head.weight[3] = math.nan
    found = engine(model).generate(requests, how)
    assert len(found) == 3 and not any(one.is_finite for one in found)


def row(group: int, reward: float, *, is_finite: bool = True) -> Row:
    return Row(group=group, problem=group, prompt_ids=(5,), completion_ids=(7,), finish_reason="stop", reward=reward,
               log_probs=(-1.0,) * is_finite, is_finite=is_finite)  # fmt: skip


def test_such_rows_have_no_gradient_and_no_say_in_the_mean_of_their_group() -> None:
    left = [row(0, 1.0), row(0, 0.0), row(0, 1.0, is_finite=False)]
    alone = [row(1, 1.0), row(1, 0.0, is_finite=False)]
    none = [row(2, 1.0, is_finite=False), row(2, 0.0, is_finite=False)]
    rows, advantages, others = chosen(Collected(rows=left + alone + none, train=(0, 1, 2)), profile_of())
    assert rows == left[:2] and advantages == [1.0, -1.0]
    assert others == [left[2], *alone, *none]
    assert chosen(Collected(rows=none, train=(2,)), profile_of()) == ([], [], none)


@pytest.mark.parametrize("kind", ["percentile", "threshold", "running"])
def test_a_minibatch_whose_entropies_cannot_be_compared_is_dropped_and_moves_no_threshold(kind: str) -> None:
    """As the trainer's own may be, where the engine tells none."""
    model, profile = tiny_model(adapter=Adapter(rank=2)), profile_of({"updates_per_step": 2}, entropy_mask=kind)
    rows = rows_of(model)
    rows[0] = msgspec.structs.replace(rows[0], entropies=(math.nan,) * len(rows[0].entropies))
    mask, expected = EntropyMask(profile.grpo), EntropyMask(profile.grpo)
    prepared = prepare(model, profile, rows, advantages_of(rows, profile), [], mask, SIZES)
    assert [one.is_finite for one in prepared.minibatches] == [False, True]
    good = [rows[i] for i in prepared.minibatches[1].rows]
    expected.select(torch.cat([torch.tensor(one.entropies) for one in good]), [len(one.entropies) for one in good])
    assert mask.threshold == expected.threshold

    update = update_of(model, profile)
    steps: list[int] = []
    step = update._optimizer.step
    update._optimizer.step = lambda: steps.append(1) or step()  # type: ignore[func-returns-value, method-assign]
    is_finite, metrics = update.apply(1, 1e-2, rows, advantages_of(rows, profile))
    assert not is_finite and steps == [1] and math.isfinite(metrics["loss"])
    assert all(bool(torch.isfinite(one).all()) for one in model.parameters())


def test_a_minibatch_that_was_dropped_is_in_no_metric_and_the_next_one_tells_how_far_off_the_engine_is() -> None:
    model = tiny_model(adapter=Adapter(rank=2))
    profile = profile_of({"updates_per_step": 2}, old_source="rollout")
    rows = rows_of(model, shift=0.5)
    update = update_of(model, profile)
    looked: list[tuple[float, float]] = []
    update.source.look = lambda mean, largest: looked.append((mean, largest))  # type: ignore[method-assign]
    advantages = [math.nan, *advantages_of(rows, profile)[1:]]
    is_finite, metrics = update.apply(1, 1e-2, rows, advantages)
    assert not is_finite and all(map(math.isfinite, metrics.values()))
    assert looked == [(metrics["mismatch_mean"], metrics["mismatch_max"])] and metrics["mismatch_tokens"] > 0


def test_a_trainer_whose_scores_are_nan_drops_the_step() -> None:
    model = tiny_model(adapter=Adapter(rank=2))
    profile = profile_of(entropy_mask="percentile", low_entropy_kl=0.1)
    rows = [msgspec.structs.replace(one, entropies=()) for one in rows_of(model)]
    with torch.no_grad():
        model.lm_head.weight[3] = math.nan
    assert torch.isnan(score_rows(model, rows, 1.0, SIZES).entropies[0]).all()
    before = {name: one.clone() for name, one in model.named_parameters() if one.requires_grad}
    assert before
    is_finite, _ = update_of(model, profile).apply(1, 1e-2, rows, advantages_of(rows, profile))
    assert not is_finite
    assert all(torch.equal(one, before[name]) for name, one in model.named_parameters() if name in before)


# --- the worker -------------------------------------------------------------------------------------------------------


def breaking(problems: Path, **run: Any) -> Profile:
    """Its first update makes weights of which nothing can be computed any more, though each is a number."""
    profile = worker.profile_of(problems, optimizer=Optimizer(learning_rate=1e30, warmup_steps=0), adapter=Adapter())
    profile = msgspec.structs.replace(profile, grpo=msgspec.structs.replace(profile.grpo, kl_coef=0.0))
    return msgspec.structs.replace(profile, run=msgspec.structs.replace(profile.run, **run))


def read(path: Path) -> list[dict[str, Any]]:
    """As strict JSON: no NaN, and null in no field of a row."""
    lines = path.read_bytes().splitlines()
    header = msgspec.json.decode(lines[0], type=rollout_file.Header)
    found = rollout_file.read(path, header)
    assert found is not None and all(value is not None for one in found[:-1] for value in one.values())
    assert all(None not in one["log_probs"] and None not in one["entropies"] for one in found[:-1])
    return found


def test_a_policy_broken_by_an_update_ends_the_attempt_with_its_own_code_and_so_does_each_replay(
    tmp_path: Path, problems: Path
) -> None:
    profile = breaking(problems)
    head = worker.checkpoint_of(worker.trained(tmp_path, profile))
    for attempt in (1, 2):
        result = worker.do(h.make_spec(tmp_path, profile, head=head, end_step=9, attempt=attempt))
        assert result.exit_code == ExitCode.NOT_FINITE and result.checkpoint == head, result.error
        assert "not finite 3 times in a row; the rollouts are in cycles/0001/rollouts" in result.error
        assert "optimizer.learning_rate" in result.advice
        directory = tmp_path / f"cycles/0001/attempt-{attempt}"
        assert [one.data["in_row"] for one in h.events_at(directory, "not_finite")] == [1, 2, 3]
        counts = [one.data["rollouts_not_finite"] for one in h.events_at(directory, "step")]
        assert counts[0] == 0 and all(count > 0 for count in counts[1:]) and len(counts) == 4
        assert any("not finite" in one.data["text"] for one in h.events_at(directory, "warning"))
    records = [Collected.of(read(tmp_path / f"cycles/0001/rollouts/step-{n:06d}.jsonl")) for n in range(1, 5)]
    assert [any(row.is_finite for row in one.rows) for one in records] == [True, False, False, False]
    good = msgspec.structs.replace(profile, optimizer=Optimizer(learning_rate=1e-3, warmup_steps=0))
    result = worker.do(h.make_spec(tmp_path, good, head=head, end_step=3, attempt=3))
    assert result.outcome is Outcome.DONE, result.error  # another learning rate, as advised


@pytest.mark.parametrize("every", [1, 100], ids=["a checkpoint after each step", "at the end of the cycle"])
def test_a_policy_that_gives_no_finite_number_is_never_the_head(tmp_path: Path, problems: Path, every: int) -> None:
    profile = breaking(problems, checkpoint_every=every)
    head = worker.checkpoint_of(worker.trained(tmp_path, profile))
    result = worker.do(h.make_spec(tmp_path, profile, head=head, end_step=3))
    assert result.exit_code == ExitCode.NOT_FINITE
    assert "step 2: log-probs of all rollouts were not finite, and such a policy is never saved" in result.error
    assert result.checkpoint is not None and result.checkpoint.step == (1 if every == 1 else 0)


def test_one_rollout_of_many_costs_itself_and_its_step_counts(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real engine's rollouts; the first of a step gets a NaN among its log-probs, the second among its entropies."""
    profile, asked = worker.profile_of(problems), Asker.rollouts
    head = worker.checkpoint_of(worker.trained(tmp_path, profile))
    calls: list[int] = []

    def spoiled(self: Asker, *given: Any) -> list[list[Rollout]]:
        groups = asked(self, *given)
        calls.append(len(calls))
        if calls == [0]:
            first, second, *rest = groups[0]
            groups[0] = [replace(first, log_probs=(math.nan, *first.log_probs[1:])),
                         replace(second, entropies=(math.nan, *second.entropies[1:])), *rest]  # fmt: skip
        return groups

    monkeypatch.setattr(Asker, "rollouts", spoiled)
    spec = h.make_spec(tmp_path, profile, head=head, end_step=3)
    result = worker.do(spec)
    assert result.outcome is Outcome.DONE, result.error
    first, second = (one.data for one in h.events_of(spec, "step"))
    assert (first["rollouts_not_finite"], second["rollouts_not_finite"]) == (2, 0)
    assert first["grad_norm"] > 0 and first["rollouts_kept"] > 0 and not first["update_skipped"]
    assert [one.data["in_row"] for one in h.events_of(spec, "not_finite")] == [1]
    (said,) = [one.data["text"] for one in h.events_of(spec, "warning") if "finite" in one.data["text"]]
    assert said == "rollouts with log-probs or entropies that are not finite, and not trained on: 2"
    rows = read(tmp_path / "cycles/0001/rollouts/step-000001.jsonl")[:-1]
    assert [one.get("is_finite", True) for one in rows].count(False) == 2
    stored = tmp_path / worker.checkpoint_of(result).path / "progress.json"
    assert json.loads(stored.read_text())["not_finite_in_row"] == 0
