"""Self-play that trains all weights in bfloat16: a resume is bit-exact, copies, moments and all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from profiles.schema import Model, Optimizer
from tests.workers import harness as h
from tests.workers.test_azr_worker import checkpoint_of, do
from tests.workers.torch_settings import torch_as_it_was
from workers.sandbox import Limits, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(allow_weak=True), jobs=1) as box:
        yield box


@pytest.fixture(autouse=True)
def leave_torch_as_it_was() -> Iterator[None]:
    with torch_as_it_was():
        yield


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"kind": "adamw8bit"}, id="8 bits"),
        pytest.param({"offload": True}, id="offloaded", marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_in_bfloat16_resumes_to_the_same_bytes(
    changes: dict[str, object], tmp_path: Path, sandbox: Sandbox
) -> None:
    profile = h.tiny_profile(
        model=Model(dtype="bfloat16", gradient_checkpointing=True),
        optimizer=Optimizer(micro_batch_size=16, warmup_steps=0, learning_rate=1e-4, **changes),  # type: ignore[arg-type]
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    seeded = checkpoint_of(do(h.make_spec(whole, profile, head=None, end_step=1, cycle=0), sandbox))
    shutil.copytree(whole, broken)
    unbroken = checkpoint_of(do(h.make_spec(whole, profile, head=seeded, end_step=3), sandbox))
    middle = checkpoint_of(do(h.make_spec(broken, profile, head=seeded, end_step=2), sandbox))
    resumed = checkpoint_of(do(h.make_spec(broken, profile, head=middle, end_step=3, attempt=2), sandbox))
    assert resumed.digest == unbroken.digest != middle.digest

    weights = load_file(whole / unbroken.path / "model.safetensors")
    state = load_file(whole / unbroken.path / "optimizer.safetensors")
    for name, weight in weights.items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(state[f"{name}.master"].to(torch.bfloat16), weight)
