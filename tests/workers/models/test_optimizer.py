"""Optimisers: small steps take effect, moments are restored exactly, and their device changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from profiles.schema import Optimizer
from workers.models import optimizer
from workers.models.master import MasterWeights

pytestmark = pytest.mark.usefixtures("one_thread")

STEP = Optimizer(learning_rate=1e-3, warmup_steps=0)


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(80, 96), nn.Linear(96, 64)).to(dtype)


def learn(
    model: nn.Module, how: optimizer.AnyOptimizer, steps: range, knobs: Optimizer, micro_batches: int = 2
) -> None:
    dtype = next(model.parameters()).dtype
    for step in steps:
        for part in range(micro_batches):
            inputs = torch.randn(8, 80, generator=torch.Generator().manual_seed(10 * step + part)).to(dtype)
            model(inputs).pow(2).mean().backward()
        optimizer.clip(how, model, knobs.max_grad_norm)
        how.step()
        how.zero_grad(set_to_none=True)


KINDS = {
    "adamw": (torch.float32, STEP),
    "adamw in bfloat16": (torch.bfloat16, STEP),
    "adamw8bit": (torch.float32, Optimizer(kind="adamw8bit", learning_rate=1e-3)),
    "adamw8bit in bfloat16": (torch.bfloat16, Optimizer(kind="adamw8bit", learning_rate=1e-3)),
    "offloaded": (torch.bfloat16, Optimizer(offload=True, learning_rate=1e-3)),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_resumed_optimiser_takes_the_same_steps(name: str, tmp_path: Path) -> None:
    dtype, knobs = KINDS[name]
    whole = network(dtype)
    learn(whole, optimizer.build(whole, knobs), range(5), knobs)

    first = network(dtype)
    broken = optimizer.build(first, knobs)
    learn(first, broken, range(2), knobs)
    optimizer.OptimizerState(broken, first).save(tmp_path / "o")
    second = network(dtype)
    resumed = optimizer.build(second, knobs)
    second.load_state_dict(first.state_dict())
    optimizer.OptimizerState(resumed, second).load(tmp_path / "o")
    optimizer.OptimizerState(resumed, second).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "o").read_bytes()
    learn(second, resumed, range(2, 5), knobs)
    assert all(torch.equal(a, b) for a, b in zip(second.parameters(), whole.parameters(), strict=True))


@pytest.mark.parametrize("key", ["master", "exp_avg", "exp_avg_sq", "step"])
def test_mutation_each_part_of_the_state_is_needed(key: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    knobs, model = STEP, network(torch.bfloat16)
    how = optimizer.build(model, knobs)
    learn(model, how, range(3), knobs)
    optimizer.OptimizerState(how, model).save(tmp_path / "o")
    stored = load_file(tmp_path / "o")
    names = [name for name in stored if name.endswith(f".{key}")]
    assert len(names) == 4
    save_file(stored | {name: torch.zeros_like(stored[name]) + 1 for name in names}, tmp_path / "changed")
    results = []
    for file in ("o", "changed"):
        other = network(torch.bfloat16)
        other.load_state_dict(model.state_dict())
        resumed = optimizer.build(other, knobs)
        optimizer.OptimizerState(resumed, other).load(tmp_path / file)
        learn(other, resumed, range(3, 4), knobs)
        results.append([parameter.clone() for parameter in other.parameters()])
    assert not all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_steps_that_bfloat16_would_round_away_add_up() -> None:
    """Learning rate 1e-6, as in the paper: a weight of 0.1 in bfloat16 feels nothing below 2e-4."""
    knobs = Optimizer(learning_rate=1e-6, warmup_steps=0, weight_decay=0.0)
    plain, kept = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    for one in (plain, kept):
        nn.init.constant_(one.weight, 0.1)
        one.to(torch.bfloat16)
    without = torch.optim.AdamW(plain.parameters(), lr=1e-6, weight_decay=0.0)
    with_master = optimizer.build(kept, knobs)
    inputs = torch.ones(1, 64, dtype=torch.bfloat16)
    before = plain.weight.clone()
    for _ in range(400):
        plain(inputs).sum().backward()
        without.step()
        without.zero_grad()
        kept(inputs).sum().backward()
        with_master.step()
    assert isinstance(with_master, MasterWeights)
    assert torch.equal(plain.weight, before)
    torch.testing.assert_close(with_master.masters["weight"].mean(), before.float().mean() - 400e-6, rtol=0, atol=4e-6)
    assert bool((kept.weight < before).all())


def test_gradients_of_many_micro_batches_are_summed_in_float32() -> None:
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    how: Any = optimizer.build(model, STEP)
    for value in [256.0] + [1.0] * 255:  # each 1 alone is below half a unit of 256 in bfloat16
        model(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
    assert float(how.clip(1e9)) == 511.0
    assert model.weight.grad is None


def test_a_clipped_gradient_has_the_norm_asked_for() -> None:
    model = network(torch.bfloat16)
    how: Any = optimizer.build(model, STEP)
    model(torch.ones(4, 80, dtype=torch.bfloat16)).sum().backward()
    before = float(how.clip(0.5))
    assert before > 0.5
    assert float(how.clip(1e9)) == pytest.approx(0.5, rel=1e-4)


def test_forgotten_gradients_are_forgotten() -> None:
    model = network(torch.bfloat16)
    how: Any = optimizer.build(model, STEP)
    model(torch.ones(4, 80, dtype=torch.bfloat16)).sum().backward()
    how.zero_grad()
    assert float(how.clip(1.0)) == 0.0


@pytest.mark.parametrize(
    ("knobs", "dtype", "is_master"),
    [
        (Optimizer(), torch.float32, False),
        (Optimizer(), torch.bfloat16, True),
        (Optimizer(offload=True), torch.float32, False),  # they are in host memory already
        (Optimizer(offload=True), torch.bfloat16, True),
    ],
)
def test_copies_are_made_only_where_they_are_needed(knobs: Optimizer, dtype: torch.dtype, is_master: bool) -> None:
    assert isinstance(optimizer.build(network(dtype), knobs), MasterWeights) == is_master


def test_what_the_first_update_adds_is_known_before() -> None:
    model = network()
    numbers = sum(parameter.numel() for parameter in model.parameters())
    found = [
        optimizer.moments_to_come(optimizer.build(model, STEP), model, knobs)
        for knobs in (
            Optimizer(),
            Optimizer(kind="adamw8bit"),
            Optimizer(kind="paged_adamw8bit"),
            Optimizer(offload=True),
        )
    ]
    assert found == [8 * numbers, 2 * numbers, 0, 0]


def test_a_gradient_that_a_broken_backward_pass_left_behind_is_forgotten_too() -> None:
    """Memory may end between a gradient's making and its being taken: doing the step again would count it twice."""
    model = network(torch.bfloat16)
    how: Any = optimizer.build(model, STEP)
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    how.zero_grad()
    assert first.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_after_an_update_no_moments_are_to_come(dtype: torch.dtype) -> None:
    model = network(dtype)
    how = optimizer.build(model, STEP)
    assert optimizer.moments_to_come(how, model, STEP) > 0
    learn(model, how, range(1), STEP)
    assert optimizer.moments_to_come(how, model, STEP) == 0
