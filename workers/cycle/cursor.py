"""The position in a finite source of tasks: epoch, order, position. Its end raises Exhausted, not StopIteration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from workers.rng import derive


class Exhausted(Exception):
    """The finite source of tasks is used up, and the profile says to stop. Nothing of the step has happened."""


@dataclass(frozen=True)
class Place:
    """How much has been read: `position` tasks of the order of `epoch`."""

    epoch: int = 0
    position: int = 0


class Cursor:
    """Reads `size` tasks, in a new order each epoch. Registered: a checkpoint holds its place."""

    filename = "cursor.json"

    def __init__(self, size: int, seed: int, at_end: Literal["reshuffle", "stop"]) -> None:
        if size < 1:
            raise ValueError("a source without tasks")
        self.size, self.seed, self.at_end = size, seed, at_end
        self.place = Place()

    def save(self, path: Path) -> None:
        state = {"epoch": self.place.epoch, "position": self.place.position, "order_seed": self._order_seed()}
        path.write_bytes(msgspec.json.encode(state))

    def load(self, path: Path) -> None:
        state = msgspec.json.decode(path.read_bytes())
        self.place = Place(state["epoch"], state["position"])

    def peek(self, count: int, after: Place | None = None) -> tuple[list[int], Place]:
        """Numbers of the next `count` tasks, and the place after them. Nothing moves until `place` is set.

        after: another place than where the source is. A batch may reach into the next epoch. With at_end "stop" the
        last batch may be smaller, and then Exhausted is raised.
        """
        place = after or self.place
        numbers: list[int] = []
        while len(numbers) < count:
            if place.position == self.size:
                if self.at_end == "stop":
                    break
                place = Place(place.epoch + 1, 0)
            order = self._order(place.epoch)
            taken = order[place.position : place.position + count - len(numbers)]
            numbers += taken
            place = Place(place.epoch, place.position + len(taken))
        if not numbers:
            raise Exhausted(f"all {self.size} tasks of the source are used up")
        return numbers, place

    def _order(self, epoch: int) -> list[int]:
        order = list(range(self.size))
        Random(self._order_seed(epoch)).shuffle(order)
        return order

    def _order_seed(self, epoch: int | None = None) -> int:
        return derive(self.seed, self.place.epoch if epoch is None else epoch, "data order")
