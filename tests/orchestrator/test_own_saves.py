"""When a worker that saves at steps of its own saves next."""

from __future__ import annotations

import pytest

from orchestrator.own_saves import due, next_save
from profiles.schema import Run

RUN = Run(checkpoint_every=20)


@pytest.mark.parametrize(("step", "at"), [(0, 20), (1, 20), (19, 20), (20, 39), (25, 39), (39, 39)])
def test_it_is_the_next_multiple_or_the_last_step(step: int, at: int) -> None:
    assert next_save(RUN, step, 40) == at


def test_it_is_said_in_steps_and_in_time_once_a_step_was_timed() -> None:
    assert due(RUN, 17, 101, 190.0) == "that of step 20, in 3 steps, about 9 m 30 s"
    assert due(RUN, 19, 101, 0.0) == "that of step 20, in 1 step; no step has been timed yet"
