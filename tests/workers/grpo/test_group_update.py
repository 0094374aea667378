"""Acceptance rows of the update: rollouts to gradients through the fused head, whatever the size of micro-batches."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from profiles.schema import Adapter
from tests.workers.grpo.small import (
    SIZES,
    Hook,
    advantages_of,
    gradients,
    prepared_of,
    profile_of,
    rows_of,
    tiny_model,
    update_of,
    whole,
)  # fmt: skip
from tests.workers.loss.fused_cases import Allocations
from tests.workers.reads import Reads
from workers.grpo.entropy import EntropyMask
from workers.grpo.prepare import Prepared, importance_weights, prepare
from workers.grpo.rows import Row
from workers.grpo.scoring import Sizes, score_rows
from workers.models import recompute
from workers.models.adapters import disabled

pytestmark = pytest.mark.usefixtures("one_thread")

LORA = Adapter(rank=4, alpha=8.0, targets=("q_proj", "k_proj", "v_proj", "o_proj"))


def plain_log_probs(model: Any, row: Row) -> torch.Tensor:
    """The definition: one sequence by itself, no packing, no fused head."""
    ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
    logits = model(ids).logits[0]
    log_p = torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), -1)
    first, own = len(row.prompt_ids) - 1, row.is_own or (True,) * len(row.completion_ids)
    return torch.stack([log_p[first + place, token] for place, token in enumerate(row.completion_ids) if own[place]])


def plain_loss(model: Any, prepared: Prepared, profile: Any) -> torch.Tensor:
    """Sections 1.4 to 1.7 word by word, over separate sequences."""
    knobs, minibatch = profile.optimizer, whole(prepared)
    total = torch.zeros(())
    for place, weight in zip(minibatch.rows, minibatch.weights, strict=True):
        row, a = prepared.rows[place], prepared.advantages[place]
        new, old = plain_log_probs(model, row), prepared.old[place]
        weight_of_tokens = 1.0 if prepared.tis is None else prepared.tis[place]
        if prepared.tis_cap:  # `old` is the engine's
            r = (new.detach() - old).exp()
            is_masked = profile.grpo.variants.tis_mode == "token_mask"
            weight_of_tokens = r * (r <= prepared.tis_cap) if is_masked else r.clamp(max=prepared.tis_cap)
        if profile.grpo.old_source == "detach" or prepared.tis_cap:
            old = new.detach()
        ratio = (new - old).exp()
        if profile.grpo.variants.ratio_level == "sequence":
            ratio = (new - old).mean().exp().expand(len(new))
        bounded = ratio.clamp(1 - knobs.clip_ratio_low, 1 + knobs.clip_ratio_high)
        cap = profile.grpo.variants.ratio_cap or 1e9
        loss = -torch.minimum(ratio.clamp(max=cap) * a, bounded * a)
        loss = loss * weight_of_tokens
        if minibatch.keep is not None:
            loss = loss * minibatch.keep[place]
        if prepared.ref is not None:
            delta = prepared.ref[place] - new
            kl = delta.exp() - delta - 1
            if profile.grpo.variants.kl_tokens == "selected" and minibatch.keep is not None:
                kl = kl * minibatch.keep[place]
            loss = loss + profile.grpo.kl_coef * kl
            if minibatch.kl_weights is not None:
                loss = loss + minibatch.kl_weights[place] * (delta.exp() - delta - 1)
        total = total + loss.sum() * weight
    return total


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask": {"entropy_mask": "percentile", "entropy_keep": 0.4},
    "mask, divided by what it keeps": {"entropy_mask": "percentile", "mask_norm": "selected", "norm": "sequence"},
    "sequence": {"norm": "sequence", "advantage": "mean_only"},
    "constant": {"norm": "constant", "advantage": "rloo"},
    "kl": {"kl_coef": 0.1},
    "kl and mask": {"kl_coef": 0.1, "entropy_mask": "threshold", "entropy_threshold": 4.4},
    "kl of what the mask keeps": {"kl_coef": 0.1, "entropy_mask": "percentile", "kl_tokens": "selected"},
    "kl of what the mask drops": {
        "low_entropy_kl": 0.2,
        "low_entropy_cov_share": 0.5,
        "low_entropy_cov_kl": 0.7,
        "entropy_mask": "percentile",
    },
    "kl of what it drops, ratios of rollouts": {
        "low_entropy_kl": 0.2,
        "entropy_mask": "percentile",
        "kl_coef": 0.1,
        "kl_tokens": "selected",
        "ratio_level": "sequence",
    },
    "trainer's numbers, weighed": {"old_source": "trainer"},
    "trainer's numbers, tokens masked": {"old_source": "trainer", "tis_mode": "token_mask"},
    "capped ratio": {"ratio_cap": 1.25},
    "a ratio of 1": {"old_source": "detach"},
    "one ratio for a rollout": {"ratio_level": "sequence", "kl_coef": 0.1, "entropy_mask": "percentile"},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_loss_and_gradients_are_those_of_the_formulas(options: dict[str, Any]) -> None:
    model, profile = tiny_model(adapter=LORA), profile_of(**options)
    with torch.no_grad():  # an adapter that says something, so that the KL is not zero
        for name, one in model.named_parameters():
            if "lora_B" in name:
                one.normal_(std=0.05)
    rows = rows_of(model, shift=0.4)
    prepared = prepared_of(model, rows, profile)
    loss, _ = update_of(model, profile).accumulate(prepared, whole(prepared))
    found = gradients(model)
    model.zero_grad(set_to_none=True)
    expected = plain_loss(model, prepared, profile)
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    for name, one in gradients(model).items():
        torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("sizes", [Sizes(64, 64, 64), Sizes(2, 24, 3)], ids=["one pass", "many"])
def test_what_an_environment_says_is_read_but_is_in_no_loss_nor_kl_nor_mask(
    options: dict[str, Any], sizes: Sizes
) -> None:
    """Against float64, over each conversation by itself."""
    model, profile = tiny_model(adapter=LORA), profile_of(**options)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "lora_B" in name:
                one.normal_(std=0.05)
    rows = rows_of(model, shift=0.4, turns=True)
    assert any(not all(row.is_own) for row in rows)
    prepared = prepared_of(model, rows, profile, sizes)
    loss, _ = update_of(model, profile, sizes).accumulate(prepared, whole(prepared))
    found = gradients(model)
    model.zero_grad(set_to_none=True)
    exact = copy.deepcopy(model).double()
    expected = plain_loss(exact, prepared, profile)
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    for name, one in gradients(exact).items():
        torch.testing.assert_close(found[name].double(), one, rtol=1e-4, atol=1e-6)
    assert sum(map(len, prepared.old)) == sum(row.num_own for row in rows)


@pytest.mark.parametrize("rollouts, row_tokens, head_rows", [(1, 8, 64), (2, 64, 7), (3, 24, 1), (4, 200, 64)])
@pytest.mark.parametrize("options", [{}, VARIANTS["mask"]], ids=["plain", "mask"])
def test_row_13_micro_batches_of_any_size_and_any_order_of_rows_give_the_same_gradients(
    rollouts: int, row_tokens: int, head_rows: int, options: dict[str, Any]
) -> None:
    model, profile = tiny_model(), profile_of(**options)
    rows = rows_of(model, shift=0.4)
    expected = _gradients_with(model, profile, rows, Sizes(64, 64, 64))
    for order in (rows, rows[::-1]):
        found = _gradients_with(model, profile, order, Sizes(rollouts, row_tokens, head_rows))
        for name, one in expected.items():
            assert (found[name] - one).norm() <= 1e-6 * one.norm() + 1e-8, name


@pytest.mark.parametrize(
    "mode, expected",
    [
        ("token_truncate", [1.0, 1.5, 2.0]),
        ("token_mask", [1.0, 1.5, 0.0]),
        ("sequence_mask", [0.0, 0.0, 0.0]),
    ],
)
def test_row_16_importance_weights_over_the_cap(mode: str, expected: list[float]) -> None:
    old = torch.tensor([0.0, math.log(1.5), math.log(5.0)], requires_grad=True)
    (weights,) = importance_weights([old], [torch.zeros(3)], 2.0, mode)
    assert weights.tolist() == pytest.approx(expected) and not weights.requires_grad
    (whole_,) = importance_weights([old[:2]], [torch.zeros(2)], 2.0, "sequence_mask")
    assert whole_.tolist() == pytest.approx([1.5, 1.5])


def _gradients_with(model: Any, profile: Any, rows: list[Row], sizes: Sizes) -> dict[str, torch.Tensor]:
    update = update_of(model, profile, sizes)
    prepared = prepared_of(model, rows, profile, sizes)
    update.accumulate(prepared, whole(prepared))
    found = gradients(model)
    model.zero_grad(set_to_none=True)
    return found


def test_row_4_a_prompt_is_in_no_loss_and_row_5_the_stop_token_is() -> None:
    model, profile = tiny_model(), profile_of()
    rows = rows_of(model, groups=2)
    seen: list[torch.Tensor] = []

    def watch(module: Any, given: Any, out: torch.Tensor) -> None:
        if out.requires_grad:
            out.retain_grad()
            seen.append(out)

    handle = model.model.norm.register_forward_hook(watch)
    prepared = prepared_of(model, rows, profile)
    seen.clear()
    update_of(model, profile).accumulate(prepared, whole(prepared))
    handle.remove()
    touched = sum(int((one.grad.abs().sum(-1) > 0).sum()) for one in seen)
    # The last prompt token predicts the first token of all its completions: one place for each group and micro-batch.
    assert touched == sum(len(row.completion_ids) - 1 for row in rows) + len({row.prompt_ids for row in rows})
    only_stop = [replace(row, completion_ids=(1,), log_probs=row.log_probs[-1:], entropies=()) for row in rows]
    prepared = prepared_of(model, only_stop, profile)
    update_of(model, profile).accumulate(prepared, whole(prepared))
    assert all(row.completion_ids[-1] == 1 for row in rows)
    assert any(one.norm() > 0 for one in gradients(model).values())


def test_row_9_the_first_ratio_is_1_and_row_10_the_second_is_what_the_weights_say() -> None:
    model = tiny_model(adapter=LORA)
    profile = profile_of({"updates_per_step": 2, "learning_rate": 1e-2})
    rows = rows_of(model)
    ratios: list[float] = []
    old: list[torch.Tensor] = []
    update = update_of(model, profile)
    accumulate = update.accumulate

    def watched(prepared: Prepared, minibatch: Any) -> Any:
        with torch.no_grad():
            mine = [prepared.rows[i] for i in minibatch.rows]
            expected = torch.cat([(plain_log_probs(model, r) - torch.tensor(r.log_probs)).exp() for r in mine])
        loss, found = accumulate(prepared, minibatch)
        old[:] = old or [one.clone() for one in prepared.old]
        assert all(map(torch.equal, old, prepared.old))  # also while the second minibatch is trained
        tokens = sum(one.tokens for one in found)
        assert sum(one.ratio for one in found) / tokens == pytest.approx(float(expected.mean()), abs=1e-6)
        assert max(one.ratio_max for one in found) == pytest.approx(float(expected.max()), abs=1e-5)
        ratios.append(float((expected - 1).abs().max()))
        return loss, found

    update.accumulate = watched  # type: ignore[method-assign]
    is_finite, metrics = update.apply(1, 1e-2, rows, advantages_of(rows, profile))
    assert is_finite and len(ratios) == 2
    assert ratios[0] <= 1e-4 and ratios[1] > 1e-3
    assert [one.tolist() for one in old] == [pytest.approx(row.log_probs) for row in rows]
    assert metrics["ratio_max"] > 1


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_fewer_groups_may_be_left_out_than_there_are_updates(left: int) -> None:
    """All tokens of the step are in one divisor or another."""
    model = tiny_model(adapter=LORA)
    profile = profile_of({"updates_per_step": 2}, denominator="all")
    rows = rows_of(model)
    kept = [row for row in rows if row.group >= left]
    others = [row for row in rows if row.group < left]
    parts = prepare(model, profile, kept, advantages_of(kept, profile), others, EntropyMask(profile.grpo), SIZES)
    tokens = sum(len(row.completion_ids) for row in rows)
    assert sum(1 / one.weights[0] for one in parts.minibatches) == pytest.approx(tokens)


def test_several_epochs_go_on_against_the_same_old_numbers() -> None:
    model = tiny_model(adapter=LORA)
    profile = profile_of({"updates_per_step": 2}, inner_epochs=3)
    update = update_of(model, profile)
    norms: list[float] = []
    step = update._optimizer.step
    update._optimizer.step = lambda: norms.append(1.0) or step()  # type: ignore[func-returns-value, method-assign]
    rows = rows_of(model)
    _, metrics = update.apply(1, 5e-2, rows, advantages_of(rows, profile))
    assert len(norms) == 6
    assert metrics["clip_fraction"] > 0  # the later epochs left the clip's range


@pytest.mark.parametrize("kind", ["peft", "own"])
def test_row_14_the_kl_of_a_new_adapter_is_zero_and_row_15_disabling_it_gives_the_base(kind: Any) -> None:
    model = tiny_model(adapter=Adapter(rank=4, alpha=8.0, targets=("q_proj", "v_proj"), implementation=kind))
    base, profile = tiny_model(), profile_of(kl_coef=0.5)
    rows = rows_of(model)
    prepared = prepared_of(model, rows, profile)
    _, found = update_of(model, profile).accumulate(prepared, whole(prepared))
    assert sum(one.kl for one in found) == 0.0
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "lora_B" in name:
                one.normal_(std=0.1)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        moved = model(ids).logits
        with disabled(model):
            assert torch.equal(model(ids).logits, base(ids).logits)
        assert torch.equal(model(ids).logits, moved)
        assert not torch.equal(moved, base(ids).logits)


def test_row_20_no_tensor_of_a_step_comes_near_all_logits() -> None:
    vocabulary = 1031
    model = tiny_model(vocabulary=vocabulary, adapter=LORA)
    profile = profile_of(entropy_mask="percentile", kl_coef=0.1, old_source="trainer")
    rows = rows_of(model, groups=8, size=8)
    update = update_of(model, profile, Sizes(64, 64, 16))
    tokens = sum(len(row.completion_ids) for row in rows)
    with Allocations() as seen:
        update.apply(1, 1e-3, rows, advantages_of(rows, profile))
    assert seen.largest < tokens * vocabulary / 2
    assert tokens > 200


@pytest.mark.parametrize("is_eval", [True, False])
def test_row_24_each_layer_runs_twice_with_checkpointing_also_after_eval(is_eval: bool) -> None:
    model, profile = tiny_model(adapter=LORA), profile_of()
    rows = rows_of(model)
    prepared = prepared_of(model, rows, profile)
    update_of(model, profile).accumulate(prepared, whole(prepared))
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    recompute.enable(model)
    if is_eval:
        model.eval()
    counts = [Hook() for _ in model.model.layers]
    for layer, count in zip(model.model.layers, counts, strict=True):
        layer.self_attn.register_forward_pre_hook(count)
    update = update_of(model, profile)
    update.accumulate(prepared, whole(prepared))
    assert [count.calls for count in counts] == [2, 2]
    for name, one in expected.items():
        torch.testing.assert_close(gradients(model)[name], one, rtol=1e-6, atol=1e-6)


def test_numbers_that_are_not_finite_drop_the_minibatch_and_keep_the_rest() -> None:
    model = tiny_model(adapter=LORA)
    profile = profile_of({"updates_per_step": 2})
    rows = rows_of(model)
    rows[0] = replace(rows[0], log_probs=(math.nan,) * len(rows[0].log_probs))
    before = {name: one.clone() for name, one in model.named_parameters()}
    update = update_of(model, profile)
    is_finite, _ = update.apply(1, 1e-2, rows, advantages_of(rows, profile))
    assert not is_finite
    assert all(torch.isfinite(one).all() for one in model.parameters())
    assert any(not torch.equal(one, before[name]) for name, one in model.named_parameters())  # the second one


def test_a_mask_that_keeps_nothing_of_a_micro_batch_is_no_matter() -> None:
    model, profile = tiny_model(), profile_of(entropy_mask="threshold", entropy_threshold=50.0)
    rows = rows_of(model, groups=1)
    prepared = prepared_of(model, rows, profile)
    loss, found = update_of(model, profile).accumulate(prepared, whole(prepared))
    assert loss == 0.0 and sum(one.tokens for one in found) == 0


def test_scores_are_those_of_separate_sequences() -> None:
    model = tiny_model()
    rows = rows_of(model)
    scores = score_rows(model, rows, 1.0, Sizes(3, 16, 5))
    with torch.no_grad():
        for row, log_probs in zip(rows, scores.log_probs, strict=True):
            torch.testing.assert_close(log_probs, plain_log_probs(model, row), rtol=0, atol=1e-5)


def test_no_pass_waits_for_the_numbers_of_the_pass_before_it() -> None:
    model, profile = tiny_model(adapter=LORA), profile_of()
    rows = rows_of(model)
    found = []
    for rollouts in (len(rows), 1):
        sizes = Sizes(rollouts, 64, 512)
        prepared = prepared_of(model, rows, profile, sizes)
        update = update_of(model, profile, sizes)
        with Reads() as reads:
            update.accumulate(prepared, whole(prepared))
        found.append(reads.count)
    assert found[0] == found[1]
