"""The `-debug` twins walk the path of the profiles for real models, on a CPU: seed, train, checkpoint, validate."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from profiles.__main__ import PROFILE_PAGES
from profiles.knobs import knobs, value_of
from profiles.load import load_profile
from profiles.schema import Profile
from tests import REPOSITORY
from tests.workers import harness as h
from tests.workers.test_azr_worker import checkpoint_of, do
from tests.workers.torch_settings import torch_as_it_was
from workers.azr.kind import job
from workers.contract import Outcome
from workers.control import Control
from workers.models import proof
from workers.runtime import carry_out
from workers.sandbox import Limits, Sandbox

TWINS = ["azr-0.5b", "azr-3b-qlora", "azr-3b-qlora-8gb", "azr-qwen3-4b-12gb", "azr-7b-24gb", "azr-paper"]
GRPO_TWINS = PROFILE_PAGES["profiles-grpo.md"]
SIZES = {
    "run.max_cycles", "run.steps_per_cycle", "run.checkpoint_every", "run.device", "model.path", "model.random_init",
    "sampling.max_prompt_tokens", "sampling.max_completion_tokens", "sampling.max_rows", "azr.proposals_per_task",
    "azr.group_size", "azr.solve_batch", "azr.references", "azr.seed_tasks", "azr.variants.random_rewards",
    "optimizer.micro_batch_size", "optimizer.row_tokens", "validation.examples_per_task", "validation.suites",
    "stagnation.min_cycles",
}  # fmt: skip
"""How much, of which weights, and where: what a rehearsal may have otherwise. All else is what is rehearsed."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(allow_weak=True), jobs=1) as box:
        yield box


@pytest.fixture(autouse=True)
def leave_torch_as_it_was() -> Iterator[None]:
    with torch_as_it_was():
        yield


def twin_of(name: str) -> Profile:
    small = ["run.threads=1", "sampling.max_completion_tokens=8", "validation.examples_per_task=2"]
    return load_profile(f"{name}-debug", small).profile


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_differs_in_sizes_alone(name: str) -> None:
    real, twin = load_profile(name).profile, load_profile(f"{name}-debug").profile
    differing = {knob for knob in knobs() if "." in knob and value_of(real, knob) != value_of(twin, knob)}
    assert differing <= SIZES


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    ["azr-3b-qlora", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in TWINS if one != "azr-3b-qlora")],
)
def test_a_twin_seeds_trains_and_is_validated(name: str, tmp_path: Path, sandbox: Sandbox) -> None:
    profile = twin_of(name)
    seeded = do(h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0), sandbox)
    trained = do(h.make_spec(tmp_path, profile, head=checkpoint_of(seeded), end_step=2), sandbox)
    assert trained.outcome is Outcome.DONE, trained.error
    directory = tmp_path / checkpoint_of(trained).path
    spec = h.make_spec(tmp_path, profile, head=checkpoint_of(trained), end_step=2, role="validate")
    carry_out(spec, Control(None, ""), job(spec, sandbox))
    assert h.result_of(spec).outcome is Outcome.DONE, h.result_of(spec).error

    (step,) = h.events_at(tmp_path / "cycles/0001/attempt-1", "step")
    assert step.data["grad_norm"] > 0 and step.data["mismatch_max"] < 0.1
    with safe_open(directory / "optimizer.safetensors", "pt") as stored:
        kinds = {name.rpartition(".")[2] for name in stored.keys()}  # noqa: SIM118 - not a mapping
    assert ("state1" in kinds) == (profile.optimizer.kind == "adamw8bit")
    assert ("master" in kinds) == (profile.adapter.rank == 0)
    assert (directory / "model.safetensors").exists() == (profile.adapter.rank == 0)
    if profile.adapter.rank:
        assert json.loads((directory / proof.FILENAME).read_bytes())["num_trained"] == 2 * 7


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    ["grpo-8b-24gb", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in GRPO_TWINS if one != "grpo-8b-24gb")],
)
def test_a_twin_of_grpo_trains_and_is_validated_by_the_daemon(name: str, tmp_path: Path) -> None:
    words = ["run", "--plain", "--profile", f"{name}-debug", "--runs", str(tmp_path), "--run", "twin"]
    small = ["--max-cycles", "1", "--set", "run.threads=1", "--set", "validation.examples_per_task=1"]
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *words, *small],
        capture_output=True, text=True, cwd=REPOSITORY, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    step, *_ = h.events_at(tmp_path / "twin/cycles/0001/attempt-1", "step")
    assert step.data["grad_norm"] > 0 and step.data["mismatch_max"] < 0.1
    assert (tmp_path / "twin/cycles/0001/validate-1").is_dir()
