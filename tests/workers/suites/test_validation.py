"""Validation between cycles on several suites, by a real checkpoint of a tiny model that reads English."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode
from profiles.schema import Model, Profile, Run, Sampling, Validation
from state import checkpoint
from state.layout import RunDir
from tests.workers import harness as h
from tests.workers.azr.small import write_model
from tests.workers.suites.samples import write_data
from workers.contract import CheckpointRef
from workers.control import Control
from workers.cycle.validate import validate
from workers.runtime import carry_out
from workers.sandbox import Sandbox
from workers.suites.validation import suites_of

SUITES = ("cruxeval-i", "cruxeval-o", "gsm8k", "humaneval", "pocket")


def profile_of(tmp_path: Path, **validation: Any) -> Profile:
    given: dict[str, Any] = {"suites": SUITES, "examples_per_task": 2, "data": str(tmp_path / "data")}
    return Profile(
        name="t", run=Run(threads=1, device="cpu"), sampling=Sampling(max_prompt_tokens=2000, max_completion_tokens=4),
        model=Model(path=str(tmp_path / "model"), prompt_style="azr"), validation=Validation(**(given | validation)),
    )  # fmt: skip


def committed(root: Path, model: Path) -> CheckpointRef:
    def write(directory: Path) -> None:
        for path in model.iterdir():
            (directory / path.name).write_bytes(path.read_bytes())

    root.mkdir()
    saved = checkpoint.stage(RunDir(root), run_id="run-1", parent=None, cycle=1, attempt=1, token="t1", step=5,
                             profile_sha256="p", versions={}, write=write)  # fmt: skip
    return CheckpointRef(saved.path, 5, saved.checkpoint_id, saved.digest)


@pytest.mark.parametrize("sampled", [True, False])
def test_every_suite_of_the_profile_is_scored_by_task(sampled: bool, tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    profile = profile_of(tmp_path, sampled=sampled)
    head = committed(tmp_path / "run", write_model(tmp_path / "model"))
    spec = h.make_spec(tmp_path / "run", profile, head=head, end_step=6, role="validate")
    with Sandbox(jobs=1) as sandbox:
        code = carry_out(spec, Control(None, ""), lambda attempt: validate(attempt, suites_of(attempt, sandbox)))
    assert code == 0, h.result_of(spec).error
    found = h.result_of(spec).validation
    assert {suite: set(found[suite]) for suite in found} == {
        "cruxeval-i": {"abd", "mean"}, "cruxeval-o": {"ded", "mean"}, "gsm8k": {"maths", "mean"},
        "humaneval": {"code", "mean"}, "pocket": {"abd", "ded", "ind", "mean"},
    }  # fmt: skip
    assert [found[suite]["mean"]["n"] for suite in SUITES] == [2, 2, 2, 2, 6]
    for suite, tasks in h.result_of(spec).answers.items():
        assert sum(one.greedy.count("1") for one in tasks.values()) == found[suite]["mean"]["correct"]
        assert all(len(one.greedy) == 2 and len(one.sampled) == (2 if sampled else 0) for one in tasks.values())
    events = h.events_of(spec, "validation")
    assert [event.data["suite"] for event in events] == list(SUITES)


def test_a_worker_without_a_sandbox_gets_one_where_a_suite_needs_it(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    profile = profile_of(tmp_path, suites=("mbpp",), sampled=False)
    head = committed(tmp_path / "run", write_model(tmp_path / "model"))
    spec = h.make_spec(tmp_path / "run", profile, head=head, end_step=6, role="validate")
    code = carry_out(spec, Control(None, ""), lambda attempt: validate(attempt, suites_of(attempt, None)))
    assert code == 0, h.result_of(spec).error
    assert h.result_of(spec).validation["mbpp"]["code"]["n"] == 2


def test_missing_data_ends_the_attempt_with_the_place_to_put_it(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, suites=("gsm8k",))
    head = committed(tmp_path / "run", write_model(tmp_path / "model"))
    spec = h.make_spec(tmp_path / "run", profile, head=head, end_step=6, role="validate")
    code = carry_out(spec, Control(None, ""), lambda attempt: validate(attempt, suites_of(attempt, None)))
    result = h.result_of(spec)
    assert code == ExitCode.INPUT
    assert "gsm8k_test.jsonl is missing" in result.error and str(tmp_path / "data") in result.advice
