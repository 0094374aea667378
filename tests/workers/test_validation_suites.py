"""Validation between cycles on several suites, by a real checkpoint of a tiny model that reads English."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.errors import ExitCode
from profiles.schema import Model, Profile, Run, Sampling, Validation
from state import checkpoint
from state.layout import RunDir
from tests.workers import harness as h
from tests.workers.azr.small import write_model
from tests.workers.suites.samples import write_data
from workers.azr.evaluation import suites_of, with_fewer_rows
from workers.contract import CheckpointRef
from workers.control import Control
from workers.rollout.native import NativeEngine
from workers.rollout.select import Portions
from workers.runtime import carry_out
from workers.sandbox import Sandbox
from workers.validate import validate

SUITES = ("cruxeval-i", "cruxeval-o", "gsm8k", "pocket")


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


def full(rows: int, fitting: int) -> str:
    if rows > fitting:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    return f"{rows} rows"


@pytest.mark.parametrize(("fitting", "found"), [(16, "16 rows"), (15, "8 rows"), (3, "2 rows"), (1, "1 rows")])
def test_where_memory_ends_fewer_rollouts_are_validated_at_one_time(fitting: int, found: str) -> None:
    engine, told = Portions(NativeEngine.__new__(NativeEngine), 16), list[str]()
    assert with_fewer_rows(engine, lambda: full(engine.max_rows, fitting), told.append) == found
    assert len(told) == {"16 rows": 0, "8 rows": 1, "2 rows": 3, "1 rows": 4}[found]


def test_one_rollout_that_does_not_fit_and_any_other_failure_end_the_validation() -> None:
    engine, told = Portions(NativeEngine.__new__(NativeEngine), 4), list[str]()
    with pytest.raises(torch.OutOfMemoryError):
        with_fewer_rows(engine, lambda: full(engine.max_rows, 0), told.append)
    assert engine.max_rows == 1 and len(told) == 2

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        with_fewer_rows(Portions(NativeEngine.__new__(NativeEngine), 4), broken, told.append)
    assert len(told) == 2


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
        "pocket": {"abd", "ded", "ind", "mean"},
    }  # fmt: skip
    assert [found[suite]["mean"]["n"] for suite in SUITES] == [2, 2, 2, 6]
    events = h.events_of(spec, "validation")
    assert [event.data["suite"] for event in events] == list(SUITES)


def test_missing_data_ends_the_attempt_with_the_place_to_put_it(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, suites=("gsm8k",))
    head = committed(tmp_path / "run", write_model(tmp_path / "model"))
    spec = h.make_spec(tmp_path / "run", profile, head=head, end_step=6, role="validate")
    code = carry_out(spec, Control(None, ""), lambda attempt: validate(attempt, suites_of(attempt, None)))
    result = h.result_of(spec)
    assert code == ExitCode.INPUT
    assert "gsm8k_test.jsonl is missing" in result.error and str(tmp_path / "data") in result.advice
