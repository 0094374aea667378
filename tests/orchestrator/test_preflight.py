"""`run` on a machine that lacks what the profile needs: the message, the next command, the exit code."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.judging import judge, shape_for
from orchestrator.machine import Card, Machine
from orchestrator.preflight import a_card_of, examined, fitting, memory_line, nearest_first, table
from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB
from profiles.knobs import with_values
from profiles.load import load_profile, shipped_profiles
from profiles.schema import Model
from profiles.shapes import ARCHITECTURES, shape_of
from tests import REPOSITORY


class Cli:
    """`run` as typed on a machine with such a card (None: no driver at all)."""

    command = "run"

    def __init__(self, folder: Path, mib: int | None, *words: str, **variables: str) -> None:
        tools = folder / "bin"
        tools.mkdir(exist_ok=True)
        if mib is not None:
            script = f"#!/bin/sh\necho '0, GPU-1, NVIDIA Small, {mib}, 0'\n"
            (tools / "nvidia-smi").write_text(script)
            (tools / "nvidia-smi").chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        command = [sys.executable, "-m", "orchestrator", self.command, *words]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=60,
            env={**environment, "PATH": str(tools), "PYTHONPATH": str(REPOSITORY), **variables},
        )  # fmt: skip
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.began = (folder / "runs").exists()


class Plan(Cli):
    """`plan`, likewise."""

    command = "plan"


needs_no_gpu = pytest.mark.skipif(
    any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")), reason="there may be a GPU here"
)


@needs_no_gpu
def test_a_gpu_profile_without_a_gpu_says_which_profiles_fit(tmp_path: Path) -> None:
    cli = Cli(tmp_path, None, "--profile", "azr-0.5b")
    assert cli.code == ExitCode.GPU == 72 and not cli.began
    assert "needs a GPU" in cli.err and "kept:  nothing was started" in cli.err
    (listed,) = re.findall(r"these fit: (.*)", cli.err)
    assert set(listed.split(", ")) == {"fake", "pocket", "pocket-grpo"}  # and their twins, which train nothing of use
    assert "next:  python -m orchestrator run --profile azr-0.5b-debug" in cli.err


def test_a_card_that_is_too_small_gets_the_table_and_settings_that_can_be_pasted(tmp_path: Path) -> None:
    words = ["--profile", "azr-0.5b", "--set", "optimizer.micro_batch_size=8"]
    cli = Cli(tmp_path, 8192, *words)
    assert cli.code == ExitCode.CUDA_OOM == 71 and not cli.began
    assert "7.70 GiB of NVIDIA Small are usable" in cli.err and "copies 1.84" in cli.err
    (line,) = re.findall(r"next:  python -m orchestrator run (.*)", cli.err)
    pasted = Plan(tmp_path, 8192, *shlex.split(line), "--json")
    assert pasted.code == 0 and json.loads(pasted.out)["fits"] is True
    assert "micro_batch_size=8" not in line  # replaced, not said twice


def test_a_plan_is_printed_and_nothing_is_started(tmp_path: Path) -> None:
    cli = Plan(tmp_path, 12288, "--profile", "azr-0.5b")
    assert cli.code == 0 and not cli.began
    rows = {line.split()[0]: line for line in cli.out.splitlines()[2:-5]}
    assert list(rows) == ["load", "rollout", "score", "train"]
    fits, *rest = cli.out.splitlines()[-5:]
    assert [line.partition(":")[0] for line in rest] == ["disk", "RAM", "store", "time"]
    assert fits.startswith("fits: ") and "rollouts by native\n" in cli.out
    auto = Plan(tmp_path, 12288, "--profile", "azr-0.5b", "--set", "sampling.engine=auto")
    assert "rollouts by native (auto: captured steps" in auto.out
    other = Plan(tmp_path, 12288, "--profile", "azr-0.5b", "--card", "5")
    assert (
        other.code == ExitCode.CUDA_OOM and "does not fit" in other.out and "--set optimizer.offload=true" in other.out
    )


def test_a_slice_of_a_card_is_planned_without_a_card_and_refused_by_nobody(tmp_path: Path) -> None:
    cli = Plan(tmp_path, 12288, "--profile", "azr-0.5b", CUDA_VISIBLE_DEVICES="MIG-1")
    assert cli.code == 0 and "no card is known here (nvidia-smi cannot tell which card CUDA_VISIBLE_DEVICES" in cli.out
    args = Namespace(run=None, profile="azr-0.5b", overrides=[])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", str(tmp_path / "bin"))
        patched.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
        assert not examined(load_profile("azr-0.5b").profile, args, is_new=True).is_refused
        patched.setenv("CUDA_VISIBLE_DEVICES", "1")
        with pytest.raises(LonghaulError, match="needs a GPU"):
            examined(load_profile("azr-0.5b").profile, args, is_new=True)


@pytest.mark.parametrize("card", ["nan", "inf", "-1", "0", "1e300", "large"])
def test_a_card_of_no_size_is_a_wrong_command_line(card: str, tmp_path: Path) -> None:
    cli = Plan(tmp_path, None, "--profile", "grpo-1.5b-8gb", f"--card={card}")
    assert cli.code == ExitCode.USAGE == 2 and "Traceback" not in cli.err
    assert cli.err.endswith(f"error: argument --card: a number above 0 and up to 100,000 is needed, not '{card}'\n")


def test_a_card_that_is_smaller_than_what_is_reserved_has_nothing_to_use(tmp_path: Path) -> None:
    cli = Plan(tmp_path, None, "--profile", "grpo-1.5b-8gb", "--card", "0.2")
    assert cli.code == ExitCode.CUDA_OOM and "of 0.00 GiB usable of a card of 0.2 GB" in cli.out


@pytest.mark.parametrize(
    ("name", "first"), [("grpo-1.5b-8gb", ["pocket-grpo", "pocket"]), ("azr-3b-qlora", ["pocket", "pocket-grpo"])]
)
def test_other_profiles_of_the_same_algorithm_come_first_and_those_for_trying_last(name: str, first: list[str]) -> None:
    found = nearest_first(fitting(a_card_of(2, has_vllm=False)), load_profile(name).profile)
    assert found[: len(first)] == first
    assert all(one.endswith("-debug") or one == "fake" for one in found[len(first) :])


@pytest.mark.parametrize("command", [Plan, Cli])
def test_adapters_for_layers_that_the_model_has_not_are_refused_before_anything_starts(
    command: type[Cli], tmp_path: Path
) -> None:
    cli = command(tmp_path, 24000, "--profile", "grpo-1.5b-8gb", "--set", 'adapter.targets=["foo","q_proj"]')
    assert cli.code == ExitCode.INPUT and not cli.began
    assert "adapter.targets names foo, which this model does not have; its linear layers are down_proj," in cli.err


NONE_FITS = (
    r"no setting of this one fits: with sequences of 128 tokens it still needs (.*) GiB, "
    r"of which loading the model takes (.*)"
)


@pytest.mark.parametrize(
    ("profile", "usable", "helps"),
    [("grpo-1.5b-8gb", 1.7, "a larger card, a smaller model"),
     ("azr-0.5b", 3.7, "a larger card, a smaller model, a 4-bit base with an adapter")],
)  # fmt: skip
def test_where_even_short_sequences_do_not_fit_no_setting_is_promised(
    tmp_path: Path, profile: str, usable: float, helps: str
) -> None:
    cli = Plan(tmp_path, None, "--profile", profile, "--card", str(usable + 0.3))
    assert cli.code == ExitCode.CUDA_OOM and "shorter sequences" not in cli.out
    told = re.search(rf"next:  .*\({NONE_FITS}; what can help: {helps}; these fit: ", cli.out)
    assert told is not None and float(told[1]) > usable and float(told[1]) > float(told[2])
    short = ["--set", "sampling.max_prompt_tokens=64", "--set", "sampling.max_completion_tokens=64"]
    assert "; these fit: " in Plan(tmp_path, None, "--profile", profile, *short, "--card", str(usable + 0.3)).out


def test_where_shorter_sequences_would_fit_it_is_said(tmp_path: Path) -> None:
    cli = Plan(tmp_path, None, "--profile", "azr-3b-qlora-8gb", "--card", "3.8")
    assert cli.code == ExitCode.CUDA_OOM and "(this one may fit with shorter sequences; these fit: " in cli.out
    short = ["--set", "sampling.max_prompt_tokens=64", "--set", "sampling.max_completion_tokens=64"]
    fitting = Plan(tmp_path, None, "--profile", "azr-3b-qlora-8gb", *short, "--card", "3.8")
    assert "\nfits" in fitting.out or "run --profile azr-3b-qlora-8gb " in fitting.out


@needs_no_gpu
def test_a_plan_needs_no_card(tmp_path: Path) -> None:
    cli = Plan(tmp_path, None, "--profile", "azr-3b-qlora")
    assert cli.code == 0 and "no card is known here" in cli.out
    assert Plan(tmp_path, None, "--profile", "pocket").out.startswith("profile 'pocket' is not planned")


def test_more_gpus_than_the_machine_has_are_refused_with_what_to_type(tmp_path: Path) -> None:
    words = ["--profile", "azr-3b-qlora", "--set", "run.gpus=2"]
    cli = Cli(tmp_path, 24000, *words)
    assert cli.code == ExitCode.GPU and not cli.began
    assert "needs 2 GPUs (run.gpus), but this machine has 1" in cli.err
    assert cli.err.rstrip().endswith("run --profile azr-3b-qlora --set run.gpus=1")
    plan = Plan(tmp_path, 24000, *words)
    assert plan.code == 0 and "on each of 2 GPUs; whole on each: the frozen base" in plan.out
    assert "this machine has 1 GPUs: a run would be refused here" in plan.out


def test_a_card_that_draws_rollouts_is_planned_on_its_own_and_must_be_there(tmp_path: Path) -> None:
    words = ["--profile", "azr-3b-qlora", "--set", "run.overlap=1", "--set", "run.sampler_device=cuda:1"]
    cli = Cli(tmp_path, 24000, *words)
    assert cli.code == ExitCode.GPU and not cli.began
    assert "needs 2 GPUs (run.sampler_device), but this machine has 1" in cli.err
    assert cli.err.rstrip().endswith("run --profile azr-3b-qlora --set run.overlap=1 --set run.sampler_device=")
    plan = Plan(tmp_path, 24000, *words)
    assert plan.code == 0 and "two cards: rollout is all that cuda:1 holds, the others train on cuda:0" in plan.out
    assert "this machine has 1 GPUs: a run would be refused here" in plan.out


def test_of_several_cards_the_one_with_least_room_decides() -> None:
    machine = Machine((Card("large", 24 * GIB), Card("small", 12 * GIB), Card("smaller", 4 * GIB)))
    profile = load_profile("azr-3b-qlora", ["run.gpus=2"]).profile
    verdict = judge(profile, machine)
    assert verdict.plan is not None and verdict.plan.usable_bytes == machine.cards[1].usable_bytes  # type: ignore[index]
    sampled = load_profile("azr-3b-qlora", ["run.overlap=1", "run.sampler_device=cuda:2"]).profile
    plan = judge(sampled, machine).plan
    assert plan is not None and plan.usable_bytes == machine.cards[2].usable_bytes  # type: ignore[index]
    assert not machine.lacks(3) and machine.lacks(4) and not Machine(None).lacks(4)


def small(**changes: object) -> Machine:
    return Machine((Card("small \x1b[2J", int(6 * GIB)),), **changes)  # type: ignore[arg-type]


def test_a_person_may_start_all_the_same_and_is_told_what_to_expect() -> None:
    profile = load_profile("azr-0.5b").profile
    assert judge(profile, small()).is_refused
    mine = judge(with_values(profile, {"memory.on_small_card": "warn"}), small())
    assert not mine.is_refused
    assert "that is too much" in memory_line(mine) and "\x1b" not in memory_line(mine)


def test_the_worst_case_is_told_before_the_first_step_with_the_engine() -> None:
    mine = load_profile("azr-0.5b").profile
    line = r"memory: up to \d+\.\d\d of 11\.70 GiB of a card of 12 GB expected \(train\); rollouts by native"
    assert re.fullmatch(line, memory_line(judge(mine, a_card_of(12, has_vllm=False))))
    picked = judge(with_values(mine, {"sampling.engine": "auto"}), a_card_of(12, has_vllm=True))
    assert re.fullmatch(line + r" \(auto: captured steps, the fastest engine measured\)", memory_line(picked))
    assert memory_line(judge(load_profile("pocket").profile, small())) == ""


def test_an_unknown_card_is_left_to_the_worker() -> None:
    verdict = judge(load_profile("azr-0.5b").profile, Machine(None))
    assert not verdict.is_refused and verdict.plan is not None and verdict.plan.fits


@pytest.mark.parametrize(
    ("cap", "said"),
    [
        (8.0, "run --profile azr-0.5b --set memory.cap_gib=8.0 --set optimizer.micro_batch_size="),
        (2.0, "no setting of"),
    ],
)
def test_a_cap_without_a_card_is_planned_with_and_refuses_nothing(tmp_path: Path, cap: float, said: str) -> None:
    profile = load_profile("azr-0.5b", [f"memory.cap_gib={cap}"]).profile
    assert not judge(profile, Machine(None)).is_refused
    cli = Plan(tmp_path, None, "--profile", "azr-0.5b", "--set", f"memory.cap_gib={cap}")
    assert f"does not fit: 8.94 of {cap:.2f} GiB usable of memory.cap_gib" in cli.out and said in cli.out


def test_profiles_that_fit_grow_with_the_card() -> None:
    cards = [fitting(a_card_of(size, has_vllm=False)) for size in (4, 8, 12, 16)]
    assert all(set(smaller) <= set(larger) for smaller, larger in pairwise(cards))
    assert "azr-3b-qlora-8gb" not in cards[0] and "azr-3b-qlora-8gb" in cards[1]
    assert "azr-0.5b" in cards[2] and set(cards[3]) >= {"azr-3b-qlora", "pocket"}


def test_every_shipped_gpu_profile_can_be_planned_before_its_model_is_there() -> None:
    for name in shipped_profiles():
        profile = load_profile(name).profile
        assert profile.run.device != "cuda" or shape_for(profile.model) is not None, name


def test_the_shape_is_that_of_the_config_where_there_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen2.5-3B"
    assert shape_for(Model(path=str(folder))) == shape_of(ARCHITECTURES["qwen2.5-3b"])
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(ARCHITECTURES["qwen2.5-0.5b"]))
    assert shape_for(Model(path=str(folder))) == shape_of(ARCHITECTURES["qwen2.5-0.5b"])
    (folder / "config.json").write_text("{torn")
    assert shape_for(Model(path=str(folder))) == shape_of(ARCHITECTURES["qwen2.5-3b"])
    assert shape_for(Model(path=str(tmp_path / "mine"))) is None
    assert shape_for(Model()) is None


def test_the_parts_of_a_table_add_up() -> None:
    verdict = judge(load_profile("azr-3b-qlora").profile, a_card_of(16, has_vllm=False))
    assert verdict.plan is not None
    for line in table(verdict.plan).splitlines()[1:]:
        allocated, parts = float(line.split()[1]), [float(number) for number in re.findall(r"[a-z] (\d+\.\d\d)", line)]
        assert sum(parts) == pytest.approx(allocated, abs=0.04)
