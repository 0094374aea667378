"""If a step has one update, its own forward pass supplies the trainer's old log-probs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from profiles.passes import is_scored
from profiles.schema import Adapter
from tests.workers.grpo.small import Hook, advantages_of, profile_of, rows_of, tiny_model, update_of
from workers.grpo import prepare
from workers.grpo.rows import Row

LORA = Adapter(rank=4, alpha=8.0, targets=("q_proj", "v_proj"))


def applied(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, is_scored_first: bool
) -> tuple[int, dict[str, float], dict[str, torch.Tensor]]:
    """Forward passes, metrics and the weights after a step with an engine that is off by up to .4 nats."""
    model, profile = tiny_model(adapter=LORA), profile_of(old_source="trainer", **options)
    rows = rows_of(model, shift=0.4)
    passes = Hook()
    model.model.register_forward_pre_hook(passes)
    with monkeypatch.context() as patch:
        if is_scored_first:
            patch.setattr(prepare, "is_one_pass", lambda *_: False)
        _, metrics = update_of(model, profile).apply(1, 1e-2, rows, advantages_of(rows, profile))
    trained = {name: one.detach() for name, one in model.named_parameters() if one.requires_grad}
    return passes.calls, metrics, trained


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"tis_mode": "token_mask"}, id="tokens masked"),
        pytest.param({"norm": "sequence", "kl_coef": 0.1}, id="kl"),
        pytest.param({"ratio_cap": 1.5, "advantage": "rloo"}, id="capped ratio"),
    ],
)
def test_the_step_is_that_of_a_pass_before(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first, expected, moved = applied(options, monkeypatch, is_scored_first=True)
    passes, metrics, found = applied(options, monkeypatch, is_scored_first=False)
    assert passes == first - 1
    assert metrics == pytest.approx(expected, abs=1e-5)
    assert metrics["ratio_mean"] == 1 and metrics["mismatch_mean"] > 0.1 and metrics["tis_weight"] != 1
    for name, one in moved.items():
        torch.testing.assert_close(found[name], one, rtol=1e-5, atol=1e-6)


def test_under_a_mask_too_where_differences_are_told_of_the_kept_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"entropy_mask": "percentile", "entropy_keep": 0.4}
    first, expected, moved = applied(options, monkeypatch, is_scored_first=True)
    passes, metrics, found = applied(options, monkeypatch, is_scored_first=False)
    assert passes == first - 1
    for name in ("loss", "grad_norm", "entropy", "entropy_kept", "kept_tokens", "ratio_mean"):
        assert metrics[name] == pytest.approx(expected[name], abs=1e-5), name
    assert metrics["mismatch_max"] <= expected["mismatch_max"] + 1e-6
    for name, one in moved.items():
        torch.testing.assert_close(found[name], one, rtol=1e-5, atol=1e-6)


def without_entropies(rows: list[Row]) -> list[Row]:
    return [replace(row, entropies=()) for row in rows]


@pytest.mark.parametrize(
    ("optimizer", "options", "is_told", "expected"),
    [
        pytest.param({}, {}, True, True, id="one update"),
        pytest.param({}, {"entropy_mask": "percentile"}, True, True, id="a mask, entropies from the engine"),
        pytest.param({}, {}, False, True, id="no entropies, and no mask"),
        pytest.param({}, {"entropy_mask": "percentile"}, False, False, id="a mask, and nobody knows the entropies"),
        pytest.param({"updates_per_step": 2}, {}, True, False, id="two minibatches"),
        pytest.param({}, {"inner_epochs": 2}, True, False, id="two epochs"),
        pytest.param({}, {"ratio_level": "sequence"}, True, False, id="a ratio of rollouts"),
        pytest.param({}, {"tis_mode": "sequence_mask"}, True, False, id="weights of rollouts"),
        pytest.param({"tis_cap": 0.0}, {}, True, False, id="no weights"),
        pytest.param(
            {}, {"low_entropy_kl": 0.1, "entropy_mask": "percentile"}, True, False, id="a covariance of all tokens"
        ),
    ],
)
def test_a_pass_is_made_first_where_an_update_wants_to_know_of_all_tokens_or_of_the_weights_before_it(
    optimizer: dict[str, Any], options: dict[str, Any], is_told: bool, expected: bool
) -> None:
    profile, rows = profile_of(optimizer, **options), rows_of(tiny_model())
    assert prepare.is_one_pass(profile, rows if is_told else without_entropies(rows)) is expected


@pytest.mark.parametrize(
    ("optimizer", "options", "is_read"),
    [
        pytest.param({}, {}, False, id="one update"),
        pytest.param({}, {"entropy_mask": "percentile"}, False, id="a mask, entropies from the engine"),
        pytest.param({}, {"kl_coef": 0.1}, True, id="a reference"),
        pytest.param({"updates_per_step": 2}, {}, True, id="two minibatches"),
        pytest.param({"updates_per_step": 2}, {"old_source": "detach"}, False, id="two minibatches, no old log-probs"),
        pytest.param({}, {"inner_epochs": 2}, True, id="two epochs"),
        pytest.param({}, {"ratio_level": "sequence"}, True, id="a ratio of rollouts"),
    ],
)
def test_the_plan_counts_a_phase_of_scoring_where_the_worker_reads_without_gradient(
    optimizer: dict[str, Any], options: dict[str, Any], is_read: bool
) -> None:
    model, profile = tiny_model(adapter=LORA), profile_of(optimizer, **({"old_source": "trainer"} | options))
    rows = rows_of(model)
    reads: list[bool] = []
    model.model.register_forward_pre_hook(lambda *_: reads.append(not torch.is_grad_enabled()))
    update_of(model, profile).apply(1, 1e-2, rows, advantages_of(rows, profile))
    assert reads and any(reads) == is_scored(profile) == is_read
