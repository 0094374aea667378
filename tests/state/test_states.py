"""The tables of states, as properties."""

from __future__ import annotations

import pytest

from state.states import ATTEMPT_EDGES, FINAL, AttemptState


def reachable(start: AttemptState) -> set[AttemptState]:
    """Every state that an attempt may come to after `start`."""
    found: set[AttemptState] = set()
    ahead = [start]
    while ahead:
        new = ATTEMPT_EDGES[ahead.pop()] - found
        found |= new
        ahead += new
    return found


@pytest.mark.parametrize("stored", sorted(set(AttemptState) - FINAL))
def test_whatever_suffix_of_states_power_took_the_attempt_can_be_closed_as_its_files_say(stored: AttemptState) -> None:
    # States between two FULL commits may be lost, so any earlier one may be what the next master finds.
    assert reachable(stored) & FINAL <= ATTEMPT_EDGES[stored]


@pytest.mark.parametrize("ended", sorted(FINAL))
def test_an_attempt_that_ended_stays_as_it_ended(ended: AttemptState) -> None:
    assert not ATTEMPT_EDGES[ended]
