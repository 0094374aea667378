"""`python -m benchmarks verl_gpu` as far as it can be tried without a GPU: what it asks for, and what it says then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from benchmarks import verl_gpu
from benchmarks.verl_gpu import FAULTY, NAMED, PARTS, planned_bytes, profile_of, reason_against, settings
from profiles.footprint import GIB
from profiles.rules import check as check_rules
from tests import REPOSITORY
from tests.workers.verl.test_settings import needs_verl
from workers.models import random_init
from workers.verl.digests import Sent
from workers.verl.probe import known_layout, sequences

ALL = ("verl", "ray", "vllm")


@pytest.mark.parametrize(
    ("part", "gpus", "installed", "said"),
    [
        ("weights", 1, ALL, ""),
        ("weights", 0, ALL, "needs 1 NVIDIA GPU, and PyTorch finds none"),
        ("weights", 2, ("verl", "ray"), "vllm not installed"),
        ("train", 1, ALL, ""),
        ("train", 1, ("vllm",), "verl and ray not installed"),
        ("ranks", 1, (), "needs 2 NVIDIA GPUs, and PyTorch finds 1"),
        ("ranks", 2, (), ""),
    ],
)
def test_what_a_part_needs(part: str, gpus: int, installed: tuple[str, ...], said: str) -> None:
    reason = reason_against(PARTS[part], gpus, installed)
    assert reason.startswith(said) if said else reason == ""


def test_without_a_gpu_each_part_says_why_it_is_skipped() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "benchmarks", "verl_gpu"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in PARTS:
        assert f"== {name}\nskipped: " in done.stdout


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_job_is_one_that_the_rules_and_the_plan_take(gpus: int) -> None:
    profile = profile_of(settings("qwen2.5-0.5b", 4, gpus))
    assert [one.text for one in check_rules(profile)] == []
    # 16 bytes of state for each of 494 million parameters on one GPU, half of it on two, and what a pass holds.
    state = 16 * 494_032_768 / gpus
    assert state < planned_bytes(profile, "qwen2.5-0.5b", 80 * GIB) < state + 30 * GIB


@needs_verl
def test_the_pinned_verl_knows_its_settings() -> None:
    from workers.verl import check
    from workers.verl import settings as verls

    check.compose(verls.settings(profile_of(settings("qwen2.5-0.5b", 4, 2)), check.EXAMPLE))


def test_the_model_s_weights_and_true_log_probs_are_read_on_a_cpu(tmp_path: Path) -> None:
    random_init.write("qwen2-tiny", 0, "bfloat16", tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    layout = known_layout(config, ranks=1)
    assert layout is not None
    sent = Sent(layout, torch.bfloat16)
    names = [name for name, _ in sent.watch(verl_gpu.tensors_of(tmp_path))]
    assert NAMED in names and set(sent.by_rank[0]) == set(names) and sent.vocabulary == config.vocab_size
    (row,) = sequences([range(config.vocab_size)], 1, 16)
    (found,) = verl_gpu.true_log_probs(tmp_path, [row])
    assert len(found) == 15 and all(one < 0 for one in found)


def test_a_fault_changes_a_tensor_that_the_digests_name() -> None:
    class Model:
        model: object

    tensor = torch.arange(12.0).reshape(6, 2)
    inspecting = verl_gpu.Inspecting()
    inspecting.model_runner = Model()  # type: ignore[attr-defined]
    inspecting.model_runner.model = torch.nn.Module()  # type: ignore[attr-defined]
    inspecting.model_runner.model.named_parameters = lambda: [(FAULTY, torch.nn.Parameter(tensor))]  # type: ignore[attr-defined]
    inspecting.longhaul_fault("swap")
    assert tensor[:2].tolist() == [[2.0, 3.0], [0.0, 1.0]]
    inspecting.longhaul_fault("zero")
    assert not tensor.any()


def test_the_daemon_s_settings_name_each_knob_once() -> None:
    names = [one.partition("=")[0] for one in settings("qwen2.5-0.5b", 4, 2)]
    assert len(names) == len(set(names))
