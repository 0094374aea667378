"""`python -m benchmarks grpo --lengths real`: rows of a group end at different lengths, with the model's end token."""

from __future__ import annotations

import copy
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from benchmarks import grpo
from benchmarks.contenders import __main__ as child
from benchmarks.contenders import lengths, tables
from benchmarks.contenders.lengths import MEAN
from benchmarks.contenders.ours import Session
from benchmarks.contenders.report import Report
from benchmarks.contenders.workload import Workload
from workers.rollout import engine, hf, native
from workers.rollout.graph import engine as graph
from workers.rollout.select import Portions

TINY: dict[str, Any] = {"shape": "tiny", "group_size": 8, "prompt": 6, "completion": 32, "real_lengths": True}
WANTED = [Workload(**TINY).lengths(step) for step in (1, 2, 3)]


def report_of(name: str, seconds: float) -> dict[str, Any]:
    sampled = [{"tokens": 40, "longest": 5}]
    return vars(Report(name, 8, "ok", sampled=sampled, steps=[{"step": seconds, "rollout": seconds / 2}]))


def reported(folder: Path, model: Path, contender: str) -> dict[str, Any]:
    """What a contender's process would leave behind, made in this one."""
    job, report = folder / "job.json", folder / "report.json"
    budget = {"warmup": 1, "steps": 2, "seconds": 60.0}
    facts = {"contender": contender, "workload": TINY, "budget": budget, "model": str(model), "began": time.time(),
             "cap_gib": 0.0, "vllm_share": 0.3, "overrides": []}  # fmt: skip
    job.write_text(json.dumps(facts))
    assert child.main(job, report) == 0
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_each_step_has_lengths_of_its_own_the_same_for_every_contender() -> None:
    steps = [Workload(group_size=8, real_lengths=True).lengths(step) for step in range(1, 101)]
    assert steps == [Workload(group_size=8, real_lengths=True).lengths(step) for step in range(1, 101)]
    assert len(set(steps)) == 100 and len({max(lengths) for lengths in steps}) > 20
    # One row of each eighth of the distribution: the sum stays within the widths of the eighths, 512 - 64 in all.
    assert all(abs(sum(lengths) - 8 * MEAN) <= (512 - 64) for lengths in steps)
    assert min(map(min, steps)) >= 64 and max(map(max, steps)) <= 512


def test_lengths_keep_their_proportions_and_no_row_is_empty() -> None:
    small, large = (Workload(completion=tokens, real_lengths=True).lengths(3) for tokens in (512, 1024))
    assert all(abs(2 * a - b) <= 1 for a, b in zip(small, large, strict=True))
    assert min(Workload(completion=2, real_lengths=True).lengths(1)) == 1
    assert Workload(group_size=3).lengths(5) == (512, 512, 512)


@pytest.mark.parametrize("name", ["native", "hf", "graph"])
def test_each_row_of_our_engines_ends_at_its_own_length_with_the_end_token(model: Path, name: str) -> None:
    plain = engine.draw_uniforms
    work = Workload(**TINY)
    session = Session(work, model, "native" if name == "graph" else name, [])
    if name == "graph":  # what `native` is on a GPU
        session.engine = Portions(graph.GraphEngine(session.model))
    for step in (1, 2):
        rollouts = session.rollout(step)
        assert tuple(len(one.completion_ids) for one in rollouts) == WANTED[step - 1]
        for one in rollouts:
            assert one.finish_reason == "stop"
            assert one.completion_ids.index(work.vocabulary - 1) == len(one.completion_ids) - 1
        session.train(step, rollouts)
    session.limit(16)
    half = Workload(**TINY | {"completion": 16})
    assert tuple(len(one.completion_ids) for one in session.rollout(3)) == half.lengths(3)
    session.close()
    assert all(module.draw_uniforms is plain for module in (engine, native, hf, graph))


def test_uniforms_reach_the_end_token_at_the_last_place_of_the_seeds_row_only() -> None:
    with lengths.rows_end((2, 5), seeds=10):
        found = native.draw_uniforms([30, 31] * 500, 5)
    last = found > 1
    assert last.sum(dim=1).tolist() == [1] * 1000
    assert last.nonzero()[:, 1].tolist() == [1, 4] * 500
    assert found[~last].min() >= 0 and found[~last].max() <= lengths.LAST_DRAW


def test_a_session_that_fails_leaves_the_engines_as_they_were(model: Path) -> None:
    plain = engine.draw_uniforms
    with pytest.raises(RuntimeError, match="gone"), lengths.rows_end((1,), 10):
        assert native.draw_uniforms is hf.draw_uniforms is graph.draw_uniforms is not plain
        raise RuntimeError("gone")
    assert all(module.draw_uniforms is plain for module in (native, hf, graph))


@pytest.mark.parametrize("name", ["native", "hf"])
def test_whole_steps_count_the_tokens_that_were_sampled(tmp_path: Path, model: Path, name: str) -> None:
    found = reported(tmp_path, model, name)
    assert (found["status"], found["reason"]) == ("ok", "")
    assert found["sampled"] == [{"tokens": sum(one), "longest": max(one)} for one in WANTED[1:]]  # one step warms up
    assert len(found["steps"]) == 2
    assert found["metrics"]["grad_norm"] > 0
    assert found["metrics"]["mismatch_max"] < 0.01  # the update read the very tokens that were sampled


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed here")
def test_trl_does_steps_of_the_same_lengths(tmp_path: Path, model: Path) -> None:
    found = reported(tmp_path, model, "trl")
    assert (found["status"], len(found["steps"])) == ("ok", 2), found["reason"]
    assert found["settings"]["generation_kwargs"] == {}


@pytest.mark.parametrize(
    ("drawn", "possible"),  # tokens there are already, and what each of the rows may have next
    [(0, [{0, 1}, {2}, {0, 1}]), (1, [{0, 1}, {0, 1}, {0, 1}]), (2, [{2}, {0, 1}, {2}]), (3, [{0, 1}] * 3)],
)
def test_the_end_token_is_forbidden_before_a_rows_last_place_and_forced_there(
    drawn: int, possible: list[set[int]]
) -> None:
    ends = lengths.Ends(lengths=(3, 1, 3), end=2, width=4)
    scores = torch.tensor([[0.5, 1.0, 9.0]] * 3)
    found = ends(torch.zeros(3, 4 + drawn, dtype=torch.long), scores)
    assert [set(row.isfinite().nonzero().flatten().tolist()) for row in found] == possible
    assert scores[0, 2] == 9.0  # those of the model stay


class Params(msgspec.Struct, dict=True):
    """As vLLM's SamplingParams is made."""

    max_tokens: int
    temperature: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False


def test_vllm_is_asked_for_so_many_tokens_of_each_prompt() -> None:
    asked: list[Any] = []

    def generate(prompts: list[Any], sampling_params: list[Any], use_tqdm: bool) -> None:
        asked.extend(sampling_params)

    common = Params(max_tokens=9)
    kept = copy.copy(common)
    lengths.counted(generate, lambda: (3, 9))(["a", "b"], sampling_params=common, use_tqdm=False)
    assert [(one.min_tokens, one.max_tokens, one.ignore_eos) for one in asked] == [(3, 3, True), (9, 9, True)]
    assert common == kept and {one.temperature for one in asked} == {1.0}


def test_a_decode_step_is_a_token_of_the_longest_row() -> None:
    steps = [{"step": 2.0, "rollout": 1.024}]
    real = vars(Report("native", 8, "ok", sampled=[{"tokens": 2240, "longest": 512}], steps=steps))
    old = {name: value for name, value in real.items() if name != "sampled"} | {"tokens": 2240, "longest": 512}
    oldest = {name: value for name, value in old.items() if name != "longest"} | {"tokens": 4096}
    for table in (tables.steps_table, tables.decode_table):
        assert all("| 2.00 |" in line for line in table([real, old, oldest]).splitlines()[2:])
    assert "| 2,188 | 2.00 |" in tables.steps_table([real])  # what was sampled, not what a full group has


def test_figures_of_both_kinds_of_lengths_are_two_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = {"older": {}, "forced": {"lengths": "forced"}, "real": {"lengths": "real"}}
    common = {"shape": "tiny", "prompt": 6, "completion": 512, "cap": 0.0}
    for name, more in told.items():
        reports = [report_of(name, 1.0)]
        facts = {"command": name, "kind": "steps", "workload": common | more, "gpu": "", "reports": reports}
        (tmp_path / name).write_text(json.dumps(facts))
    assert grpo.main(["--show", *(str(tmp_path / name) for name in told)]) == 0
    forced, real = capsys.readouterr().out.split("\n\nreproduce: real")
    assert "completion 512 (forced)" in forced and "| older |" in forced and "| forced |" in forced
    assert "completions of 64 to 512, mean 278, new in each step (real lengths)" in real and "| real |" in real


def test_rollouts_alone_take_real_lengths() -> None:
    assert grpo.parsed(["--decode", "--lengths", "real"]).lengths == "real"


@pytest.mark.parametrize("mode", ["--check", "--profile-time"])
def test_real_lengths_are_not_checked_or_profiled(capsys: pytest.CaptureFixture[str], mode: str) -> None:
    with pytest.raises(SystemExit):
        grpo.parsed([mode, "--lengths", "real"])
    assert "cannot be combined" in capsys.readouterr().err
