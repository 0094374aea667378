"""Inputs of layers in host memory: the same bits, and less memory on the card."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from profiles.schema import Adapter
from tests.workers.models.test_adapters import pack_of
from tests.workers.models.test_fast_layers import ATTENTION, MLP, OWN, is_fast, model_of
from workers.models import adapters
from workers.models.host_inputs import HostInputs
from workers.models.log_probs import score

pytestmark = pytest.mark.usefixtures("one_thread")
ALL = replace(OWN, targets=ATTENTION + MLP)
PEFT = replace(OWN, implementation="peft")

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def learned(model: Any, passes: int = 2) -> list[Tensor]:
    """Log-probabilities and gradients of several passes, which add up."""
    found = []
    for count in range(passes):
        scored = score(model, pack_of(model, 6 + count).to(model.device), 0.7).log_probs
        scored.sum().backward()
        found.append(scored.detach())
    return found + [one.grad for one in adapters.adapter_of(model).values() if one.grad is not None]


class Counting(HostInputs):
    """Counts what it keeps."""

    kept = 0

    def append(self, one: Tensor) -> None:
        Counting.kept += 1
        super().append(one)


@pytest.mark.parametrize(
    ("adapter", "is_own"), [(ALL, True), (PEFT, False)], ids=["own layers", "transformers' layers"]
)
def test_gradients_have_the_same_bits(adapter: Adapter, is_own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.models.fast_stack.HostInputs", Counting)
    Counting.kept = 0
    kept, offloaded = (model_of(adapter, recomputed=True, offload_inputs=choice) for choice in (False, True))
    assert is_fast(offloaded) == is_own
    expected, found = learned(kept), learned(offloaded)
    assert len(found) == len(expected) > 2
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert Counting.kept == (2 * len(offloaded.model.layers) if is_own else 0)


def test_of_layers_that_transformers_computes_the_inputs_alone_leave_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[torch.Size] = []

    class Seen(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self, *, pin_memory: bool) -> None:
            assert not pin_memory  # on a CPU
            super().__init__(lambda one: shapes.append(one.shape) or one, lambda one: one)  # type: ignore[func-returns-value]

    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", Seen)
    model = model_of(PEFT, recomputed=True, offload_inputs=True)
    learned(model, 1)
    kept = [shape for shape in shapes if shape.numel()]  # PyTorch 2.11 also keeps an empty tensor for each layer
    assert len(kept) == len(model.model.layers)
    assert {shape[-1] for shape in kept} == {model.config.hidden_size}


def test_what_came_last_is_given_first() -> None:
    inputs = HostInputs(torch.device("cpu"))
    ones = [torch.full((2,), float(number)) for number in range(3)]
    for one in ones:
        inputs.append(one)
    assert [float(inputs.pop()[0]) for _ in ones] == [2.0, 1.0, 0.0]
    with pytest.raises(IndexError):
        inputs.pop()


@on_gpu
def test_on_a_gpu_two_inputs_at_most_are_on_the_card_and_their_bits_are_the_same() -> None:
    device = torch.device("cuda")
    size, count = 1 << 22, 12  # 16 MiB each
    ones = [torch.randn(size, generator=torch.Generator().manual_seed(number)) for number in range(count)]
    inputs = HostInputs(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for one in ones:
        held = one.to(device)
        for _ in range(8):  # work that is under way when the copy is asked for
            held = held * 2 / 2
        inputs.append(held)
        del held
    for one in reversed(ones):
        found = inputs.pop()
        busy = found.clone()
        for _ in range(8):
            busy = busy * 2
        assert torch.equal(found.cpu(), one)
    assert torch.cuda.max_memory_allocated() - before < 6 * 4 * size < count * 4 * size


@on_gpu
def test_on_a_gpu_gradients_have_the_same_bits() -> None:
    kept, offloaded = (
        model_of(ALL, recomputed=True, device="cuda", dtype="bfloat16", offload_inputs=choice)
        for choice in (False, True)
    )
    expected, found = learned(kept, 4), learned(offloaded, 4)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
