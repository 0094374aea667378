"""Packing and the policy update: packed sequences are what separate ones are, and splits change nothing."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace

from profiles.azr import Azr, AzrVariants
from profiles.schema import Optimizer, Run
from tests.builders import a_profile
from tests.workers.reads import Reads
from workers.azr.replica import AzrReplica
from workers.azr.rows import Collected, Row
from workers.azr.update import PolicyUpdate, Sums, advantages_of, divisor_of, minibatches
from workers.memory.phases import unmeasured
from workers.models import optimizer, packing
from workers.models.log_probs import score
from workers.models.parallel import Single
from workers.rng import stream

pytestmark = pytest.mark.usefixtures("one_thread")

KNOBS = Optimizer(micro_batch_size=64, warmup_steps=0, learning_rate=1e-3)
SHUFFLED = Azr(variants=AzrVariants(minibatch_order="shuffle"))


@pytest.fixture
def model() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=31, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
                         tie_word_embeddings=True)  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def separate_log_probs(model: Any, prompt: tuple[int, ...], completion: tuple[int, ...]) -> torch.Tensor:
    """The definition: one sequence by itself, no mask, no packing."""
    ids = torch.tensor([[*prompt, *completion]])
    log_p = torch.log_softmax(model(ids).logits[0].float(), -1)
    return torch.stack([log_p[len(prompt) - 1 + i, token] for i, token in enumerate(completion)])


def rows_for(model: Any, count: int = 24, *, seed: int = 0) -> list[Row]:
    """Rollouts of a few prompts with the log-probabilities that the model gives them."""
    draws = Random(seed)
    prompts = [tuple(draws.randrange(31) for _ in range(draws.randint(3, 12))) for _ in range(count // 4)]
    rows = []
    for number in range(count):
        prompt = prompts[number % len(prompts)]
        completion = tuple(draws.randrange(31) for _ in range(draws.randint(1, 9)))
        with torch.no_grad():
            log_probs = tuple(separate_log_probs(model, prompt, completion).tolist())
        rows.append(
            Row(task=("abd", "ded", "ind")[number % 3], role=("propose", "solve")[number % 2], group=number % 5,
                prompt_ids=prompt, completion_ids=completion, log_probs=log_probs, finish_reason="stop",
                reward=draws.choice((1.0, -0.5)))
        )  # fmt: skip
    return rows


def gradients(model: Any, rows: list[Row], knobs: Optimizer = KNOBS) -> tuple[float, dict[str, torch.Tensor], Sums]:
    update = PolicyUpdate(model, optimizer.build(model, knobs), knobs, 1.0)
    model.zero_grad(set_to_none=True)
    sums = Sums()
    loss = update.accumulate(rows, advantages_of(rows, "cell").values, sums)
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return loss, found, sums


@pytest.mark.parametrize("row_tokens", [8, 40, 400])
def test_packed_log_probs_are_those_of_separate_sequences(model: Any, row_tokens: int) -> None:
    rows = rows_for(model)
    units = packing.units_of([r.prompt_ids for r in rows], [r.completion_ids for r in rows], row_tokens)
    pack = packing.pack(packing.rows_of(units, row_tokens))
    found = score(model, pack, 1.0).log_probs
    for number, row in enumerate(rows):
        mine = found[pack.owners == number]
        torch.testing.assert_close(mine, torch.tensor(row.log_probs), rtol=1e-4, atol=1e-5)


def test_every_rollout_is_packed_once_and_prompts_are_shared() -> None:
    prompts = [(1, 2, 3)] * 5 + [(4, 5)]
    completions = [(7,) * 4] * 6
    units = packing.units_of(prompts, completions, row_tokens=12)
    assert sorted(member for unit in units for member in unit.members) == list(range(6))
    assert [len(unit.members) for unit in units] == [3, 2, 1]
    assert all(unit.tokens <= 12 for unit in units)
    rows = [[unit] for unit in units]
    assert packing.pack(rows).ids.shape == (3, 12)


def test_micro_batches_hold_no_more_rollouts_than_allowed() -> None:
    prompts = [(number,) for number in range(10)]
    units = packing.units_of(prompts, [(1, 2)] * 10, 64)
    sizes = [sum(len(u.members) for row in batch for u in row) for batch in packing.micro_batches(units, 4, 64)]
    assert sizes == [4, 4, 2]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_the_gradient_does_not_depend_on_the_micro_batch_size(model: Any, size: int) -> None:
    rows = rows_for(model)
    loss, expected, _ = gradients(model, rows)
    split_loss, split, _ = gradients(model, rows, Optimizer(micro_batch_size=size, warmup_steps=0))
    assert split_loss == pytest.approx(loss, abs=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-3, atol=1e-6)


def test_the_gradient_is_that_of_the_loss_written_out_in_double_precision(model: Any) -> None:
    rows = rows_for(model, 12)
    advantages = advantages_of(rows, "cell").values
    loss, found, _ = gradients(model, rows)
    double = model.double()
    double.zero_grad()
    terms = []
    for row, advantage in zip(rows, advantages, strict=True):
        log_probs = separate_log_probs(double, row.prompt_ids, row.completion_ids)
        ratio = torch.exp(log_probs - torch.tensor(row.log_probs, dtype=torch.float64))
        terms.append(torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).sum())
    reference = torch.stack(terms).sum() / sum(len(row.completion_ids) for row in rows)
    reference.backward()
    assert loss == pytest.approx(reference.item(), abs=1e-5)
    for name, parameter in double.named_parameters():
        torch.testing.assert_close(found[name].double(), parameter.grad, rtol=1e-3, atol=1e-5)


def test_a9_the_divisor_is_the_number_of_tokens_of_the_whole_minibatch() -> None:
    rows = [row_of(10), row_of(90)]
    assert divisor_of(rows) == 100  # sums 10 * 1.0 and 90 * 2.0 then give 1.9, not 1.5
    assert (10 * 1.0 + 90 * 2.0) / divisor_of(rows) == 1.9
    assert divisor_of(rows, 16.0) == 32


def row_of(length: int, task: str = "abd", role: str = "solve") -> Row:
    return Row(task=task, role=role, group=0, prompt_ids=(1,), completion_ids=(1,) * length,  # type: ignore[arg-type]
               log_probs=(-1.0,) * length, finish_reason="stop", reward=0.0)  # fmt: skip


def test_a10_three_updates_are_one_for_each_task_proposals_first() -> None:
    rows = [row_of(1, task, role) for role in ("solve", "propose") for task in ("ind", "ded", "abd") for _ in range(64)]
    batches = minibatches(rows, 3)
    cells = [[(rows[i].task, rows[i].role) for i in batch] for batch in batches]
    assert cells == [[(task, "propose")] * 64 + [(task, "solve")] * 64 for task in ("abd", "ded", "ind")]


def test_a11_more_updates_than_rollouts_are_refused() -> None:
    with pytest.raises(ValueError, match="12 rollouts cannot be split into 24"):
        minibatches([row_of(1)] * 12, 24)


def test_a10_shuffled_minibatches_mix_the_tasks_and_are_the_same_when_asked_again() -> None:
    rows = [row_of(1, task, role) for role in ("solve", "propose") for task in ("ind", "ded", "abd") for _ in range(64)]
    first, again = (minibatches(rows, 3, Random(5)) for _ in range(2))
    assert first == again and [len(batch) for batch in first] == [128] * 3
    assert sorted(number for batch in first for number in batch) == list(range(384))
    assert all({rows[i].task for i in batch} == {"abd", "ded", "ind"} for batch in first)


@pytest.mark.parametrize("seed", [0, 4])
def test_a10_the_seed_of_the_run_and_the_step_decide_the_shuffled_order(
    model: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, knobs = rows_for(model), replace(KNOBS, updates_per_step=3)
    bare = AzrReplica.__new__(AzrReplica)
    bare.profile = a_profile(run=Run(seed=seed), optimizer=knobs, azr=SHUFFLED)
    bare.model, bare.optimizer, bare.parallel = model, optimizer.build(model, knobs), Single()
    bare.memory = cast(Any, SimpleNamespace(phase=unmeasured))
    update = bare.make_update()
    found: list[list[int]] = []

    def one(chosen: list[Row], *_: object) -> bool:
        found.append([rows.index(row) for row in chosen])
        return True

    monkeypatch.setattr(update, "_one", one)
    update.apply(7, rows, [0.0] * len(rows))
    assert found == minibatches(rows, 3, stream(seed, 7, "minibatch order"))


def test_fewer_rows_than_updates_make_fewer_updates_and_no_rows_none(model: Any) -> None:
    knobs = Optimizer(updates_per_step=3, warmup_steps=0)
    update = PolicyUpdate(model, optimizer.build(model, knobs), knobs, 1.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert update.apply(1, [], [])[0]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    rows = rows_for(model, 4)[:2]
    is_finite, _ = update.apply(2, rows, [1.0, -1.0])
    assert is_finite and update._applied == (2, 2)


def test_a3_the_profile_chooses_what_a_cell_s_statistics_are_taken_over() -> None:
    rows = [replace(row_of(100), reward=1.0), replace(row_of(300), reward=-0.5)]
    assert advantages_of(rows, "cell", "token").values == pytest.approx([1.7299, -0.5766], abs=5e-5)
    assert advantages_of(rows, "cell").values == pytest.approx([0.7071, -0.7071], abs=5e-5)


def test_r11_a_reward_on_the_last_token_alone_is_worth_the_same_to_every_token(model: Any) -> None:
    """Undiscounted, with no reward in between, the return from each token is the reward of the last."""
    on_tokens = torch.tensor([0.0] * 6 + [0.75])
    assert on_tokens.nonzero().tolist() == [[6]]
    returns = on_tokens.flip(0).cumsum(0).flip(0)
    (row,) = [one for one in rows_for(model, 40) if len(one.completion_ids) == 7][:1]
    update = PolicyUpdate(model, optimizer.build(model, KNOBS), KNOBS, 1.0)
    update.accumulate([row], [0.75], Sums())
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    log_probs = separate_log_probs(model, row.prompt_ids, row.completion_ids)
    (-(returns * torch.exp(log_probs - log_probs.detach())).sum() / 7).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-6)


def test_the_first_update_has_ratio_one_and_sees_no_mismatch(model: Any) -> None:
    rows = rows_for(model)
    update = PolicyUpdate(model, optimizer.build(model, KNOBS), KNOBS, 1.0)
    is_finite, metrics = update.apply(1, rows, advantages_of(rows, "cell").values)
    assert is_finite
    assert metrics["mismatch_max"] < 1e-3 and metrics["mismatch_kl"] < 1e-6 and metrics["clip_fraction"] == 0


def test_an_update_makes_rewarded_completions_more_likely(model: Any) -> None:
    rows = rows_for(model)
    advantages = advantages_of(rows, "cell").values
    update = PolicyUpdate(model, optimizer.build(model, KNOBS), KNOBS, 1.0)
    before = sum(a * sum(r.log_probs) for a, r in zip(advantages, rows, strict=True))
    update.apply(1, rows, advantages)
    with torch.no_grad():
        now = [float(separate_log_probs(model, r.prompt_ids, r.completion_ids).sum()) for r in rows]
    assert sum(a * value for a, value in zip(advantages, now, strict=True)) > before


def test_n1_a_gradient_that_is_not_finite_changes_no_weight(model: Any) -> None:
    rows = rows_for(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    update = PolicyUpdate(model, optimizer.build(model, KNOBS), KNOBS, 1.0)
    is_finite, _ = update.apply(1, rows, [float("nan")] * len(rows))
    assert not is_finite
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_n1_the_minibatch_after_one_that_was_not_finite_is_applied_and_measured(model: Any) -> None:
    knobs = replace(KNOBS, updates_per_step=2)
    rows = [replace(row, task="abd" if i % 2 else "ded") for i, row in enumerate(rows_for(model))]
    advantages = [math.nan if row.task == "abd" else 0.5 for row in rows]
    update = PolicyUpdate(model, optimizer.build(model, knobs), knobs, 1.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    is_finite, metrics = update.apply(1, rows, advantages)
    assert not is_finite
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert math.isfinite(metrics["loss"]) and metrics["mismatch_max"] < 1e-3 and metrics["grad_norm"] > 0


def test_after_running_out_of_memory_no_minibatch_is_applied_twice(model: Any) -> None:
    knobs = Optimizer(updates_per_step=3, warmup_steps=0, micro_batch_size=64)
    rows = rows_for(model)
    advantages = advantages_of(rows, "cell").values
    state = {name: value.clone() for name, value in model.state_dict().items()}
    PolicyUpdate(model, optimizer.build(model, knobs), knobs, 1.0).apply(1, rows, advantages)
    expected = {name: value.clone() for name, value in model.state_dict().items()}

    model.load_state_dict(state)
    update = PolicyUpdate(model, optimizer.build(model, knobs), knobs, 1.0)
    whole, calls = update.accumulate, []

    def fails_once(*args: Any) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("CUDA out of memory")
        return whole(*args)

    update.accumulate = fails_once  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        update.apply(1, rows, advantages)
    update.apply(1, rows, advantages)
    assert len(calls) == 4
    assert all(torch.equal(expected[name], value) for name, value in model.state_dict().items())


def test_a_group_baseline_is_for_solvers_and_the_task_is_the_proposers_group() -> None:
    rows = [replace(row_of(1), reward=r, group=g) for r, g in ((1.0, 0), (-0.5, 0), (-0.5, 1), (-0.5, 1))]
    rows += [replace(row_of(1, role="propose"), reward=r, group=g) for r, g in ((0.5, 0), (-1.0, 1))]
    values = advantages_of(rows, "group").values
    assert values[2:4] == [0, 0] and values[0] > 0 > values[1]
    assert values[4:] == pytest.approx([0.7071, -0.7071], abs=1e-4)


def test_rows_survive_the_rollout_file() -> None:
    collected = Collected(rows=[row_of(3)], found=[], metrics={"x": 0.1})
    assert Collected.of(collected.records()) == collected


def test_optimizer_state_comes_back_exactly(model: Any, tmp_path: Any) -> None:
    rows = rows_for(model)
    advantages = advantages_of(rows, "cell").values
    first = optimizer.build(model, KNOBS)
    PolicyUpdate(model, first, KNOBS, 1.0).apply(1, rows, advantages)
    optimizer.OptimizerState(first, model).save(tmp_path / "o")
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    PolicyUpdate(model, first, KNOBS, 1.0).apply(2, rows, advantages)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    second = optimizer.build(model, KNOBS)
    optimizer.OptimizerState(second, model).load(tmp_path / "o")
    PolicyUpdate(model, second, KNOBS, 1.0).apply(2, rows, advantages)
    assert all(torch.equal(expected[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("head_rows", [1, 7, 64])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.01])
def test_the_update_through_the_chunked_head_is_that_of_all_logits_at_once(
    model: Any, head_rows: int, entropy_coef: float
) -> None:
    rows = rows_for(model)
    knobs = replace(KNOBS, entropy_coef=entropy_coef)
    loss, expected, sums = gradients(model, rows, knobs)
    update = PolicyUpdate(model, optimizer.build(model, knobs), knobs, 1.0, head_rows=head_rows)
    found = Sums()
    assert update.accumulate(rows, advantages_of(rows, "cell").values, found) == pytest.approx(loss, abs=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)
    assert found.entropy == pytest.approx(sums.entropy, rel=1e-5)


def test_no_pass_waits_for_the_numbers_of_the_pass_before_it(model: Any) -> None:
    rows = rows_for(model)
    advantages = advantages_of(rows, "cell").values
    found = []
    for passes in (1, 8):
        knobs = replace(KNOBS, micro_batch_size=len(rows) // passes)
        update = PolicyUpdate(model, optimizer.build(model, knobs), knobs, 1.0)
        with Reads() as reads:
            update.accumulate(rows, advantages, Sums())
        found.append(reads.count)
    assert found[0] == found[1]
