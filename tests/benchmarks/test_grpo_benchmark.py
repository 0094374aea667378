"""`python -m benchmarks grpo`: every contender does the same work; one that cannot gets a row with the reason."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from benchmarks import grpo
from benchmarks.contenders import __main__ as child
from benchmarks.contenders import ours, profiled, tables, workload
from benchmarks.contenders.report import Budget, Meter, Report
from benchmarks.contenders.workload import Workload
from profiles.shapes import shape_of
from workers.models.load import Tokenizer

SAMPLED = [{"tokens": 40, "longest": 5}]
TINY = {"shape": "tiny", "group_size": 4, "prompt": 6, "completion": 5}


def reported(folder: Path, model: Path, contender: str, *overrides: str) -> dict[str, Any]:
    """What a contender's process would leave behind, made in this one."""
    job, report = folder / "job.json", folder / "report.json"
    budget = {"warmup": 1, "steps": 2, "seconds": 60.0}
    facts = {"contender": contender, "workload": TINY, "budget": budget, "model": str(model), "began": time.time(),
             "cap_gib": 0.0, "vllm_share": 0.3, "overrides": list(overrides)}  # fmt: skip
    job.write_text(json.dumps(facts))
    assert child.main(job, report) == 0
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_the_model_has_the_parameters_of_its_shape_and_a_head_of_its_own(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    with safe_open(model / "model.safetensors", framework="pt") as tensors:
        counts = {name: tensors.get_tensor(name).numel() for name in tensors.keys()}  # noqa: SIM118  it is no dict
    assert "lm_head.weight" in counts
    assert sum(counts.values()) == shape_of(config).parameters


def test_the_shape_that_figures_are_of_is_the_r1_distillate() -> None:
    assert shape_of(workload.SHAPES[Workload().shape]).parameters == 1_777_088_000


@pytest.mark.parametrize("step", [1, 2, 11])
def test_a_prompt_reaches_every_contender_as_the_same_ids(model: Path, step: int) -> None:
    ids = Workload(**TINY).prompt_ids(step)
    assert len(ids) == TINY["prompt"]
    assert Tokenizer(model).encode(workload.text_of(ids)) == ids


def test_prompts_differ_from_step_to_step() -> None:
    work = Workload(**TINY)
    assert len({work.prompt_ids(step) for step in range(20)}) == 20


@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_no_group_may_be_skipped_for_equal_rewards(size: int) -> None:
    assert set(workload.rewards(size)) == {0.0, 1.0}


@pytest.mark.parametrize("engine", ["native", "hf"])
def test_our_engines_do_whole_steps_of_the_forced_length(tmp_path: Path, model: Path, engine: str) -> None:
    found = reported(tmp_path, model, engine)
    assert (found["status"], found["reason"]) == ("ok", "")
    assert found["sampled"] == [{"tokens": 20, "longest": 5}] * 2
    assert len(found["warmup"]) == 1 and len(found["steps"]) == 2
    for step in found["steps"]:
        assert min(step["rollout"], step["train"]) > 0 and step["rollout"] + step["train"] <= step["step"]
    assert found["metrics"]["grad_norm"] > 0
    assert found["metrics"]["mismatch_max"] < 0.01  # the update read the very tokens that were sampled
    assert {"torch", "transformers", "bitsandbytes", "peft"} <= found["versions"].keys()


def test_what_is_timed_has_the_numbers_of_a_plain_float32_model(tmp_path: Path, model: Path) -> None:
    found = reported(tmp_path, model, "check native")
    assert found["status"] == "ok", found["reason"]
    told = found["metrics"]
    assert told["tokens"] == 20
    assert told["engine to reference, largest"] < 0.02  # nats; both sides round to bfloat16 where they please
    assert told["trainer to reference, largest"] < 0.02
    assert told["least gradient cosine of a matrix"] > 0.999


def test_what_ends_a_contender_is_its_reason(tmp_path: Path, model: Path) -> None:
    found = reported(tmp_path, model, "native", "sampling.engine=slow")
    assert found["status"] == "failed"
    assert "[sampling] engine" in found["reason"]


def test_a_profile_names_families_of_both_windows(tmp_path: Path, model: Path) -> None:
    found = reported(tmp_path, model, "profile native")
    assert found["status"] == "ok", found["reason"]
    assert set(found["tables"]) == {"training pass", "rollout of 5 tokens"}
    for window in found["tables"].values():
        assert "matrix products" in window["families"]
        assert any("mm" in one["name"] for one in window["launching"])
        spent = [one["seconds"] for one in window["launching"]]
        assert spent == sorted(spent, reverse=True) and spent[-1] > 0
        assert sum(one["seconds"] for one in window["families"].values()) == pytest.approx(window["busy_s"])
    assert "matrix products" in tables.time_table(found)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_contender_that_is_not_installed_is_a_row_of_the_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "grpo", "--contenders", "trl-vllm", "--shape", "tiny",
               "--json", str(tmp_path / "all.json")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(grpo.__file__).parents[1], timeout=60)
    assert done.returncode == 0, done.stderr
    assert "| trl-vllm | 8 | failed: not installed here:" in done.stdout
    written = json.loads((tmp_path / "all.json").read_text())
    assert "vllm" in written["reports"][0]["reason"]


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed here")
def test_trl_does_steps_of_the_forced_length(tmp_path: Path, model: Path) -> None:
    found = reported(tmp_path, model, "trl")
    assert (found["status"], len(found["steps"])) == ("ok", 2), found["reason"]
    assert found["settings"]["num_generations"] == TINY["group_size"]


def test_peaks_are_those_of_timed_steps_and_each_phase_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"bytes": 10, "peak": 10}

    def takes(size: int) -> None:
        now["peak"] = max(now["peak"], now["bytes"] + size)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 15)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: now["peak"])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: now["peak"] + 1)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: now.update(peak=now["bytes"]))
    report = Report("trl", 8)
    meter = Meter(report, began=0.0)
    meter.is_gpu = True
    for timed, extra in ((False, 100), (True, 0), (True, 1)):
        with meter.phase("rollout and score"):
            with meter.phase("rollout"):
                takes(5 + extra)
            takes(7)
        meter.split("rollout and score", "rollout", "score")
        takes(20)
        meter.end_step(1.0, timed=timed, lengths=(3, 5))
    assert report.allocated_at_load == 115
    assert (report.allocated, report.reserved) == (30, 31)
    assert report.peaks == {"rollout": 16, "score": 17, "train": 30}
    assert (report.context, report.limit) == (25, None)


@pytest.mark.parametrize(
    ("seconds", "spent"),
    [
        ([], False),
        ([99.0], False),  # two are the least that show a spread
        ([1.0, 1.0], False),
        ([40.0, 40.0], True),
        ([1.0] * 10, True),
    ],
)
def test_a_slow_contender_does_fewer_steps(seconds: list[float], spent: bool) -> None:
    report = Report("native", 8, steps=[{"step": one} for one in seconds])
    assert Budget(warmup=1, steps=10, seconds=60).is_spent(report) == spent


@pytest.mark.parametrize(
    ("kernel", "family"),
    [
        ("kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>", "4-bit matrix products and dequantisation"),
        ("nf4_linear_kernel", "4-bit matrix products and dequantisation"),
        ("nvjet_tst_128x64_64x8_1x2_h_bz_coopA_TNN", "matrix products"),
        ("void pytorch_flash::flash_fwd_kernel<...>", "attention"),
        ("void at::native::elementwise_kernel<128, 2>", "elementwise"),
        ("Memcpy DtoD (Device -> Device)", "gather, scatter, copies"),
        ("multi_tensor_apply_kernel", "optimiser"),
        ("unheard_of", "other"),
    ],
)
def test_a_kernel_is_counted_for_its_family(kernel: str, family: str) -> None:
    assert profiled.family_of(kernel) == family


def test_the_table_gives_medians_with_their_span_and_how_much_faster_ours_is() -> None:
    ours = vars(
        Report("native", 8, "ok", sampled=SAMPLED * 3, steps=[{"step": s, "rollout": s / 2} for s in (1.0, 2.0, 3.0)])
    )
    other = vars(Report("trl", 8, "ok", sampled=SAMPLED, steps=[{"step": 20.0, "rollout": 19.0}]))
    gone = grpo.failed("trl-vllm", 8, "not installed here: vllm")
    text = tables.steps_table([ours, other, gone])
    assert "| native | 8 | 2.00 (1.00 to 3.00) | 1.00 (0.50 to 1.50) |" in text
    assert "| trl | 8 | 20.00 | 19.00 |" in text
    assert tables.ratios([ours, other, gone]) == "G=8: native makes 10.0 steps in the time of one of trl"


@pytest.mark.parametrize(
    ("figure", "value", "limit"),
    [
        ("engine to reference, mean", 0.019, "at most 0.02"),
        ("engine to reference, mean", 0.021, "at most 0.02: missed"),
        ("trainer to reference, largest", 0.6, "at most 0.5: missed"),
        ("gradient cosine", 0.9991, "at least 0.999"),
        ("gradient cosine", 0.9988, "at least 0.999: missed"),
        ("least gradient cosine of a matrix", 0.99, ""),
    ],
)
def test_a_figure_of_the_check_stands_beside_its_limit_and_says_where_it_misses_it(
    figure: str, value: float, limit: str
) -> None:
    assert tables.limit_of(figure, value) == limit
    report = {"contender": "check native", "group_size": 8, "status": "ok", "reason": "", "metrics": {figure: value}}
    assert tables.check_table([report]).splitlines()[-1].split("|")[-2].strip() == limit


def test_tables_of_several_calls_are_one_where_the_workload_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    workload = {"shape": "tiny", "prompt": 6, "completion": 5, "cap": 0.0}
    for name, seconds, cap in (("native", 1.0, 0.0), ("trl", 12.0, 0.0), ("hf", 9.0, 4.0)):
        report = vars(Report(name, 8, "ok", sampled=SAMPLED, steps=[{"step": seconds, "rollout": seconds / 2}]))
        facts = {"command": name, "kind": "steps", "workload": workload | {"cap": cap}, "gpu": "", "reports": [report]}
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    assert grpo.main(["--show", *(str(tmp_path / f"{name}.json") for name in ("native", "trl", "hf"))]) == 0
    free, capped = capsys.readouterr().out.split("\n\nreproduce: hf")
    assert "native makes 12.0 steps in the time of one of trl" in free
    assert "| hf |" not in free and "| hf |" in capped
    assert "a card of 4 GiB" in capped


@pytest.mark.parametrize("cap", [0.0, 3.725])
def test_the_cap_that_was_asked_for_is_the_one_that_holds(model: Path, cap: float) -> None:
    overrides = child.overrides_of({"cap_gib": cap, "overrides": ["optimizer.micro_batch_size=2"]})
    profile = ours.profile_of(Workload(**TINY), model, "native", overrides)
    assert (profile.memory.cap_gib, profile.optimizer.micro_batch_size) == (cap, 2)
