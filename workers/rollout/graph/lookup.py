"""Prompt lookup decoding: a step reads guesses behind a row's last token and keeps those that are what it draws.

The guesses are what followed the row's last two tokens where they stood before (Saxena 2023, "Prompt Lookup Decoding").
A row takes several lanes of a step; lane j reads the last token and j guesses. Each lane draws with the uniform number
of its own token, so if the guesses before it are right, it draws what a step of its own would: the same tokens for the
same seed, and the same log-probs, up to rounding. The distribution stays that of the model (Leviathan et al. 2023,
arXiv 2211.17192, with exact matches in place of rejections).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from profiles.capture import LOOKUP_ROWS
from workers.rollout.graph.state import Shape, State

LEAST_TOKENS = 1.3
"""Tokens that a row must draw a step for lanes to pay."""
PAUSE = 16
"""Checks for which a call goes on without guesses after they did not pay."""


@dataclass
class Guessing:
    """Decides for one call whether its next steps read guesses. By counts, never by the clock: a run that is resumed
    must take the same steps."""

    is_wanted: bool
    paused: int = 0
    """Checks until guesses are tried again."""

    def is_on(self, rows: int) -> bool:
        return self.is_wanted and rows <= LOOKUP_ROWS and not self.paused

    def note(self, tokens: int, steps: int) -> None:
        """Tokens that all rows drew since the last check, and steps of all rows, with guesses."""
        if steps and tokens < LEAST_TOKENS * steps:
            self.paused = PAUSE

    def wait(self) -> None:
        """A check went by without guesses."""
        self.paused = max(0, self.paused - 1)


class Lanes(State):
    """The lanes of all slots: row r has those from r * count on. Caches and sampling are those of `state`, whose cache
    is paged; what a lane draws waits here until `accept`. A lane reads the keys of its row's lanes before it."""

    has_lanes = True

    def __init__(self, state: State, count: int) -> None:
        """count: lanes of a row, one more than its guesses."""
        assert state.table is not None, "lanes of a row share its pages"
        lanes, device = state.shape.slots * count, state.tokens.device
        self.count = count
        self.shape = Shape(lanes, state.shape.cache_length, 1, state.shape.pages)
        self.keys, self.values = state.keys, state.values
        self.arrivals = torch.zeros(len(state.arrivals) * count, dtype=torch.int32, device=device)
        self.temperature, self.greedy = state.temperature, state.greedy
        # A lane never ends by itself: `accept` knows which of its row's lanes count.
        self.stop_ids, self.limit = torch.full_like(state.stop_ids, -1), torch.full_like(state.limit, 1 << 30)
        self.table = torch.zeros(lanes, state.table.shape[1], dtype=torch.int32, device=device)
        self.tokens, self.read_tokens, self.positions, self.counts, self.active = (
            torch.zeros(lanes, dtype=torch.int32, device=device) for _ in range(5)
        )
        """A draw replaces `tokens`; `read_tokens` are those that the step has read."""
        self.out_ids = torch.zeros(lanes, 1, dtype=torch.int32, device=device)
        self.out_log_probs, self.out_entropies, self.uniforms = (torch.zeros(lanes, 1, device=device) for _ in range(3))


def guess(lanes: Lanes, state: State, rows: int) -> None:
    """Fill the lanes of the first `rows` slots for the next step. The reference of the kernel."""
    assert state.table is not None and state.context is not None and lanes.table is not None
    ahead = torch.arange(lanes.count, device=state.tokens.device)  # [L]
    positions, counts = state.positions[:rows].long(), state.counts[:rows].long()
    context = state.context[:rows]
    begin = found_before(context, positions)  # [rows]
    period = positions - begin
    places = torch.where(ahead > 0, begin[:, None] + 1 + (ahead - 1) % period[:, None], positions[:, None])
    lanes.tokens[: rows * lanes.count] = lanes.read_tokens[: rows * lanes.count] = context.gather(1, places).flatten()
    lanes.positions[: rows * lanes.count] = (positions[:, None] + ahead).flatten().int()
    now = (counts[:, None] + ahead).clamp(max=state.shape.room - 1)
    lanes.uniforms[: rows * lanes.count] = state.uniforms[:rows].gather(1, now).view(-1, 1)
    lanes.counts[: rows * lanes.count] = 0
    lanes.active[: rows * lanes.count] = state.active[:rows].repeat_interleave(lanes.count)
    lanes.table[: rows * lanes.count] = state.table[:rows].repeat_interleave(lanes.count, 0)


def found_before(context: Tensor, positions: Tensor) -> Tensor:
    """Where the two tokens that end at `positions` stood last before: the place of the second. If they never did, the
    place before `positions`. context: [R, T]; positions: [R]; returns [R]."""
    places = torch.arange(context.shape[1], device=context.device)
    last = context.gather(1, positions[:, None])
    first = context.gather(1, (positions[:, None] - 1).clamp(min=0))
    is_pair = (context == last) & (context.roll(1, 1) == first)
    is_pair &= (places >= 1) & (places < positions[:, None])
    newest = torch.where(is_pair, places, -1).amax(1)
    return torch.where(newest >= 0, newest, positions - 1)


def accept(lanes: Lanes, state: State, rows: int) -> None:
    """Append what the lanes drew, each up to the first that read a wrong guess. The reference of the kernel."""
    assert state.context is not None
    drawn, log_probs, entropies = (
        out[: rows * lanes.count, 0].view(rows, -1) for out in (lanes.out_ids, lanes.out_log_probs, lanes.out_entropies)
    )
    read = lanes.read_tokens[: rows * lanes.count].view(rows, -1)
    everyone = torch.arange(rows, device=drawn.device)
    going = state.active[:rows] > 0
    for lane in range(lanes.count):
        now, token = state.counts[:rows].long(), drawn[:, lane]
        for out, new in (
            (state.out_ids, token),
            (state.out_log_probs, log_probs[:, lane]),
            (state.out_entropies, entropies[:, lane]),
        ):
            at = now.clamp(max=state.shape.room - 1)
            out[everyone, at] = torch.where(going, new, out[everyone, at])
        after = (state.positions[:rows].long() + 1).clamp(max=state.shape.cache_length - 1)
        state.context[everyone, after] = torch.where(going, token, state.context[everyone, after])
        state.tokens[:rows] = torch.where(going, token, state.tokens[:rows])
        state.counts[:rows] += going.int()
        state.positions[:rows] += going.int()
        is_last = going & (torch.isin(token, state.stop_ids) | (state.counts[:rows] >= state.limit))
        state.active[:rows] = torch.where(is_last, 0, state.active[:rows])
        if lane + 1 < lanes.count:
            going = going & ~is_last & (token == read[:, lane + 1])
