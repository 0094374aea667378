"""Bounds on the distance between engine and trainer: what rounding explains passes, what it does not ends the run."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from profiles.mismatch import FLOAT32, FP8, ROUNDED, bounds_of, judged_mean
from profiles.schema import Model, Optimizer, Profile, Sampling, Vllm


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, FLOAT32),
        ({"model": Model(dtype="bfloat16")}, ROUNDED),
        ({"model": Model(quantization="nf4")}, ROUNDED),
        ({"model": Model(quantization="nf4", dtype="bfloat16", fp8=True)}, FP8),
        ({"sampling": Sampling(engine="vllm")}, ROUNDED),
        ({"sampling": Sampling(engine="vllm"), "vllm": Vllm(dtype="float32")}, FLOAT32),
        ({"optimizer": Optimizer(mismatch_limit=0)}, FLOAT32._replace(end=0)),
    ],
)
def test_the_coarsest_rounding_decides(changes: dict[str, Any], expected: Any) -> None:
    profile = Profile(name="x", **changes)
    assert bounds_of(profile, profile.optimizer.mismatch_limit) == expected


@pytest.mark.parametrize("tokens", [1, 24, 64, 400])
def test_a_healthy_engine_with_a_heavy_tail_never_ends_a_run(tokens: int) -> None:
    """Means of .02 as measured in bfloat16, log-normal with a deviation of 1.2: the largest of a thousand is 40 times
    the middle one."""
    draws = Random(tokens)
    middle = 0.02 / math.exp(1.2**2 / 2)
    for _ in range(2000):
        mean = sum(middle * math.exp(1.2 * draws.gauss(0, 1)) for _ in range(tokens)) / tokens
        assert judged_mean(mean, tokens) < ROUNDED.end


def test_models_that_were_sampled_wrongly_are_found() -> None:
    assert all(judged_mean(mean, 417) > FLOAT32.end for mean in (0.13, 0.16, 0.36, 0.52))
    assert judged_mean(1.3e-7, 417) < FLOAT32.warn < judged_mean(0.002, 417)
