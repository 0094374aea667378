"""Whole passes whose attention runs in our kernels, for Triton's interpreter: what they give, and how often they list
blocks.

`python -m tests.workers.models.attention_list_cases` needs TRITON_INTERPRET=1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from profiles.schema import Adapter, Model, Profile
from tests.workers.models.test_fast_stack import captured
from workers.models import attention, attention_kernels
from workers.models.log_probs import score
from workers.models.packing import Pack, Unit, pack
from workers.models.policy import open_policy

OWN = Adapter(rank=4, alpha=8.0, targets=("q_proj", "v_proj"))
APART = pack([[Unit((5,) * 62, ((7, 9, 8),), (0,)), Unit((3,) * 20, ((7,) * 17,), (1,))]])
TOGETHER = pack([[Unit((5,) * 70, ((7, 9, 8), (7,) * 29), (0, 1))]])
"""As long, but tokens of its second block see some of the first."""


class Case(NamedTuple):
    """passes: the third of graphs captures them. windows: different ones of its layers."""

    shape: str
    adapter: Adapter
    prepare: Callable[[Any], Any]
    passes: int
    windows: int


def by_modules(model: Any) -> None:
    model.fast_runner = None


CASES = {
    "modules": Case("gemma3-tiny", OWN, by_modules, 2, 2),
    "launches": Case("gemma3-tiny", OWN, lambda _: None, 2, 2),
    "graphs": Case("qwen2-tiny", OWN, captured, 4, 1),
    "graphs of all weights": Case("qwen2-tiny", Adapter(), captured, 4, 1),
}


def learned(model: Any, pack: Pack) -> list[Tensor]:
    """Log-probabilities, and gradients."""
    model.zero_grad(set_to_none=True)
    found = score(model, pack, 0.7).log_probs
    found.sum().backward()
    return [found.detach(), *(one.grad.clone() for one in model.parameters() if one.grad is not None)]


def model_of(case: Case) -> Any:
    shape = Model(random_init=case.shape, gradient_checkpointing=True)
    return open_policy(Profile(name="x", model=shape, adapter=case.adapter), None, torch.device("cpu")).model


def main() -> None:
    attention.MASKED_QUERIES = 64  # longer rows hand their segments to the layers
    listed, segments = attention_kernels._listed, APART.segments.clone()
    calls: list[Any] = []
    attention_kernels._listed = lambda *each: calls.append(each[1:]) or listed(*each)
    for name, case in CASES.items():
        model, plain = model_of(case), model_of(case)
        made = case.prepare(model)
        for number in range(case.passes):
            one = (APART, TOGETHER)[number % 2]
            attention._fits = lambda *_: False
            expected = learned(plain, one)
            attention._fits = lambda *_: True
            segments.copy_(one.segments)  # other contents in the same memory
            calls.clear()
            found = learned(model, replace(one, segments=segments))
            assert len(calls) == len(set(calls)) == case.windows, (name, number, calls)
            for ours, theirs in zip(found, expected, strict=True):
                assert float((ours - theirs).norm()) <= 1e-4 * float(theirs.norm()) + 1e-7, (name, number)
        assert made is None or made[1].replayed == 2 * (2 if case.adapter.rank else 3), name
    sys.stdout.write("same\n")


if __name__ == "__main__":
    main()
