"""Truncated importance sampling: the weights by hand, against double precision, and through a whole update."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from profiles.schema import Model, Optimizer, Profile, Sampling
from tests.workers.rollout.models import REQUESTS, direct_log_probs, tiny_model
from workers.azr.importance import correct
from workers.azr.rows import Row
from workers.azr.update import PolicyUpdate, Sums
from workers.loss.policy import truncated_importance_weights
from workers.rollout import engine
from workers.rollout.engine import Rollout
from workers.rollout.native import NativeEngine
from workers.rollout.select import tis_cap_of

MODEL = tiny_model()
KNOBS = Optimizer(learning_rate=1e-3, warmup_steps=0, row_tokens=64, updates_per_step=2)


@pytest.mark.parametrize(
    ("difference", "weight"), [(0.0, 1.0), (math.log(1.5), 1.5), (math.log(5), 2.0), (-3.0, math.exp(-3)), (900.0, 2.0)]
)
def test_weights_by_hand(difference: float, weight: float) -> None:
    old = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    found = truncated_importance_weights(old, old.detach() - difference, 2.0)
    assert found.item() == pytest.approx(weight)
    assert not found.requires_grad


@given(st.lists(st.tuples(st.floats(-60, 0), st.floats(-60, 0)), min_size=1, max_size=50), st.floats(0.1, 10))
def test_single_precision_agrees_with_double_precision(pairs: list[tuple[float, float]], cap: float) -> None:
    old, drawn = (torch.tensor(column, dtype=torch.float32) for column in zip(*pairs, strict=True))
    expected = [min(math.exp(o - d), cap) for o, d in zip(old.tolist(), drawn.tolist(), strict=True)]
    found = truncated_importance_weights(old, drawn, cap)
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-12)


def test_a_cap_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        truncated_importance_weights(torch.zeros(1), torch.zeros(1), 0.0)


@pytest.mark.parametrize(
    ("engine_name", "cap", "expected"),
    [("native", -1, 0), ("hf", -1, 0), ("vllm", -1, 2), ("continuous", -1, 2), ("vllm", 0, 0), ("native", 3, 3)],
)
def test_who_is_corrected(engine_name: Any, cap: float, expected: float) -> None:
    profile = Profile(name="p", sampling=Sampling(engine=engine_name), optimizer=Optimizer(tis_cap=cap))
    assert tis_cap_of(profile) == expected


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"model": Model(dtype="bfloat16")}, id="bfloat16"),
        pytest.param({"model": Model(quantization="nf4")}, id="4 bits"),
        pytest.param({"sampling": Sampling(fallback=("continuous",))}, id="another engine may take over"),
    ],
)
def test_the_trainer_s_own_modules_are_corrected_where_they_round(changed: dict[str, Any]) -> None:
    assert tis_cap_of(Profile(name="p", **changed)) == 2
    assert tis_cap_of(Profile(name="p", optimizer=Optimizer(tis_cap=0), **changed)) == 0


def rows(rollouts: list[Rollout]) -> list[Row]:
    return [
        Row(task="ded", role="solve", group=0, prompt_ids=one.prompt_ids, completion_ids=one.completion_ids,
            log_probs=one.log_probs, finish_reason=one.finish_reason, reward=float(number % 2))
        for number, one in enumerate(rollouts)
    ]  # fmt: skip


def drawn(off: float = 0.0) -> list[Row]:
    """Rows of an engine whose log_probs are `off` too low at every second token."""
    found = rows(NativeEngine(MODEL).generate(REQUESTS, engine.Sampling(max_new_tokens=12)))
    return [
        replace(row, log_probs=tuple(value - off * (place % 2) for place, value in enumerate(row.log_probs)))
        for row in found
    ]


def gradient_of(update: PolicyUpdate, *arguments: Any) -> torch.Tensor:
    MODEL.zero_grad(set_to_none=True)
    update.accumulate(*arguments)
    found = torch.cat([parameter.grad.flatten() for parameter in MODEL.parameters() if parameter.grad is not None])
    MODEL.zero_grad(set_to_none=True)
    return found


def update_of(model: Any, cap: float) -> PolicyUpdate:
    return PolicyUpdate(model, torch.optim.SGD(model.parameters(), lr=0.0), KNOBS, 1.0, tis_cap=cap)


def test_the_trainer_s_log_probs_replace_the_engine_s_and_weights_tell_the_difference() -> None:
    given_rows = drawn(off=1.0)
    found = correct(MODEL, given_rows, 1.0, 2.0, micro_batch_size=2, row_tokens=64)
    few = 3 * MODEL.config.vocab_size  # of logits at one time
    again = correct(MODEL, given_rows, 1.0, 2.0, micro_batch_size=2, row_tokens=64, max_logits=few)
    assert again.metrics == pytest.approx(found.metrics, abs=1e-6)
    for row, weights in zip(found.rows, found.weights, strict=True):
        whole = Rollout(row.prompt_ids, row.completion_ids, row.log_probs, "length")
        assert row.log_probs == pytest.approx(direct_log_probs(MODEL, whole, 1.0).tolist(), abs=1e-4)
        assert weights == pytest.approx([1.0, 2.0] * (len(weights) // 2) + [1.0] * (len(weights) % 2), abs=1e-4)
    assert found.metrics["mismatch_max"] == pytest.approx(1.0, abs=1e-4)
    assert found.metrics["tis_capped"] == pytest.approx(
        sum(len(row.completion_ids) // 2 for row in given_rows) / sum(len(row.completion_ids) for row in given_rows)
    )


@pytest.mark.parametrize("cap", [2.0, 5.0, 7.0, 8.0])
def test_a_capped_weight_counts_as_capped_however_the_cap_rounds(cap: float) -> None:
    far = [replace(row, log_probs=tuple(value - 9.0 for value in row.log_probs)) for row in drawn()]
    assert correct(MODEL, far, 1.0, cap, micro_batch_size=2, row_tokens=64).metrics["tis_capped"] == 1.0


def test_an_engine_with_the_trainer_s_numbers_gets_the_gradient_of_no_correction() -> None:
    given_rows, advantages = drawn(), [1.0, -1.0, 0.5, 1.0, -0.5]
    found = correct(MODEL, given_rows, 1.0, 2.0, micro_batch_size=2, row_tokens=64)
    plain = gradient_of(update_of(MODEL, 0.0), given_rows, advantages, Sums())
    weighted = gradient_of(update_of(MODEL, 2.0), found.rows, advantages, Sums(), found.weights)
    torch.testing.assert_close(weighted, plain, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_that_of_each_token_s_loss_times_its_weight() -> None:
    given_rows, advantages = drawn(off=0.5), [1.0, -1.0, 0.5, 1.0, -0.5]
    found = correct(MODEL, given_rows, 1.0, 2.0, micro_batch_size=2, row_tokens=64)
    weighted = gradient_of(update_of(MODEL, 2.0), found.rows, advantages, Sums(), found.weights)
    # At ratio 1 the gradient of a token's loss is -advantage * weight * d log_prob.
    MODEL.zero_grad(set_to_none=True)
    total = 0.0
    for row, advantage, weights in zip(given_rows, advantages, found.weights, strict=True):
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        begin = len(row.prompt_ids)
        log_probs = torch.log_softmax(MODEL(ids).logits[0], -1)[begin - 1 : -1].gather(1, ids[0, begin:, None])[:, 0]
        total = total - advantage * (log_probs * torch.tensor(weights)).sum()
    (total / sum(len(row.completion_ids) for row in given_rows)).backward()  # type: ignore[attr-defined]
    direct = torch.cat([parameter.grad.flatten() for parameter in MODEL.parameters() if parameter.grad is not None])
    torch.testing.assert_close(weighted, direct, rtol=1e-4, atol=1e-6)


def test_rows_are_scored_once_a_step_before_its_first_update() -> None:
    model = tiny_model()
    optimiser, knobs = torch.optim.SGD(model.parameters(), lr=0.5), replace(KNOBS, learning_rate=0.5)
    update = PolicyUpdate(model, optimiser, knobs, 1.0, tis_cap=2.0)
    given_rows = drawn()
    _, metrics = update.apply(1, given_rows, [1.0, -1.0, 0.5, 1.0, -0.5])
    # After the first update the model has moved, yet the mismatch is that of the weights that drew the rows.
    assert metrics["mismatch_max"] < 1e-4
    assert metrics["tis_weight"] == pytest.approx(1.0, abs=1e-4)
    _, again = update.apply(2, given_rows, [1.0, -1.0, 0.5, 1.0, -0.5])
    assert again["mismatch_max"] > 1e-3
