"""Packs sequences side by side in one row, so that a prompt is read once for all its completions, without padding.

A row holds units: a prompt and some of its completions. A completion sees its prompt and itself, never a sibling or
another unit, and its positions are those of a lone sequence. So the result equals that of separate sequences, up to
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from workers.models.host_copies import sent
from workers.ranks.partition import share_out

Flags = tuple[bool, ...]
"""One for each token of a completion; empty: all True."""


@dataclass(frozen=True)
class Unit:
    """One prompt with some of its completions. members: their indices in the packed list.

    is_own: for each completion, which of its tokens the model drew; the others are context. Empty: it drew all.
    """

    prompt_ids: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    members: tuple[int, ...]
    is_own: tuple[Flags, ...] = ()

    def flags(self, number: int) -> Flags:
        """Which tokens of that completion the model drew."""
        return (self.is_own[number] if self.is_own else ()) or (True,) * len(self.completions[number])

    @property
    def tokens(self) -> int:
        """Tokens read. The last token of a completion is not: it predicts nothing."""
        return len(self.prompt_ids) + sum(len(ids) - 1 for ids in self.completions)


Batch = list[list[Unit]]
"""Rows of units, of one forward pass."""


@dataclass(frozen=True)
class Pack:
    """One forward pass. R rows of T tokens; N completion tokens that the model drew. Its size grows with R * T + N."""

    ids: Tensor  # [R, T]
    positions: Tensor  # [R, T]
    segments: Tensor  # [R, 1, T, 2] int32, which tokens see each other by the rule of `visible`
    predictors: Tensor  # [N] index into the flattened [R * T] whose output predicts the token
    targets: Tensor  # [N] the completion tokens
    owners: Tensor  # [N] index of the rollout that the token belongs to

    def to(self, device: torch.device) -> Pack:
        return Pack(*(sent(getattr(self, name), device) for name in self.__dataclass_fields__))


def units_of(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    row_tokens: int,
    is_own: Sequence[Flags] = (),
) -> list[Unit]:
    """Group rollouts of equal prompts, as many as fit into a row. A single rollout may be longer than a row. (pure)

    is_own: for each completion, as in `Unit`.
    """
    flags = is_own if any(is_own) else ()
    members: dict[tuple[int, ...], list[int]] = {}
    for number, prompt in enumerate(prompts):
        members.setdefault(tuple(prompt), []).append(number)
    units: list[Unit] = []
    for prompt, numbers in members.items():
        chosen: list[int] = []
        room = row_tokens - len(prompt)
        for number in numbers:
            need = len(completions[number]) - 1
            if chosen and need > room:
                units.append(_unit(prompt, chosen, completions, flags))
                chosen, room = [], row_tokens - len(prompt)
            chosen.append(number)
            room -= need
        units.append(_unit(prompt, chosen, completions, flags))
    return units


def _unit(
    prompt: tuple[int, ...], members: Sequence[int], completions: Sequence[Sequence[int]], is_own: Sequence[Flags]
) -> Unit:
    own = tuple(is_own[number] for number in members) if is_own else ()
    return Unit(prompt, tuple(tuple(completions[number]) for number in members), tuple(members), own)


def shares_of(units: Sequence[Unit], size: int) -> list[list[Unit]]:
    """The units of each of `size` ranks, with about as many tokens; some are halved, their prompt read twice. (pure)"""
    return share_out(units, size, lambda unit: unit.tokens, _halves)


def _halves(unit: Unit) -> list[Unit]:
    middle = len(unit.members) // 2
    parts = (slice(middle), slice(middle, None)) if middle else ()
    return [Unit(unit.prompt_ids, unit.completions[part], unit.members[part], unit.is_own[part]) for part in parts]


def rows_of(units: Sequence[Unit], row_tokens: int) -> list[list[Unit]]:
    """Distribute units over rows of at most `row_tokens`. First-fit gives the number of rows; their lengths are then
    evened out, because whatever the longest row has beyond the others is padding. (pure)"""
    ordered = sorted(units, key=lambda unit: -unit.tokens)
    fitted: list[list[Unit]] = []
    for unit in ordered:
        row = next((row for row in fitted if _tokens(row) + unit.tokens <= row_tokens), None)
        if row is None:
            fitted.append([unit])
        else:
            row.append(unit)
    even: list[list[Unit]] = [[] for _ in fitted]
    for unit in ordered:
        min(even, key=_tokens).append(unit)
    return min(even, fitted, key=lambda rows: max(map(_tokens, rows)))


def passes_together(units: Sequence[Unit], size: int, rollouts: int, row_tokens: int) -> list[list[tuple[Batch, bool]]]:
    """Passes that `size` ranks make together: of each pass that of each rank, and whether it counts. (pure)

    A pass takes as long as the longest of its ranks. Of two ways the one whose passes take less: units of like length
    beside each other, or as many equal shares as the limits of `micro_batches` allow, some units halved. A rank that
    has nothing for a pass makes another's again.
    """
    if not units:
        return []
    alike = micro_batches(units, rollouts, row_tokens)
    count = -(-_rollouts(units) // (rollouts * size))
    while any(len(share) > 1 and _rollouts(share) > rollouts for share in shares_of(units, count * size)):
        count += 1
    equal = sorted((rows_of(share, row_tokens) for share in shares_of(units, count * size) if share), key=_size)
    return min((_in_turn(alike, size), _in_turn(equal, size)), key=_time)


def _in_turn(batches: Sequence[Batch], size: int) -> list[list[tuple[Batch, bool]]]:
    """The smallest pass is the one that is not full."""
    spare = [(batches[0], False)] * (-len(batches) % size) if batches else []
    passes = [*spare, *((batch, True) for batch in batches)]
    return [passes[at : at + size] for at in range(0, len(passes), size)]


def _time(together: Sequence[Sequence[tuple[Batch, bool]]]) -> int:
    return sum(max(_size(batch) for batch, _ in passes) for passes in together)


def _size(batch: Batch) -> int:
    return sum(map(_tokens, batch))


def _rollouts(units: Sequence[Unit]) -> int:
    return sum(len(unit.members) for unit in units)


def _tokens(row: Sequence[Unit]) -> int:
    return sum(unit.tokens for unit in row)


def micro_batches(units: Sequence[Unit], rollouts: int, row_tokens: int) -> list[Batch]:
    """Lists of rows, each list with at most `rollouts` rollouts where a unit is not larger by itself. (pure)

    Units of similar length go together, because the longest row sets the width of a batch.
    """
    batches: list[list[Unit]] = []
    held = 0
    for unit in sorted(units, key=lambda unit: unit.tokens):
        if not batches or held + len(unit.members) > rollouts:
            batches.append([])
            held = 0
        batches[-1].append(unit)
        held += len(unit.members)
    return [rows_of(batch, row_tokens) for batch in batches]


def visible(segments: Tensor, begin: int = 0, end: int | None = None, window: int | None = None) -> Tensor:
    """Which keys before `end` the queries from `begin` to `end` see: [R, 1, end - begin, end] bool. (pure)

    segments: [R, 1, T, 2]; with a window [R, 1, T, 3]. Each token has its own segment and the one that it follows: for
    a completion that is its prompt, for a prompt itself; and its position. A token sees the tokens of both segments up
    to its own place, the newest `window` of them by position.
    """
    end = segments.shape[2] if end is None else end
    own, before = segments[..., 0], segments[..., 1]
    keys, places = own[..., None, :end], torch.arange(end, device=segments.device)
    seen = (own[..., begin:end, None] == keys) | (before[..., begin:end, None] == keys)
    seen = seen & (places <= places[begin:end, None])
    if window is None:
        return seen
    positions = segments[..., 2]
    near = positions[..., begin:end, None] - positions[..., None, :end] < window
    return seen & near


def pack(rows: Sequence[Sequence[Unit]]) -> Pack:
    """Tensors of one forward pass. (pure)"""
    width = max(map(_tokens, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions = torch.zeros_like(ids)
    # Padding columns have segment -1. They see other padding, so no softmax row is empty.
    segments = torch.full((len(rows), 1, width, 2), -1, dtype=torch.int32)
    predictors: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    for number, row in enumerate(rows):
        column = segment = 0
        for unit in row:
            line = _Line(unit, number * width + column)
            end = column + unit.tokens
            ids[number, column:end] = torch.tensor(line.ids)
            positions[number, column:end] = torch.tensor(line.positions)
            segments[number, 0, column:end, 0] = segment + torch.tensor(line.completion_of)
            segments[number, 0, column:end, 1] = segment
            predictors += line.predictors
            targets += line.targets
            owners += [owner for place, owner in enumerate(unit.members) for _ in range(sum(unit.flags(place)))]
            column, segment = end, segment + 1 + len(unit.completions)
    return Pack(ids, positions, segments, torch.tensor(predictors), torch.tensor(targets), torch.tensor(owners))


class _Line:
    """A unit laid out flat: ids, positions, and for each token that the model drew the position that predicts it."""

    def __init__(self, unit: Unit, offset: int) -> None:
        prompt = len(unit.prompt_ids)
        self.ids = list(unit.prompt_ids)
        self.positions = list(range(prompt))
        self.completion_of = [0] * prompt
        self.predictors: list[int] = []
        self.targets: list[int] = []
        for number, completion in enumerate(unit.completions, start=1):
            begin = len(self.ids)
            read = len(completion) - 1
            self.ids += completion[:read]
            self.positions += range(prompt, prompt + read)
            self.completion_of += [number] * read
            before = [offset + prompt - 1, *range(offset + begin, offset + begin + read)]
            flags = unit.flags(number - 1)
            self.predictors += compress(before, flags)
            self.targets += compress(completion, flags)
