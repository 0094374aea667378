"""Rollouts that take several steps: what draws each segment, when a group is trained on, what a resume keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from profiles.footprint import rollouts_held, rollouts_of
from profiles.schema import Data, Grpo, Profile, Sampling
from tests.workers import harness as h
from tests.workers.grpo.small import (
    advantages_of,
    prepared_of,
    rows_of,
    sums,
    tiny_model,
    write_problems,
)
from tests.workers.grpo.small import profile_of as small_profile
from tests.workers.grpo.test_grpo_worker import (
    checkpoint_of,
    do,
    leave_torch_as_it_was,
    metrics_of,
    plain_profile,
    trained,
)
from tests.workers.torch_settings import torch_as_it_was
from workers.contract import Outcome
from workers.grpo.prepare import corrected
from workers.grpo.rows import Collected, Part, Row
from workers.rollout.engine import Rollout

__all__ = ["leave_torch_as_it_was"]

LONGEST, SEGMENT, STEPS = 8, 2, 6


def profile_of(path: Path, **changes: Any) -> Profile:
    knobs = {"segment_tokens": SEGMENT, "random_rewards": True, "groups_per_step": 4, "group_size": 4}
    changes = {"sampling": Sampling(max_prompt_tokens=16, max_completion_tokens=LONGEST)} | changes
    found = plain_profile(path, **changes)
    variants = replace(found.grpo.variants, random_rewards=knobs.pop("random_rewards"))
    run = replace(found.run, seed=1)  # with which some rollouts end early: one token in 259 ends one
    return replace(found, run=run, grpo=replace(found.grpo, variants=variants, **knobs))


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_problems(tmp_path_factory.mktemp("problems") / "sums.jsonl", sums(40))


@pytest.fixture(scope="module")
def stepwise(tmp_path_factory: pytest.TempPathFactory, problems: Path) -> Iterator[Path]:
    """A run with a checkpoint after each step, each step in an attempt of its own."""
    with torch_as_it_was():
        root = tmp_path_factory.mktemp("segments") / "run"
        trained(root, profile_of(problems), *range(1, STEPS + 1))
        yield root


def collected(root: Path, step: int) -> Collected:
    (path,) = root.glob(f"cycles/*/rollouts/step-{step:06d}.jsonl")
    return Collected.of([json.loads(line) for line in path.read_text().splitlines()[1:-1]])


def model_before(root: Path, step: int) -> Any:
    """Plain transformers' model of the checkpoint that `step` began with."""
    from transformers import AutoModelForCausalLM

    (directory,) = root.glob(f"checkpoints/*s{step - 1:06d}*")
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@torch.no_grad()
def log_probs_of(model: Any, row: Row) -> torch.Tensor:
    """Of all its tokens."""
    ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
    found = torch.log_softmax(model(ids).logits[0].double(), -1)
    places = range(len(row.prompt_ids) - 1, ids.shape[1] - 1)
    return torch.stack([found[place, token] for place, token in zip(places, row.completion_ids, strict=True)])


def test_each_token_keeps_the_log_prob_of_the_policy_that_drew_it(stepwise: Path) -> None:
    models = {step: model_before(stepwise, step) for step in range(1, STEPS + 1)}
    moved = 0.0
    for step in range(1, STEPS + 1):
        for row in collected(stepwise, step).rows:
            ends = [0, *accumulate(row.segments)]
            for back, (begin, end) in enumerate(zip(reversed(ends[:-1]), reversed(ends[1:]), strict=True)):
                own = log_probs_of(models[step - back], row)[begin:end]
                torch.testing.assert_close(torch.tensor(row.log_probs[begin:end]).double(), own, atol=1e-4, rtol=0)
                now = log_probs_of(models[step], row)[begin:end]
                moved = max(moved, float((now - own).abs().max()) if end > begin else 0.0)
    assert moved > 1e-2  # or any policy's would have done


def test_no_rollout_is_lost_and_each_ends_by_itself_or_at_the_longest_length(stepwise: Path) -> None:
    begun = ended = early = 0
    for step in range(1, STEPS + 1):
        found = collected(stepwise, step)
        begun, ended = begun + 4, ended + len({row.group for row in found.rows})
        assert begun == ended + len(found.waiting)
        for row in found.rows:
            assert sum(row.segments) == len(row.completion_ids) == len(row.log_probs)
            assert (row.finish_reason == "length") == (len(row.completion_ids) == LONGEST)
            early += row.segments[-1] == 0
    assert ended and early  # some rollouts ended in an earlier step than their group


def test_the_first_step_that_ends_no_group_changes_nothing_and_is_sound(stepwise: Path) -> None:
    steps = metrics_of(stepwise)
    assert steps[0]["groups"] == 0 and steps[0]["update_skipped"] == 1 and steps[0]["groups_waiting"] == 4
    assert all(one["groups_waiting"] == 12 for one in steps[3:])
    trained_in = [one for one in steps if not one["update_skipped"]]
    assert trained_in and all(0 < one["older_share"] < 1 for one in trained_in)


def test_a_run_in_parts_ends_in_the_same_bits_with_the_same_metrics(
    stepwise: Path, tmp_path: Path, problems: Path
) -> None:
    trained(tmp_path / "whole", profile_of(problems), STEPS)
    assert metrics_of(tmp_path / "whole") == metrics_of(stepwise)
    ends = [next(root.glob(f"checkpoints/*s{STEPS:06d}*")) for root in (tmp_path / "whole", stepwise)]
    names = sorted(path.name for path in ends[0].iterdir() if path.name != "MANIFEST.json")
    assert "waiting.json" in names
    assert [name for name in names if (ends[0] / name).read_bytes() != (ends[1] / name).read_bytes()] == []


def test_groups_that_wait_are_trained_on_after_the_last_problem(tmp_path: Path) -> None:
    path = write_problems(tmp_path / "five.jsonl", sums(5))
    profile = profile_of(path, data=Data(tasks=str(path), on_exhausted="stop"))
    seeded = checkpoint_of(trained(tmp_path / "run", profile))
    result = do(h.make_spec(tmp_path / "run", profile, head=seeded, end_step=20))
    assert result.outcome is Outcome.EXHAUSTED and result.last_step == 5
    assert sum(one["groups"] for one in metrics_of(tmp_path / "run")) == 5


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_only_tokens_of_this_policy_tell_how_far_off_the_engine_is() -> None:
    old = [torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-2.0])]
    drawn = [torch.tensor([-3.0, -1.5, -1.0]), torch.tensor([-9.0])]
    weights, metrics = corrected(old, drawn, 2.0, "token_truncate", [2, 0])
    assert metrics["mismatch_mean"] == pytest.approx(0.25) and metrics["mismatch_max"] == pytest.approx(0.5)
    assert metrics["mismatch_tokens"] == 2
    assert weights is not None
    torch.testing.assert_close(torch.cat(weights), torch.tensor([2.0, 0.5**-0.0 * 2.718281828**0.5, 1.0, 2.0]))


def test_without_a_token_of_this_policy_nothing_is_said_of_the_engine() -> None:
    _, metrics = corrected([torch.tensor([-1.0])], [torch.tensor([-3.0])], 2.0, "token_truncate", [0])
    assert [metrics[f"mismatch_{name}"] for name in ("mean", "max", "kl", "tokens")] == [0.0] * 4


def test_tokens_of_older_policies_are_weighed_and_the_ratio_is_to_the_trainer_s() -> None:
    model = tiny_model()
    profile = small_profile(segment_tokens=4)
    rows = [replace(row, segments=(len(row.completion_ids) - 1, 1)) for row in rows_of(model, shift=0.3)]
    prepared = prepared_of(model, rows, profile)
    assert prepared.tis is not None and prepared.tis_cap == 0.0
    assert prepared.metrics["mismatch_tokens"] == len(rows)
    expected = [
        torch.exp(old - torch.tensor(row.log_probs)).clamp(max=2.0) for old, row in zip(prepared.old, rows, strict=True)
    ]
    torch.testing.assert_close(torch.cat(prepared.tis), torch.cat(expected), atol=1e-5, rtol=1e-5)
    assert len(advantages_of(rows, profile)) == len(rows)


def test_an_engine_that_tells_no_entropies_may_go_on_where_one_did_that_tells_them() -> None:
    one = Rollout((1,), (5, 6), (-1.0, -1.0), "length", (0.5, 0.5))
    other = Rollout((1,), (7,), (-1.0,), "length")
    assert Part().followed_by(one).followed_by(one).entropies == (0.5,) * 4
    assert Part().followed_by(one).followed_by(other).entropies == ()
    assert Part().followed_by(other).followed_by(one).entropies == ()


def test_entropies_of_some_tokens_alone_are_computed_anew() -> None:
    model = tiny_model()
    profile = small_profile(entropy_mask="percentile")
    rows = rows_of(model)
    partly = [replace(rows[0], entropies=rows[0].entropies[:1]), *rows[1:]]
    found, expected = (prepared_of(model, some, profile).minibatches for some in (partly, rows))
    for one, other in zip(found, expected, strict=True):
        assert one.keep is not None and other.keep is not None
        assert torch.equal(torch.cat(one.keep), torch.cat(other.keep))


def test_numbers_that_are_not_finite_end_a_rollout() -> None:
    part = Part().followed_by(Rollout((1,), (5, 6), (-1.0, float("nan")), "length"))
    assert not part.goes_on(8) and not part.rollout((1,)).is_finite


@pytest.mark.parametrize(
    ("finish_reason", "tokens", "expected"), [("length", 4, True), ("length", 8, False), ("stop", 4, False)]
)
def test_a_rollout_goes_on_until_it_ends_or_is_as_long_as_it_may_be(
    finish_reason: Any, tokens: int, expected: bool
) -> None:
    rollout = Rollout((1,), (5,) * tokens, (-1.0,) * tokens, finish_reason)
    assert Part().followed_by(rollout).goes_on(8) is expected


# --- profile ---------------------------------------------------------------------------------------------------------


def test_a_step_holds_the_rollouts_of_all_steps_that_one_may_take() -> None:
    profile = Profile(name="x", grpo=Grpo(groups_per_step=4, group_size=8, segment_tokens=24))
    profile = replace(profile, run=replace(profile.run, worker="grpo"))
    assert (rollouts_of(profile), rollouts_held(profile)) == (4 * 8, 4 * 8 * 4)  # of 96 tokens
