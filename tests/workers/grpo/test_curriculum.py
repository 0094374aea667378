"""Rows 36 and 37 of the checklist: which problems come next, when a stage opens, and that a resume changes nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.grpo import Sent
from state.registry import Registry
from tests.workers.grpo.test_difficulty import MEASURED, of
from workers.grpo.curriculum import Curriculum, Place, advance, curriculum_of, draw, first_place

PARTS = [list(range(10)), list(range(10, 20)), list(range(20, 30))]


def opened_at(accuracy: float, uniform: float = 0.0, **knobs: Any) -> int | None:
    """The step of the first stage with which the second opens; None within 1000 steps."""
    place = first_place(2)
    for step in range(1, 1001):
        place = advance(place, accuracy, uniform, Sent(**knobs))
        if place.stage == 1:
            return step
    return None


@pytest.mark.parametrize(
    ("accuracy", "uniform", "knobs", "expected"),
    [
        pytest.param(0.8, 0.0, {}, 50, id="36 accuracy 0.8: at step 50"),
        pytest.param(0.3, 0.0, {}, 500, id="36 accuracy 0.3: at step 500"),
        pytest.param(0.75, 0.0, {}, 50, id="36 accuracy at the bound"),
        pytest.param(0.3, 0.6, {}, 50, id="36 uniform groups at the bound"),
        pytest.param(0.3, 0.59, {}, 500, id="36 uniform groups below it"),
        pytest.param(0.8, 0.0, {"min_steps": 1}, 1, id="36 the first step may do"),
        pytest.param(0.3, 0.0, {"min_steps": 7, "max_steps": 7}, 7, id="36 the least and the most are one"),
    ],
)
def test_row_36_when_the_next_stage_opens(
    accuracy: float, uniform: float, knobs: dict[str, Any], expected: int | None
) -> None:
    assert opened_at(accuracy, uniform, **knobs) == expected


def test_row_36_the_means_run_and_begin_anew_in_every_stage() -> None:
    sent = Sent(min_steps=2, max_steps=9)
    place = advance(advance(first_place(2), 0.0, 0.0, sent), 1.0, 0.0, sent)
    assert (place.stage, place.steps) == (0, 2)
    assert place.accuracy == pytest.approx(0.05)
    opened = advance(advance(first_place(2), 1.0, 0.0, sent), 1.0, 0.5, sent)
    assert opened == Place(1, 0, None, None, (0, 0, 0))


def test_row_36_there_is_no_way_back_and_after_the_last_stage_all_are_open_for_good() -> None:
    sent = Sent(min_steps=1, max_steps=1)
    place = first_place(2)
    seen = []
    for _ in range(5):
        place = advance(place, 0.0, 0.0, sent)
        seen.append(place.stage)
    assert seen == [1, 2, 2, 2, 2]


def drawn_from(place: Place, count: int, replay: float = 0.2) -> Counter[int]:
    numbers, _ = draw(place, PARTS, count, seed=3, replay=replay)
    return Counter(number // 10 for number in numbers)


def test_in_the_first_stage_only_its_own_problems_come_each_once_a_pass() -> None:
    numbers, place = draw(first_place(3), PARTS, 20, seed=3, replay=0.2)
    assert sorted(numbers[:10]) == sorted(numbers[10:]) == PARTS[0]
    assert numbers[:10] != numbers[10:]
    assert place.drawn == (20, 0, 0, 0)


def test_later_a_fifth_of_the_draws_goes_back() -> None:
    found = drawn_from(Place(2, drawn=(0, 0, 0, 0)), 2000)
    assert found[2] == pytest.approx(1600, abs=80)
    assert found[0] == pytest.approx(200, abs=50)
    assert drawn_from(Place(2, drawn=(0, 0, 0, 0)), 200, replay=0.0) == {2: 200}


def test_once_all_are_open_all_come_alike() -> None:
    numbers, _ = draw(Place(3, drawn=(7, 7, 7, 0)), PARTS, 30, seed=3, replay=0.2)
    assert sorted(numbers) == list(range(30))


def test_other_seeds_give_other_orders() -> None:
    orders = {tuple(draw(first_place(3), PARTS, 10, seed=seed, replay=0.2)[0]) for seed in range(5)}
    assert len(orders) == 5


def test_peeking_moves_nothing() -> None:
    curriculum = Curriculum(PARTS, Sent(), seed=3, digest="d")
    assert curriculum.peek(4) == curriculum.peek(4)
    numbers, curriculum.place = curriculum.peek(4)
    assert curriculum.peek(4)[0] != numbers


SENT = Sent(min_steps=2, max_steps=4)


def play(curriculum: Curriculum, steps: range) -> list[tuple[list[int], bool]]:
    seen = []
    for step in steps:
        numbers, curriculum.place = curriculum.peek(5)
        seen.append((numbers, curriculum.step_done(0.1 * step, 0.3)))
    return seen


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 9, 13])
def test_row_37_a_resumed_curriculum_draws_what_the_unbroken_one_does(tmp_path: Path, stop: int) -> None:
    unbroken, first, second = (Curriculum(PARTS, SENT, seed=3, digest="d") for _ in range(3))
    expected = play(unbroken, range(16))
    found = play(first, range(stop))
    for curriculum, act in ((first, "save"), (second, "load")):
        registry = Registry()
        registry.register(curriculum)
        getattr(registry, act)(tmp_path)
    assert found + play(second, range(stop, 16)) == expected
    assert second.place == unbroken.place
    assert any(opened for _, opened in expected)


def test_a_place_of_other_data_or_another_model_is_refused(tmp_path: Path) -> None:
    Curriculum(PARTS, SENT, seed=3, digest="a" * 64).save(tmp_path / "curriculum.json")
    for other in (
        Curriculum(PARTS, SENT, seed=3, digest="b" * 64),
        Curriculum(PARTS[:2], SENT, seed=3, digest="a" * 64),
    ):
        with pytest.raises(LonghaulError, match="other data, another model or other settings") as caught:
            other.load(tmp_path / "curriculum.json")
        assert caught.value.exit_code == ExitCode.INPUT
        assert other.place == first_place(len(other.parts))


def test_the_profile_says_the_stages_and_their_key(tmp_path: Path) -> None:
    measured = [of(number, *(["1"] * number + ["2"] * (40 - number))) for number in range(1, 20)]
    two = curriculum_of(measured, MEASURED, Sent(stages=2), 3)
    assert len(two.parts) == 2
    two.save(tmp_path / "curriculum.json")
    with pytest.raises(LonghaulError, match="other settings"):
        curriculum_of(measured, MEASURED, Sent(stages=3), 3).load(tmp_path / "curriculum.json")
    with pytest.raises(LonghaulError, match="1 problems do not fill 2 stages") as caught:
        curriculum_of(measured[:1], MEASURED, Sent(), 3)
    assert "sent.stages" in caught.value.next_command


def test_an_empty_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="without problems"):
        Curriculum([[0], []], Sent(), seed=0, digest="d")
