"""What a decode step changes: the caches, and each slot's next token, position and tokens drawn so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workers.rollout.engine import Sampling
from workers.rollout.graph.pages import PAGE, TEAM, teams_of

MAX_STOPS = 8
"""Most stop tokens that a step compares with."""


@dataclass
class Shape:
    """The sizes that tensors and graphs are made for. Other sizes need new ones."""

    slots: int
    """Most rows that decode side by side."""
    cache_length: int
    """Most tokens of a row, including the prompt. In a paged cache a multiple of PAGE."""
    room: int
    """Most tokens that a row may draw."""
    pages: int = 0
    """Pages that rows share; 0: the cache is not paged, and each slot has room for `cache_length` tokens."""
    has_context: bool = False
    """Whether each slot keeps its row's tokens, in which guesses are looked up."""

    def holds(self, other: Shape) -> bool:
        is_alike = (self.pages > 0, self.has_context) == (other.pages > 0, other.has_context)
        return is_alike and all(
            getattr(self, name) >= getattr(other, name) for name in ("slots", "cache_length", "room", "pages")
        )


class State:
    """All on the device. keys, values: per layer [slots, key heads, cache_length, head_dim], or if the cache is paged
    [1 + pages, key heads, PAGE, head_dim]."""

    has_lanes = False
    """Whether rows of a step read keys and values that other rows write in it."""
    reads_together = False
    """Whether rows that share pages read them together from now on. A step that is captured keeps what it finds."""

    def __init__(self, shape: Shape, caches: Sequence[tuple[int, int]], dtype: torch.dtype, device: Any) -> None:
        """caches: key heads and head_dim of each layer."""
        self.shape = shape
        places = (shape.pages + 1, PAGE) if shape.pages else (shape.slots, shape.cache_length)
        self.keys, self.values = (
            [torch.zeros(places[0], heads, places[1], dim, dtype=dtype, device=device) for heads, dim in caches]
            for _ in range(2)
        )

        def per_slot(dtype: torch.dtype = torch.int32, *more: int) -> Tensor:
            return torch.zeros(shape.slots, *more, dtype=dtype, device=device)

        self.table = per_slot(torch.int32, shape.cache_length // PAGE) if shape.pages else None
        """The pages of each slot, in order of its tokens; 0 where it has none. None: the cache is not paged."""
        self.together = per_slot() if shape.pages else None
        """How many of a slot's first tokens its team reads together. Only kept while `reads_together`, as `teams`."""
        self.teams = per_slot(torch.int32, TEAM) if shape.pages else None
        """The slots of the team that a slot leads, -1 behind the last."""
        self.context = per_slot(torch.int32, shape.cache_length) if shape.has_context else None
        """The row's tokens by their place, up to `positions`; later ones are old."""
        most_heads = max((heads for heads, _ in caches), default=1)
        self.arrivals = per_slot(torch.int32, most_heads).flatten()
        """By which the programs of a kernel know which of them is the last for a row, or for one of its heads of keys.
        Zeros before and after each kernel."""
        self.tokens, self.positions, self.counts, self.active = (per_slot() for _ in range(4))
        self.out_ids = per_slot(torch.int32, shape.room)
        self.out_log_probs, self.out_entropies, self.uniforms = (per_slot(torch.float32, shape.room) for _ in range(3))
        # One-element tensors: a captured graph rereads them, whereas it would freeze arguments.
        self.temperature = torch.ones(1, device=device)
        self.greedy, self.limit = (torch.zeros(1, dtype=torch.int32, device=device) for _ in range(2))
        self.stop_ids = torch.full((MAX_STOPS,), -1, dtype=torch.int32, device=device)

    def set_sampling(self, sampling: Sampling, stop_ids: Sequence[int]) -> None:
        self.temperature.fill_(1.0 if sampling.greedy else sampling.temperature)
        self.greedy.fill_(int(sampling.greedy))
        self.limit.fill_(sampling.max_new_tokens)
        padded = [*stop_ids, *[-1] * (MAX_STOPS - len(stop_ids))]
        self.stop_ids.copy_(torch.tensor(padded, dtype=torch.int32))

    def begin(self, slots: Tensor, tokens: Tensor, positions: Tensor, uniforms: Tensor) -> None:
        """Start rows in these slots, whose caches already hold all tokens of their prompts but the last. slots: [R];
        uniforms: [R, <= room]."""
        self.tokens[slots], self.positions[slots] = tokens.int(), positions.int()
        self.counts[slots] = 0
        self.uniforms[slots, : uniforms.shape[1]] = uniforms
        self.active[slots] = 1

    def resume(self, slot: int, token: int, position: int, count: int, uniforms: Tensor) -> None:
        """Go on in a slot whose cache holds all before `position`. count: ids of its row so far; uniforms: [<= room -
        count], for those that follow."""
        self.tokens[slot], self.positions[slot], self.counts[slot] = token, position, count
        self.uniforms[slot, count : count + len(uniforms)] = uniforms
        self.active[slot] = 1

    def restore(self, slot: int, ids: Tensor, log_probs: Tensor, entropies: Tensor) -> None:
        """Put back what a row that has just begun had drawn before. [<= room] each."""
        count = len(ids)
        self.counts[slot] = count
        self.out_ids[slot, :count], self.out_log_probs[slot, :count] = ids, log_probs
        self.out_entropies[slot, :count] = entropies

    def note_prompts(self, slots: Tensor, prompts: Sequence[Sequence[int]]) -> None:
        """The tokens of rows that begin in these slots. slots: [R]"""
        if self.context is None:
            return
        width = max(map(len, prompts))
        padded = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in prompts], dtype=torch.int32)
        self.context[slots, :width] = padded.to(self.context.device)

    def note_drawn(self, rows: int) -> None:
        """Put what the first slots' rows have drawn behind their prompts; steps without guesses do not."""
        assert self.context is not None
        places = torch.arange(self.shape.cache_length, device=self.context.device)
        begin = self.positions[:rows] - self.counts[:rows] + 1  # [rows]
        drawn = places - begin[:, None]
        ids = self.out_ids[:rows].gather(1, drawn.clamp(0, self.shape.room - 1).long())
        is_drawn = (drawn >= 0) & (drawn < self.counts[:rows, None])
        self.context[:rows] = torch.where(is_drawn, ids, self.context[:rows])

    def set_pages(self, held: Sequence[Sequence[int]]) -> None:
        """The pages of the first slots from now on; the others have none."""
        assert self.table is not None
        width = self.table.shape[1]
        self.table.zero_()
        if held:
            table = [[*pages, *[0] * (width - len(pages))] for pages in held]
            self.table[: len(held)] = torch.tensor(table, dtype=torch.int32, device=self.table.device)
        if self.reads_together:
            self._set_teams(held)

    def _set_teams(self, held: Sequence[Sequence[int]]) -> None:
        assert self.together is not None and self.teams is not None
        counts, teams = teams_of(held)
        self.together.zero_()
        self.teams.fill_(-1)
        if held:
            device = self.teams.device
            padded = [[*team, *[-1] * (TEAM - len(team))] for team in teams]
            self.together[: len(held)] = torch.tensor(counts, dtype=torch.int32, device=device) * PAGE
            self.teams[: len(held)] = torch.tensor(padded, dtype=torch.int32, device=device)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy pages, (source, target) each. No target may be a source."""
        if not pairs:
            return
        source, target = torch.tensor(pairs, device=self.tokens.device).T
        for cache in (*self.keys, *self.values):
            cache[target] = cache[source]

    def at(self, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The first and third index into `keys` and `values` of these places of these slots, int64, [...] each."""
        if self.table is None:
            return slots, positions
        return self.table[slots, positions // PAGE].long(), positions % PAGE

    def write(self, layer: int, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values, [..., key heads, head_dim], at these places of these slots, [...] each."""
        pages, places = self.at(slots, positions)
        self.keys[layer][pages, :, places], self.values[layer][pages, :, places] = keys, values

    def put(self, layer: int, pages: Tensor, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value, [R, key heads, T, head_dim], where `at` says, [R, T] each. Of tokens that go to one
        place, any may stay there."""
        keys, values = self.keys[layer], self.values[layer]
        if keys.is_cuda:
            from workers.rollout.graph.prompt_kernels import put

            put(keys, values, pages, places, key, value)
        else:
            keys[pages, :, places], values[pages, :, places] = key.transpose(1, 2), value.transpose(1, 2)

    def read(self, layer: int, slots: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the first `length` places of these slots, [R, key heads, length, head_dim]."""
        keys, values = self.keys[layer], self.values[layer]
        if self.table is None:
            return keys[slots, :, :length], values[slots, :, :length]
        pages = self.table[slots, : -(-length // PAGE)].long()  # [R, P]
        keys, values = (
            cache[pages].transpose(1, 2).flatten(2, 3)[:, :, :length]  # from [R, P, key heads, PAGE, head_dim]
            for cache in (keys, values)
        )
        return keys, values

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move rows to other slots, without their pages. No target may be a source."""
        if not sources:
            return
        device = self.tokens.device
        source, target = torch.tensor(sources, device=device), torch.tensor(targets, device=device)
        for cache in (*self.keys, *self.values) if self.table is None else ():
            cache[target] = cache[source]
        for one in (
            self.tokens,
            self.positions,
            self.counts,
            self.active,
            self.out_ids,
            self.out_log_probs,
            self.out_entropies,
            self.uniforms,
            *(() if self.context is None else (self.context,)),
        ):
            one[target] = one[source]
        self.active[source] = 0
