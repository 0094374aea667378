"""Which pages of a paged cache each slot holds. (pure)

A page holds the keys and values of PAGE tokens in every layer (Kwon et al. 2023, "Efficient Memory Management for Large
Language Model Serving with PagedAttention"). Rows of one prompt share the pages that hold nothing but the prompt. Page
0 is nobody's: what rows that are over and padding write goes there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile

PAGE = 64
"""Tokens of a page: as many keys as the attention kernel reads at a time."""
TEAM = 8
"""Most rows whose attention reads the pages that they share together."""
LEAST_SAVED = 32 << 20
"""Bytes of a layer that a step must not have to read again for teams to pay: two kernels more take as long."""


def pages_of(tokens: int) -> int:
    """Pages that hold so many tokens. (pure)"""
    return -(-tokens // PAGE)


def shared_pages(prompt_tokens: int) -> int:
    """Pages of a prompt that rows share: those full of tokens before its last, which each row reads itself. (pure)"""
    return max(0, prompt_tokens - 1) // PAGE


def teams_of(held: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """For each slot, the pages that its team reads together, 0 if it has none; and the slots of the team that it leads.
    A team's rows have the same first pages. held: the pages of each slot. (pure)"""
    counts, teams = [0] * len(held), [list[int]() for _ in held]
    alike: dict[int, list[int]] = {}
    for slot, pages in enumerate(held):
        if pages:
            alike.setdefault(pages[0], []).append(slot)
    for slots in alike.values():
        for begin in range(0, len(slots), TEAM):
            team = slots[begin : begin + TEAM]
            if len(team) > 1:
                teams[team[0]] = team
                alike_so_far = takewhile(
                    lambda pages: len(set(pages)) == 1, zip(*(held[slot] for slot in team), strict=False)
                )
                common = sum(1 for _ in alike_so_far)
                for slot in team:
                    counts[slot] = common
    return counts, teams


def saved_tokens(prompts: Iterable[Sequence[int]], slots: int) -> float:
    """Tokens that a step of `slots` rows of these prompts reads less if teams read together. (pure)"""
    counts = Counter(map(tuple, prompts))
    saved = sum((count - -(-count // TEAM)) * shared_pages(len(prompt)) * PAGE for prompt, count in counts.items())
    return slots * saved / counts.total()


class Pages:
    """Hands out the pages 1 to `count`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count, 0, -1))
        self._users = [0] * (count + 1)
        self._held: dict[int, list[int]] = {}
        self._have_changed = True

    @property
    def free(self) -> int:
        return len(self._free)

    def of(self, slot: int) -> Sequence[int]:
        """The pages of a slot, in order of its tokens."""
        return self._held.get(slot, ())

    def by_slot(self) -> list[Sequence[int]]:
        """The pages of each slot up to the last that has any."""
        return [self.of(slot) for slot in range(1 + max(self._held, default=-1))]

    def have_changed(self) -> bool:
        """Whether any slot's pages have changed since the last call."""
        found, self._have_changed = self._have_changed, False
        return found

    def begin(self, slot: int, shared: Sequence[int] = ()) -> None:
        """Start a row with pages of another one."""
        assert slot not in self._held
        self._held[slot], self._have_changed = list(shared), True
        for page in shared:
            self._users[page] += 1

    def missing(self, slot: int, tokens: int) -> int:
        """Pages that the slot needs to hold so many tokens in all."""
        return max(0, pages_of(tokens) - len(self.of(slot)))

    def grow(self, slot: int, tokens: int) -> bool:
        """Give the slot what is missing; False, and nothing given, if there is not as much."""
        if (missing := self.missing(slot, tokens)) > len(self._free):
            return False
        for _ in range(missing):
            page = self._free.pop()
            self._users[page] = 1
            self._held[slot].append(page)
            self._have_changed = True
        return True

    def end(self, slot: int) -> None:
        """Take all pages of a slot, if it has any; those that nobody else shares become free."""
        self._have_changed = True
        for page in reversed(self._held.pop(slot, ())):
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)

    def move(self, source: int, target: int) -> None:
        """Move a row to an empty slot."""
        assert target not in self._held
        self._held[target], self._have_changed = self._held.pop(source), True
