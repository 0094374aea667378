"""Prompts are read by the trainer's written-out layers where it has some, with the numbers of plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.schema import Adapter, Model
from profiles.written_out import supports
from tests.workers.families import WINDOW, bounds_of, model_of
from tests.workers.models.test_families import OWN, UNSAMPLED, one_thread, opened
from workers.models import fast_stack
from workers.models.adapters import adapter_of, linear_names
from workers.models.lora import copies_apart
from workers.models.plain import described
from workers.rollout.engine import Request, Sampling
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.probe import single_log_probs

__all__ = ["one_thread"]

REQUESTS = [
    Request(tuple((7919 * place + 13) % 256 for place in range(size)), seed)
    for seed, size in enumerate((3 * WINDOW, 3 * WINDOW, WINDOW + 3, 2, 1))
]
HOW = Sampling(max_new_tokens=WINDOW + 4, ignore_stop=True)


def adapted(name: str, folder: Path) -> Any:
    """The family as a worker opens it for training, with an adapter on every layer that changes what it computes."""
    adapter = Adapter(rank=4, alpha=8.0, targets=tuple(linear_names(model_of(name))), implementation="own")
    knobs = Model(path=str(folder), dtype="float32", gradient_checkpointing=True)
    model = opened(name, folder, model=knobs, adapter=adapter)[0].model
    with torch.no_grad():
        for parameter in adapter_of(model).values():
            parameter.add_(0.02)
    return model


@pytest.mark.parametrize("overcommit", [1.0, 2.0])
@pytest.mark.parametrize("name", sorted(OWN - UNSAMPLED))
def test_rollouts_behind_prompts_that_were_read_so_have_the_log_probs_of_plain_transformers(
    name: str, overcommit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapted(name, tmp_path)
    passes: list[torch.Size] = []
    forward = fast_stack.Stack.forward

    def counted(stack: Any, given: Any, hidden: Any, *more: Any, **named: Any) -> Any:
        passes.append(hidden.shape)
        return forward(stack, given, hidden, *more, **named)

    monkeypatch.setattr(fast_stack.Stack, "forward", counted)
    found = GraphEngine(model, max_rows=3, overcommit=overcommit).generate(REQUESTS, HOW)
    assert bool(passes) == (not supports(described(model)))
    for rollout, bound in zip(found, bounds_of(name, found), strict=True):
        truth = single_log_probs(model, rollout, 1.0)
        assert ((torch.tensor(rollout.log_probs) - truth).abs() < 2 * bound).all()


def test_a_thread_of_another_stream_has_stacked_adapters_of_its_own(tmp_path: Path) -> None:
    model = adapted("qwen2", tmp_path)
    joint = model.fast_runner.stack._layers[0]._qkv
    ours = joint.a(torch.bfloat16)
    with copies_apart():
        theirs = joint.a(torch.bfloat16)
    assert torch.equal(ours, theirs) and ours.data_ptr() != theirs.data_ptr()
    assert joint.a(torch.bfloat16).data_ptr() == ours.data_ptr()
