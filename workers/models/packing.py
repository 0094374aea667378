"""Sequences side by side in one row, so that a prompt is read once for all its completions and nothing is padding.

A row holds units: a prompt and some completions of it. A completion sees its prompt and itself, never a sibling or
another unit; positions are those it would have alone. So the result is that of separate sequences, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Unit:
    """One prompt with completions of it. members: their numbers in the list that was packed."""

    prompt_ids: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    members: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens read: nothing follows a completion's last one, so it is not."""
        return len(self.prompt_ids) + sum(len(ids) - 1 for ids in self.completions)


@dataclass(frozen=True)
class Pack:
    """One forward pass. R rows of T tokens; N completion tokens in all. Its size grows with R * T + N."""

    ids: Tensor  # [R, T]
    positions: Tensor  # [R, T]
    segments: Tensor  # [R, 1, T, 2] int32, which tokens see each other: `visible` has the rule
    predictors: Tensor  # [N] place in the flattened [R * T] whose output predicts the token
    targets: Tensor  # [N] the completion tokens
    owners: Tensor  # [N] number of the rollout that the token belongs to

    def to(self, device: torch.device) -> Pack:
        return Pack(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def units_of(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], row_tokens: int) -> list[Unit]:
    """Rollouts of equal prompts together, as many as fit into a row; a single one may be longer than the row. (pure)"""
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
                units.append(_unit(prompt, chosen, completions))
                chosen, room = [], row_tokens - len(prompt)
            chosen.append(number)
            room -= need
        units.append(_unit(prompt, chosen, completions))
    return units


def _unit(prompt: tuple[int, ...], members: Sequence[int], completions: Sequence[Sequence[int]]) -> Unit:
    return Unit(prompt, tuple(tuple(completions[number]) for number in members), tuple(members))


def rows_of(units: Sequence[Unit], row_tokens: int) -> list[list[Unit]]:
    """Units to rows of at most `row_tokens`, as few as the first row with room gives, and about as long as each other:
    what the longest has more than the rest is padding. (pure)"""
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


def _tokens(row: Sequence[Unit]) -> int:
    return sum(unit.tokens for unit in row)


def micro_batches(units: Sequence[Unit], rollouts: int, row_tokens: int) -> list[list[list[Unit]]]:
    """Lists of rows, each list with at most `rollouts` rollouts where a unit is not larger by itself. (pure)

    Units of like length come together, as the longest decides the width of a batch.
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


def visible(segments: Tensor, begin: int = 0, end: int | None = None) -> Tensor:
    """Which keys in front of `end` the queries from `begin` to `end` see: [R, 1, end - begin, end] bool. (pure)

    segments: [R, 1, T, 2], of each token its own segment and the one that this follows (a completion its prompt, a
    prompt itself). A token sees these two, as far as they are not behind it.
    """
    end = segments.shape[2] if end is None else end
    own, before = segments.unbind(-1)
    keys, places = own[..., None, :end], torch.arange(end, device=segments.device)
    seen = (own[..., begin:end, None] == keys) | (before[..., begin:end, None] == keys)
    return seen & (places <= places[begin:end, None])


def pack(rows: Sequence[Sequence[Unit]]) -> Pack:
    """Tensors of one forward pass. (pure)"""
    width = max(map(_tokens, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions = torch.zeros_like(ids)
    # A padding column is of segment -1: it sees other padding, so no softmax row is empty.
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
            targets += [token for ids_ in unit.completions for token in ids_]
            owners += [owner for owner, ids_ in zip(unit.members, unit.completions, strict=True) for _ in ids_]
            column, segment = end, segment + 1 + len(unit.completions)
    return Pack(ids, positions, segments, torch.tensor(predictors), torch.tensor(targets), torch.tensor(owners))


class _Line:
    """A unit written out: ids, positions, and where each completion token is predicted from."""

    def __init__(self, unit: Unit, offset: int) -> None:
        prompt = len(unit.prompt_ids)
        self.ids = list(unit.prompt_ids)
        self.positions = list(range(prompt))
        self.completion_of = [0] * prompt
        self.predictors: list[int] = []
        for number, completion in enumerate(unit.completions, start=1):
            begin = len(self.ids)
            read = len(completion) - 1
            self.ids += completion[:read]
            self.positions += range(prompt, prompt + read)
            self.completion_of += [number] * read
            self.predictors += [offset + prompt - 1, *range(offset + begin, offset + begin + read)]
