"""The plan of a profile for verl: the shipped ones on every cluster that they name, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cluster_plan import least_hosts, refusals
from orchestrator.verl_job import job_of
from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB
from profiles.load import load_profile
from profiles.shapes import CLUSTER_ARCHITECTURES, shape_of
from tests import REPOSITORY

SHAPE = shape_of(CLUSTER_ARCHITECTURES["olmo3-32b"])
CARD = int(95.6 * GIB)
CLUSTERS = {(8, 4): (32, 16), (16, 4): (32, 16), (20, 4): (40, 20), (8, 8): (32, 16), (12, 8): (36, 24)}
"""Hosts and GPUs -> groups of a step, in production and in a rehearsal, as the profiles' heads say."""
HIGHEST = {(8, 4): 67.2, (16, 4): 59.3, (20, 4): 57.8, (8, 8): 59.3, (12, 8): 56.7}
NAMES = ("grpo-32b-math", "grpo-32b-code", "grpo-32b-math-debug", "grpo-32b-code-debug")


def on(name: str, hosts: int, gpus: int, *more: str) -> list[str]:
    groups = CLUSTERS.get((hosts, gpus), (32, 16))[name.endswith("-debug")]
    return [f"run.hosts={hosts}", f"run.gpus={gpus}", f"grpo.groups_per_step={groups}", *more]


@pytest.mark.parametrize(("hosts", "gpus"), CLUSTERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_profile_fits_every_cluster_that_it_names(name: str, hosts: int, gpus: int) -> None:
    job = job_of(load_profile(name, on(name, hosts, gpus)).profile, SHAPE, CARD)
    assert refusals(job) == [] and job.rollouts.engines == hosts * gpus // 4
    assert job.demand.device / GIB == pytest.approx(HIGHEST[hosts, gpus], abs=0.1)


def test_too_few_hosts_are_refused_and_the_fewest_named() -> None:
    job = job_of(load_profile("grpo-32b-math", on("grpo-32b-math", 2, 4)).profile, SHAPE, CARD)
    assert [one.about for one in refusals(job)] == ["memory"] and least_hosts(job) == 4


def test_a_kl_loads_a_reference_and_an_adapter_does_without_one() -> None:
    def held(*more: str) -> dict[str, int]:
        profile = load_profile("grpo-32b-math", ["grpo.kl_coef=0.01", *more]).profile
        return dict(job_of(profile, SHAPE, CARD).demand.parts["load"])

    assert held()["reference"] == 2 * SHAPE.parameters // 64
    small = held("adapter.rank=16")
    assert "reference" not in small and small["moments"] < held()["moments"] / 100


def test_gpus_that_only_draw_do_not_train_and_need_no_room_beside_an_engine() -> None:
    profile = load_profile("grpo-32b-math", ["verl.rollout_gpus=2", "verl.tensor_parallel=2"]).profile
    job = job_of(profile, SHAPE, CARD)
    assert (job.sharding.shards, job.rollouts.engines, job.shares_gpus) == (32, 16, False)
    assert job.room_for_engines == 16 and refusals(job) == []


def test_megatron_is_not_planned() -> None:
    with pytest.raises(LonghaulError, match=r'knows verl\.strategy = "fsdp2" alone'):
        job_of(load_profile("grpo-32b-math", ["verl.strategy=megatron"]).profile, SHAPE, CARD)


def test_the_command_plans_such_a_profile(tmp_path: Path) -> None:
    def plan(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator", "plan", "--profile", "grpo-32b-math", "--card", "95.6", *words]
        variables = {"PYTHONPATH": str(REPOSITORY), "PATH": ""}
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    told = json.loads(plan("--json").stdout)
    assert told["refused"] == {} and told["parameters"] == 32_233_522_176 and told["engines"] == 16
    limited = ("--set", "launch.time_limit_minutes=1440", "--step-s", "190")
    told = json.loads(plan(*limited, "--json").stdout)
    assert told["steps_per_job"] and told == json.loads(plan("--limit-h", "24", "--step-s", "190", "--json").stdout)
    few = plan("--set", "run.hosts=2")
    assert few.returncode == ExitCode.CUDA_OOM
    assert "next:  python -m orchestrator plan --profile grpo-32b-math --set run.hosts=4 --card 95.6" in few.stdout
