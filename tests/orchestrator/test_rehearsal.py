"""`run --dry-run` and `doctor --one-step`: a profile in small, or one step of it, in a directory that is then gone."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.commands.doctor import one_step
from profiles.errors import ExitCode, LonghaulError
from profiles.knobs import knobs, value_of
from profiles.load import load_profile, shipped_profiles
from profiles.rehearsal import one_step_of, rehearsal_of
from profiles.rules import check
from profiles.schema import Profile, Run
from tests import REPOSITORY

SIZES = {
    "run.max_cycles", "run.max_hours", "run.until", "run.phases", "run.steps_per_cycle", "run.checkpoint_every",
    "run.device", "run.threads", "model.path", "model.random_init", "data.tasks", "sampling.engine",
    "sampling.fallback", "sampling.max_rows", "sampling.max_prompt_tokens", "sampling.max_completion_tokens",
    "azr.proposals_per_task", "azr.group_size", "azr.references", "azr.seed_tasks", "azr.solve_batch",
    "azr.train_on_estimates", "azr.variants.random_rewards", "azr.variants.solver_mix",
    "data.sources", "data.on_exhausted",
    "data.hand_on", "grpo.group_size", "grpo.problems", "grpo.sent.samples", "grpo.entropy_min_tokens",
    "grpo.variants.random_rewards", "grpo.truncated",
    "run.gpus", "run.hosts", "grpo.groups_per_step",
    *(f"verl.{name}" for name in ("strategy", "tensor_parallel", "train_tensor_parallel", "pipeline_parallel")),
    *(f"verl.{name}" for name in ("rollout_gpus", "tokens_per_gpu", "code_server", "on_other_gpus", "start_s")),
    "optimizer.kind", "optimizer.micro_batch_size", "optimizer.row_tokens",
    "memory.cap_gib", "validation.suites", "validation.examples_per_task", "validation.every", "stagnation.min_cycles",
}  # fmt: skip
"""How much, of which weights and data, and where: what a rehearsal may have otherwise. The method is rehearsed."""


@pytest.mark.parametrize("name", shipped_profiles())
def test_a_rehearsal_of_any_shipped_profile_is_a_whole_profile_that_differs_in_sizes_alone(name: str) -> None:
    real = load_profile(name).profile
    small = rehearsal_of(real)
    assert check(small) == []
    assert {knob for knob in knobs() if "." in knob and value_of(real, knob) != value_of(small, knob)} <= SIZES
    assert value_of(small, "run.device") == "cpu"


@pytest.mark.parametrize("name", ["pocket", "pocket-grpo", "fake", "azr-3b-qlora"])
@pytest.mark.parametrize(
    ("use", "kept"), [('["wandb","trackio"]', ()), ('["wandb","tensorboard"]', ("tensorboard",)), ("[]", ())]
)
def test_a_rehearsal_is_told_to_no_tracker_that_keeps_it(name: str, use: str, kept: tuple[str, ...]) -> None:
    real = load_profile(name, [f"trackers.use={use}", 'trackers.project="mine"']).profile
    assert rehearsal_of(real).trackers.use == kept


@pytest.mark.parametrize("name", [name for name in shipped_profiles() if re.fullmatch(r"grpo-.*\dgb", name)])
def test_a_twin_of_grpo_differs_in_sizes_alone(name: str) -> None:
    real, twin = load_profile(name).profile, load_profile(f"{name}-debug").profile
    assert {knob for knob in knobs() if "." in knob and value_of(real, knob) != value_of(twin, knob)} <= SIZES


@pytest.mark.parametrize("name", ["pocket-grpo", "grpo-1.5b-8gb"])
def test_a_rehearsal_of_grpo_reads_problems_that_are_there(name: str) -> None:
    real = load_profile(name, ["data.tasks=mine.jsonl"]).profile
    there, missing = rehearsal_of(real, has_data=True), rehearsal_of(real)
    assert (there.data, missing.data.tasks) == (real.data, "pocket-words")
    assert check(there) == [] and there.sampling.max_prompt_tokens >= real.sampling.max_prompt_tokens


def dry_run(profile: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(folder)}
    environment.pop("LONGHAUL_DATA", None)
    command = [sys.executable, "-m", "orchestrator", "run", "--profile", profile, "--dry-run"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_grpo_with_a_model_and_data_that_are_not_there_is_rehearsed_and_leaves_nothing(tmp_path: Path) -> None:
    done = dry_run("grpo-1.5b-8gb", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dry run of grpo-1.5b-8gb: done" in done.stdout
    (last,) = [line for line in done.stdout.splitlines() if line.startswith("last step")]
    facts = dict(part.rsplit(" ", 1) for part in last.removeprefix("last step").strip().split(", "))
    assert float(facts["grad norm"]) > 0 and float(facts["kept tokens"]) < 1 and "stage" in facts
    assert "validations  words at step 0 (6 problems), words at step 3 (6 problems)" in done.stdout
    assert not list(tmp_path.glob("longhaul-*"))


@pytest.mark.slow
def test_a_rehearsal_that_fails_keeps_its_logs_and_names_them(tmp_path: Path) -> None:
    profile = tmp_path / "broken.toml"
    profile.write_text('extends = "grpo-1.5b-8gb"\n[adapter]\ntargets = ["nothing"]\n')
    done = dry_run(str(profile), tmp_path)
    assert done.returncode == 66 and "adapter.targets names nothing, which this model does not have" in done.stderr
    assert list(tmp_path.glob("longhaul-dry-run-*/rehearsal/state.db"))


# --- one step ---------------------------------------------------------------------------------------------------------


AROUND_A_STEP = {
    "run.max_cycles", "run.max_hours", "run.until", "run.phases", "run.steps_per_cycle", "run.checkpoint_every",
    "validation.examples_per_task", "validation.every", "trackers.use", "azr.seed_tasks", "grpo.problems",
}  # fmt: skip
"""What comes before and after a step. Its model, data, lengths, batch, GPUs and launcher are the profile's."""


@pytest.mark.parametrize("name", shipped_profiles())
def test_one_step_of_any_shipped_profile_is_its_own_step(name: str) -> None:
    real = load_profile(name).profile
    one = one_step_of(real)
    assert check(one) == []
    assert {knob for knob in knobs() if "." in knob and value_of(real, knob) != value_of(one, knob)} <= AROUND_A_STEP


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_doctor_trains_one_step_with_a_checkpoint_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orchestrator", "doctor", "--one-step", "--profile", "fake", "--json"]
    done = subprocess.run(
        [*command, "--runs", str(tmp_path / "runs")],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    findings = {one["check"]: one for one in json.loads(done.stdout)}
    if any(one["state"] == "fail" for name, one in findings.items() if name != "one step"):
        pytest.skip("this machine cannot run a profile")
    assert done.returncode == 0, done.stdout + done.stderr
    assert findings["one step"]["detail"].startswith("trained, checkpoint verified")
    assert "one step of fake: done" in done.stderr and "steps        1," in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_step_that_fails_has_the_exit_code_of_a_run_and_keeps_its_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orchestrator", "doctor", "--one-step", "--profile", "fake", "--json"]
    done = subprocess.run(
        [*command, "--runs", str(tmp_path), "--set", "launch.launcher=slurm"],
        cwd=REPOSITORY,
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    finding = json.loads(done.stdout)[-1]
    assert (done.returncode, finding["check"], finding["state"]) == (ExitCode.CLUSTER, "one step", "fail"), done.stderr
    assert "there is no program `sbatch` here" in finding["detail"]
    assert list(tmp_path.glob("longhaul-one-step-*/rehearsal/state.db"))


def test_a_step_is_not_tried_after_a_failed_check(tmp_path: Path) -> None:
    args = argparse.Namespace(json=True, runs=tmp_path)
    finding = one_step(load_profile("fake").profile, args, has_failed=True)
    assert (finding.state, finding.detail) == ("warn", "not tried: a check before it failed")
    assert list(tmp_path.iterdir()) == []


def test_a_worker_whose_sizes_are_not_in_the_profile_is_refused_with_what_to_type_instead() -> None:
    with pytest.raises(LonghaulError) as refused:
        rehearsal_of(Profile(name="guide", run=Run(worker="open_instruct")))
    assert refused.value.exit_code == ExitCode.INPUT
    assert refused.value.next_command == "python -m orchestrator plan --profile guide"
