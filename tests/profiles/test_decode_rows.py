"""Rows that decode side by side while nothing trains: as many as fit, and no more."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.decode_rows import MOST_ROWS, ROUND_ROWS, decode_rows
from profiles.footprint import FRAGMENTATION, GIB, resident, rollout, work_of
from profiles.load import load_profile
from profiles.shapes import ARCHITECTURES, shape_of

SHAPE = shape_of(ARCHITECTURES["r1-qwen-1.5b"])
PROFILE = load_profile("grpo-1.5b-8gb", []).profile


def need(rows: int, prompt_tokens: int, answers: int) -> float:
    work = dataclasses.replace(
        work_of(PROFILE, SHAPE), rollout_rows=rows, prompts=-(-rows // answers), prompt_tokens=prompt_tokens
    )
    return FRAGMENTATION * sum(rollout(PROFILE, SHAPE, work).values())


@given(st.integers(0, 40 * GIB), st.integers(1, 4096), st.integers(1, 16))
def test_what_is_chosen_fits_and_a_tile_more_does_not(free: int, prompt_tokens: int, answers: int) -> None:
    rows = decode_rows(PROFILE, SHAPE, free, prompt_tokens=prompt_tokens, answers=answers)
    assert 0 <= rows <= MOST_ROWS
    assert rows < ROUND_ROWS or rows % ROUND_ROWS == 0
    assert rows == 0 or need(rows, prompt_tokens, answers) <= free
    assert rows == MOST_ROWS or need(rows + ROUND_ROWS, prompt_tokens, answers) > free


@pytest.mark.parametrize(
    ("name", "shape", "usable_gib", "trains_with", "rows"),
    [
        ("grpo-1.5b-8gb", "r1-qwen-1.5b", 7.6, 16, 64),
        ("azr-0.5b", "qwen2.5-0.5b", 11.4, 64, 112),
        ("azr-3b-qlora", "qwen2.5-3b", 15.2, 32, 64),
        ("azr-3b-qlora-8gb", "qwen2.5-3b", 7.6, 16, 32),
    ],
)
def test_shipped_profiles_validate_with_more_rows_than_they_train_with(
    name: str, shape: str, usable_gib: float, trains_with: int, rows: int
) -> None:
    profile, shape_ = load_profile(name, []).profile, shape_of(ARCHITECTURES[shape])
    held = sum(resident(profile, shape_).values())
    assert profile.sampling.max_rows == trains_with
    assert decode_rows(profile, shape_, int((usable_gib - 0.45) * GIB) - held) == rows
