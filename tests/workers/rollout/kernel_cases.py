"""The kernels of a decode step in Triton's interpreter, without its products: beside plain PyTorch, for each family.

The interpreter does not compute with bfloat16, so what the kernels round to is float32 here, and the products, which
read pairs of 16 bits, are PyTorch's. Only for processes in which TRITON_INTERPRET is set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import triton.language
from torch import Tensor
from torch.nn.functional import linear

from profiles.schema import Adapter
from tests.workers.families import FAMILIES, model_of
from workers.models import lora
from workers.models.adapters import linear_names
from workers.rollout.decoder import Decoder
from workers.rollout.engine import Sampling
from workers.rollout.graph import attention_kernels, draw_kernels, kernel_parts, norm_kernels, triton_step
from workers.rollout.graph.pages import PAGE
from workers.rollout.graph.state import Shape, State
from workers.rollout.graph.step import TorchOperations, activated, decode_step
from workers.rollout.graph.step_weights import Adapters, Gate, Layer, Matrix, Projection, Weights

ROWS, LENGTH = 3, 256
POSITIONS = {"spread": (3, 40, 77), "at the edges of blocks": (0, 63, 64), "long": (255, 128, 191)}
"""Of each row's token."""
PROCESSORS = {"one portion": 1, "two portions": 4, "four portions": 16}
"""With which the keys of a row are in so many portions."""


class Single:
    """The language, in which 16 bits are 32."""

    bfloat16 = triton.language.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(triton.language, name)


class Operations(triton_step.TritonOperations):
    dtype = torch.float32

    def project(self, x: triton_step.Inputs, projection: Projection) -> triton_step.Parts:
        """In two parts of K, as the kernels would."""
        weights = [matrix.dense(torch.float32) for matrix in projection.matrices]
        if projection.adapters is not None:
            weights.append(projection.adapters.a)
        halves = zip(x.data.chunk(2, 1), torch.cat(weights).chunk(2, 1), strict=True)
        return triton_step.Parts(torch.stack([linear(*each) for each in halves]), 2, projection.ends[-1])

    def added_by_gate_up(self, rows: int, layer: Layer) -> Adapters | None:
        return layer.gate_up.adapters if layer.gate.has_gate and layer.gate_up.bias is None else None

    def gate_up(self, x: triton_step.Inputs, projection: Projection, gate: Gate) -> triton_step.Inputs:
        """With the adapters' part that the kernel of the norm has computed, as the CUDA product adds it."""
        adapters = projection.adapters
        if x.inner is None or adapters is None:
            return self.activated(x, projection, gate)
        products = self.project(x, replace(projection, adapters=None)).data.sum(0)
        inner = x.inner[:, : adapters.rank], x.inner[:, -adapters.rank :]
        pairs = zip(products.chunk(2, 1), inner, adapters.b.chunk(2, 1), strict=True)
        first, up = (product + part @ b for product, part, b in pairs)
        return triton_step.Inputs(activated(first, gate) * up, x.rows)


def operations(processors: int = 4) -> Operations:
    language: Any = Single()
    for module in (kernel_parts, norm_kernels, attention_kernels, draw_kernels):
        module.tl, module.language = language, triton.language  # type: ignore[attr-defined]  # the latter for Triton
    triton_step.processors_of = lambda _: processors  # type: ignore[assignment]
    triton_step.VOCABULARY_TILE = 64  # of 269 tokens
    triton_step.can_chain = lambda _: False
    return Operations(torch.device("cpu"))


def model_for(name: str) -> Any:
    """The family with sums over multiples of 64, an odd vocabulary, and adapters on all its layers."""
    kind, changes = FAMILIES[name]
    two = {field: changes[field][:2] for field in ("layer_types", "no_rope_layers") if field in changes}
    sizes = {"vocab_size": 269, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    FAMILIES["wide"] = kind, {**changes, **two, **sizes}
    model = model_of("wide").requires_grad_(False)
    lora.inject(model, Adapter(rank=20, alpha=8.0, targets=tuple(linear_names(model))), seed=0)
    for parameter_name, parameter in model.named_parameters():
        if "lora_" in parameter_name:
            parameter.data.normal_(0, 0.1)
    return model


def state_of(
    weights: Weights, *, is_paged: bool, positions: Sequence[int] = POSITIONS["spread"], team: Sequence[int] = ()
) -> State:
    """team: slots that share their first two pages."""
    draws = torch.Generator().manual_seed(0)
    pages = ROWS * LENGTH // PAGE if is_paged else 0
    state = State(Shape(ROWS, LENGTH, 8, pages), weights.caches, torch.float32, "cpu")
    if is_paged:
        held = (1 + torch.randperm(pages, generator=draws)).view(ROWS, -1).tolist()
        for slot in team:
            held[slot][:2] = held[team[0]][:2]
        state.reads_together = len(team) > 0
        state.set_pages(held)
    for cache in (*state.keys, *state.values):
        cache.normal_(generator=draws)
    state.set_sampling(Sampling(max_new_tokens=8, temperature=0.8, ignore_stop=True), [])
    slots = torch.arange(ROWS)
    state.begin(slots, slots + 11, torch.tensor(positions), torch.rand(ROWS, 8, generator=draws))
    return state


def steps_of(name: str, ops: Sequence[Any], **how: Any) -> Iterator[tuple[State, Tensor]]:
    """What a step of each leaves, and its logits; only the first reads together. how: of `state_of`."""
    model = model_for(name)
    weights, decoder = Weights(model), Decoder(model)
    weights.refresh()
    decoder.grow_rope(LENGTH)
    for number, each in enumerate(ops):
        state, logits, draw = state_of(weights, **how), list[Tensor](), each.draw
        state.reads_together = state.reads_together and number == 0

        def kept(found: Tensor, *others: Any, draw: Any = draw, logits: list[Tensor] = logits) -> None:
            logits.append(found)
            draw(found, *others)

        each.draw = kept
        decode_step(weights, state, decoder.ropes, ROWS, each)
        each.draw = draw
        yield state, logits[0]


def differences(name: str, *, is_paged: bool) -> list[float]:
    """Of logits, keys, values and log-probs, after a step of either."""
    (mine, a), (theirs, b) = steps_of(name, (TorchOperations(), operations()), is_paged=is_paged)
    pairs = [(a, b), *zip(mine.keys, theirs.keys, strict=True), *zip(mine.values, theirs.values, strict=True)]
    pairs.append((mine.out_log_probs, theirs.out_log_probs))
    return [float(((b - a).norm() / a.norm()).detach()) for a, b in pairs]


def are_forms_alike(name: str, *, is_paged: bool, positions: Sequence[int], processors: int) -> bool:
    """Whether attention in one launch and in two leave the same bits, and no counter that is not zero; and both what
    PyTorch leaves, nearly."""
    ops, found = operations(processors), []
    steps = steps_of(name, (ops, ops, TorchOperations()), is_paged=is_paged, positions=positions)
    for is_one in (True, False):
        triton_step.is_one_attention_launch = lambda *, has_lanes, repeated, is_one=is_one: is_one
        found.append(next(steps))
    _, right = next(steps)
    (state, logits), (other, others) = found
    pairs = [(logits, others), (state.out_ids, other.out_ids), (state.out_log_probs, other.out_log_probs)]
    pairs += [*zip(state.keys, other.keys, strict=True), *zip(state.values, other.values, strict=True)]
    is_near = float((logits - right).norm() / right.norm()) < 1e-5
    are_zero = not any(one.arrivals.any() for one in (state, other))
    return is_near and are_zero and all(torch.equal(a, b) for a, b in pairs)


def teams_are_near(name: str, *, processors: int) -> bool:
    """Whether rows that read two pages together, and one that does not, leave what PyTorch leaves, nearly; and whether
    their keys and values are the bits of a step without teams."""
    ops, positions = operations(processors), (255, 130, 191)
    found = steps_of(name, (ops, ops, TorchOperations()), is_paged=True, positions=positions, team=(0, 2))
    (mine, logits), (alone, others), (_, right) = found
    assert mine.reads_together and not alone.reads_together
    are_near = all(float((one - right).norm() / right.norm()) < 1e-5 for one in (logits, others))
    pairs = [(mine.keys[0], alone.keys[0]), (mine.values[0], alone.values[0])]
    return are_near and not mine.arrivals.any() and all(torch.equal(a, b) for a, b in pairs)


def off_of_tiles(rows: int) -> float:
    """How far activations that are made eight rows at a time, and share adapters' B, are from those of single rows."""
    ops, width, draws = operations(), 64, torch.Generator().manual_seed(rows)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws)

    both = [Matrix(random(width, width), None, (width, width)) for _ in range(2)]
    projection = Projection([], both, None, Adapters(random(8, width), random(4, 2 * width), 4, 0.5))
    x = random(rows, width)
    each = [triton_step.Inputs(one, len(one)) for one in (x, *x.split(1))]
    whole, *single = [ops.activated(one, projection, Gate("silu", True)).data for one in each]
    return float((whole - torch.cat(single)).norm() / whole.norm())
