"""Stores the verified tasks found so far, in order, and draws references and solver tasks from them.

A buffer never holds a task twice. Two tasks are equal if their syntax trees and arguments are; comments do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec

from workers.tasks.entry import BUFFERS_FILE, SEED, UNKNOWN_RATE, Entry, known_by, with_form
from workers.tasks.items import Task
from workers.tasks.kinds.registry import kind_of
from workers.tasks.novelty import Novelty

Item = TypeVar("Item")


class Buffer:
    """Tasks of one kind, oldest first. novelty: how tasks are identified."""

    def __init__(self, cap: int, novelty: Novelty = "tree") -> None:
        self.cap, self.novelty = cap, novelty
        self.entries: list[Entry] = []
        self._keys: set[str] = set()
        self.forms: Counter[str] = Counter()
        """How many tasks share each identity (`known_by`)."""

    def copy(self) -> Buffer:
        """One that changes by itself."""
        found = Buffer(self.cap, self.novelty)
        found.entries, found._keys, found.forms = list(self.entries), set(self._keys), Counter(self.forms)
        return found

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def add(self, entry: Entry) -> bool:
        """Append the entry if it is new, and return whether it was. Above the cap, evict the oldest non-seed entry."""
        if entry.key in self._keys:
            return False
        entry = with_form(entry, self.novelty)
        self.entries.append(entry)
        self._keys.add(entry.key)
        self.forms[known_by(entry, self.novelty)] += 1
        if len(self.entries) > self.cap:
            self._evict()
        return True

    def remove(self, keys: frozenset[str]) -> None:
        self.replace([entry for entry in self.entries if entry.key not in keys])

    def replace(self, entries: Sequence[Entry]) -> None:
        self.entries = [with_form(entry, self.novelty) for entry in entries]
        self._keys = {entry.key for entry in self.entries}
        self.forms = Counter(known_by(entry, self.novelty) for entry in self.entries)

    def _evict(self) -> None:
        # Never evict the newest entry. If all others are seeds, evict the oldest seed, or nothing new could enter.
        place = next((i for i, entry in enumerate(self.entries[:-1]) if entry.source != SEED), 0)
        gone = self.entries.pop(place)
        self._keys.discard(gone.key)
        name = known_by(gone, self.novelty)
        self.forms[name] -= 1
        if not self.forms[name]:  # `in` would still find a key with count 0
            del self.forms[name]


class Buffers:
    """One buffer per task. Registered: a checkpoint holds all entries in order."""

    filename = BUFFERS_FILE

    def __init__(self, tasks: Sequence[Task], cap: int, novelty: Novelty = "tree") -> None:
        self.of: dict[Task, Buffer] = {task: Buffer(cap, novelty) for task in tasks}

    def copy(self) -> Buffers:
        """Buffers that change by themselves."""
        found = Buffers((), 0)
        found.of = {task: buffer.copy() for task, buffer in self.of.items()}
        return found

    def store(self, found: Iterable[Entry], retired: Collection[str] = ()) -> None:
        """Add a step's new tasks, without those that are no longer valid."""
        if retired:
            for buffer in self.of.values():
                buffer.remove(frozenset(retired))
        for entry in found:
            self.of[entry.task].add(entry)

    def save(self, path: Path) -> None:
        rows = (entry for buffer in self.of.values() for entry in buffer.entries)
        path.write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in rows))

    def load(self, path: Path) -> None:
        entries = [msgspec.json.decode(line, type=Entry) for line in path.read_bytes().splitlines()]
        for task, buffer in self.of.items():
            buffer.replace([entry for entry in entries if entry.task == task])

    def sizes(self) -> dict[str, float]:
        return {f"buffer/{task}": float(len(buffer)) for task, buffer in self.of.items()}

    def programs(self) -> list[Entry]:
        """One entry for each distinct program of the kinds that write programs, in order of appearance."""
        found: dict[str, Entry] = {}
        for task, buffer in self.of.items():
            if kind_of(task).writes_program:
                for entry in buffer.entries:
                    found.setdefault(entry.program_key, entry)
        return list(found.values())


def draw_references(entries: Sequence[Item], count: int, rng: Random, weights: Sequence[float] = ()) -> list[Item]:
    """Up to `count` different items, drawn uniformly, or one at a time with `weights` if given."""
    if not weights:
        return rng.sample(entries, min(count, len(entries)))
    return draw_weighted(entries, weights, count, rng)


def reference_weights(entries: Sequence[Entry], weighting: str) -> list[float]:
    """Weights for `azr.variants.reference_weighting`: step + 1 for "step", empty for uniform draws. (pure)"""
    return [entry.step + 1.0 for entry in entries] if weighting == "step" else []


def draw_weighted(items: Sequence[Item], weights: Sequence[float], count: int, rng: Random) -> list[Item]:
    """Up to `count` different items, each drawn in proportion to the remaining weights. Weight 0 is never drawn."""
    left = {place: weight for place, weight in enumerate(weights) if weight > 0}
    chosen: list[Item] = []
    while left and len(chosen) < count:
        (place,) = rng.choices(list(left), list(left.values()))
        chosen.append(items[place])
        del left[place]
    return chosen


def solver_batch(
    new: Sequence[Item],
    old: Sequence[Item],
    size: int,
    rng: Random,
    mix: str = "max_new",
    step_of: Callable[[Item], float] = lambda item: 1.0,
) -> tuple[list[Item], int]:
    """Choose `size` tasks by `azr.variants.solver_mix`; returns them and how many are repeats that fill the batch.

    The batch has the full size if there is at least one task. `old` must not contain `new`. step_of: the step that
    created a task, used as its weight under the mix "step". Seeds have weight 0 and are used only after all others.
    """
    if mix in ("uniform_total", "step"):
        pool = [*old, *new]
        chosen = draw_weighted(pool, [step_of(one) for one in pool], size, rng) if mix == "step" else []
        left = [one for one in pool if mix != "step" or step_of(one) <= 0]
        chosen += rng.sample(left, min(size - len(chosen), len(left)))
    else:
        most = max(size // 2, size - len(old)) if mix == "half_new" else size
        chosen = rng.sample(new, most) if len(new) >= most else list(new)
        chosen += rng.sample(old, min(size - len(chosen), len(old)))
    repeats = size - len(chosen) if chosen else 0
    return chosen + [rng.choice(chosen) for _ in range(repeats)], repeats


def is_stored(solve_rate: float, rule: str) -> bool:
    """Whether `azr.variants.buffer_filter` stores a new task. Tasks with an unknown solve rate are stored. (pure)"""
    if rule == "all" or solve_rate == UNKNOWN_RATE:
        return True
    return solve_rate < 1 and (rule == "non_one" or solve_rate > 0)


def consolidate(entries: Sequence[Entry], keep_share: float) -> list[Entry]:
    """Keep the seeds and the newest `keep_share` of the other learnable tasks, without duplicates, in order. (pure)

    Learnable means solved sometimes but not always. Tasks with an unknown solve rate count as learnable.
    """
    distinct = list({entry.key: entry for entry in entries}.values())
    learnable = [e for e in distinct if e.source != SEED and (e.solve_rate == UNKNOWN_RATE or 0 < e.solve_rate < 1)]
    kept = {entry.key for entry in learnable[len(learnable) - round(keep_share * len(learnable)) :]}
    return [entry for entry in distinct if entry.source == SEED or entry.key in kept]
