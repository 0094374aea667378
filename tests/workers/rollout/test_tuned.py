"""How a card divides its products is measured once, and an unbroken run and a resumed one divide them alike."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from state.cache import VARIABLE
from workers.rollout.graph.cuts import Cut
from workers.rollout.graph.made_once import folder
from workers.rollout.graph.tuned import Tuned

CUTS = [Cut(1, 6, 6), Cut(2, 3, 3), Cut(3, 2, 2)]
KEY = ("project", 1, 128, 1536)
FACTS = {"card": "RTX 4060", "driver": 13000}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


class Card:
    """Takes so long for each cut, and counts how often it was asked."""

    def __init__(self, tuned: Tuned, *times: float) -> None:
        self.tuned, self.times, self.asked = tuned, dict(zip(CUTS, times, strict=True)), 0

    def __call__(self) -> float:
        self.asked += 1
        return self.times[self.tuned.of(KEY, CUTS)]


def test_the_fastest_is_chosen_and_used() -> None:
    tuned = Tuned(FACTS)
    assert tuned.choose(KEY, CUTS, Card(tuned, 3.0, 1.0, 2.0)) == CUTS[1]
    assert tuned.of(KEY, CUTS) == CUTS[1]


def test_another_process_takes_what_was_measured_whatever_it_would_measure() -> None:
    first, second = Tuned(FACTS), Tuned(FACTS)
    first.choose(KEY, CUTS, Card(first, 3.0, 1.0, 2.0))
    card = Card(second, 1.0, 2.0, 3.0)
    assert second.choose(KEY, CUTS, card) == CUTS[1] and card.asked == 0


@pytest.mark.parametrize("changed", [{"card": "RTX 4070"}, {"driver": 13010}, {"sources": ["other"]}])
def test_another_card_driver_or_kernel_is_measured_anew(changed: dict[str, object]) -> None:
    first, other = Tuned(FACTS), Tuned(FACTS | changed)
    first.choose(KEY, CUTS, Card(first, 3.0, 1.0, 2.0))
    assert other.choose(KEY, CUTS, Card(other, 1.0, 2.0, 3.0)) == CUTS[0]


def test_until_it_is_measured_the_first_counts() -> None:
    """A step runs once, and compiles its kernels, before it is timed."""
    tuned = Tuned(FACTS)
    assert tuned.of(KEY, CUTS) == CUTS[0] and not tuned.knows(KEY)
    tuned.choose(KEY, CUTS, Card(tuned, 3.0, 1.0, 2.0))
    assert tuned.knows(KEY) and tuned.of(KEY, CUTS) == CUTS[1]


def test_a_choice_that_cannot_be_kept_does_not_count(own_cache: Path) -> None:
    """A resumed run would measure again, and might add in another order."""
    own_cache.write_text("no folder")
    tuned = Tuned(FACTS)
    assert tuned.choose(KEY, CUTS, Card(tuned, 3.0, 1.0, 2.0)) == CUTS[0]


def test_of_two_that_measure_at_once_the_later_takes_what_the_earlier_kept() -> None:
    first, second = Tuned(FACTS), Tuned(FACTS)

    def meanwhile() -> Iterator[float]:
        first.choose(KEY, CUTS, Card(first, 3.0, 1.0, 2.0))
        yield from count(1.0)

    times = meanwhile()
    assert second.choose(KEY, CUTS, lambda: next(times)) == CUTS[1]


def test_what_has_but_one_way_is_not_measured() -> None:
    tuned = Tuned(FACTS)
    assert tuned.choose(KEY, CUTS[:1], pytest.fail) == CUTS[0]  # type: ignore[arg-type]
    assert not folder().exists()
