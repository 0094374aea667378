"""The kernels of prompt lookup decoding beside their reference in PyTorch, on random rows: on a card, or in Triton's
interpreter."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from workers.rollout.engine import Sampling
from workers.rollout.graph import lookup
from workers.rollout.graph.lookup import Lanes
from workers.rollout.graph.pages import PAGE
from workers.rollout.graph.state import Shape, State
from workers.rollout.graph.triton_step import TritonOperations

SLOTS, LENGTH, ROOM = 5, 3 * PAGE, 40


def rows_of(seed: int, guesses: int, device: str) -> tuple[State, Lanes]:
    """Rows over few tokens, so that pairs come again, some of them over or near their limit."""
    draws = random.Random(seed)
    torch.manual_seed(seed)
    state = State(Shape(SLOTS, LENGTH, ROOM, 3 * SLOTS, has_context=True), [(1, 16)], torch.float32, device)
    state.set_sampling(Sampling(max_new_tokens=ROOM), [1])
    state.set_pages([[draws.randrange(1, 3 * SLOTS) for _ in range(3)] for _ in range(SLOTS)])
    prompts = [[draws.randrange(2, 6) for _ in range(draws.choice((1, 2, 3, 60, 120)))] for _ in range(SLOTS)]
    slots = torch.arange(SLOTS, device=device)
    lengths = torch.tensor([len(one) for one in prompts], device=device)
    state.begin(
        slots,
        torch.tensor([one[-1] for one in prompts], device=device),
        lengths - 1,
        torch.rand(SLOTS, ROOM).to(device),
    )
    state.note_prompts(slots, prompts)
    for slot in range(SLOTS):
        drawn = draws.choice((0, 1, 7, ROOM - 1))
        ids = torch.tensor([draws.randrange(2, 6) for _ in range(drawn)], dtype=torch.int32, device=device)
        state.restore(slot, ids, torch.zeros(drawn, device=device), torch.zeros(drawn, device=device))
        state.positions[slot] += drawn
        if drawn:
            state.tokens[slot] = ids[-1]
    state.active[draws.randrange(SLOTS)] = 0
    state.note_drawn(SLOTS)
    return state, Lanes(state, guesses + 1)


def told(state: State, lanes: Lanes) -> list[torch.Tensor]:
    assert state.context is not None and lanes.table is not None
    rows = [state.tokens, state.positions, state.counts, state.active, state.out_ids, state.out_log_probs]
    of_lanes = [
        lanes.tokens,
        lanes.read_tokens,
        lanes.positions,
        lanes.counts,
        lanes.active,
        lanes.uniforms,
        lanes.table,
    ]
    return [*rows, state.out_entropies, state.context, *of_lanes]


def are_alike(seed: int, guesses: int, device: str) -> bool:
    """Whether a step's guesses, what it accepts of them, and the next guesses are the same by both."""
    ops = object.__new__(TritonOperations)  # its processors are those of a GPU
    ways: list[tuple[Callable[..., None], Callable[..., None]]] = [
        (lookup.guess, lookup.accept), (ops.guess, ops.accept),
    ]  # fmt: skip
    found = []
    for guess, accept in ways:
        state, lanes = rows_of(seed, guesses, device)
        guess(lanes, state, SLOTS)
        begun = [one.clone() for one in told(state, lanes)]
        draws = torch.Generator().manual_seed(seed)
        # Half of the guesses are right; token 1 is a stop.
        right = torch.cat((lanes.read_tokens[1:], lanes.read_tokens[:1])).cpu()
        ids = torch.where(
            torch.rand(len(right), generator=draws) < 0.5, right, torch.randint(1, 6, right.shape, generator=draws)
        )
        lanes.out_ids[:, 0] = ids.int().to(device)
        lanes.out_log_probs[:, 0] = torch.rand(len(ids), generator=draws).to(device)
        lanes.out_entropies[:, 0] = torch.rand(len(ids), generator=draws).to(device)
        accept(lanes, state, SLOTS)
        guess(lanes, state, SLOTS)
        found.append([*begun, *(one.clone() for one in told(state, lanes))])
    return all(torch.equal(one, other) for one, other in zip(*found, strict=True))
