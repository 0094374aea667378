"""The profile of a resume: before the first checkpoint any profile will do, as if the run had begun with it."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.judging import judge
from orchestrator.machine import Machine
from orchestrator.preflight import a_card_of, engine_kept
from orchestrator.resume_profile import begin_anew, has_begun, typed_for_another
from profiles.changes import diff
from profiles.load import from_json, load_profile, profile_sha256, resolved_json
from state import durable
from state.layout import RunDir
from state.reader import Reader
from state.states import AttemptState, RunState
from state.store import NewAttempt, NewRun, Store
from tests import REPOSITORY

OLD = load_profile("pocket").profile
CARD = a_card_of(24, has_vllm=False)


def a_run_that_failed(root: Path) -> RunDir:
    """It found a task, its rollouts were halved twice, and it left no checkpoint; then a person stopped it."""
    run = RunDir(root)
    durable.make_dir(run.imported.parent)
    run.imported.write_text("{}")
    with closing(
        Store.open(run, NewRun("id", "r", resolved_json(OLD).decode(), profile_sha256(OLD), 0, "1", 0.0))
    ) as s:
        s.plan_cycle(0, "seed", 1, 1, 0, 0.0)
        s.plan_attempt(NewAttempt(0, "train", 1, "token", 1, 2, 0.0))
        for state in (AttemptState.STARTING, AttemptState.RUNNING):
            s.set_attempt_state("token", state)
        s.close_attempt("token", AttemptState.FAILED, exit_code=71, failure="CUDA_OOM", message="", step_reached=0,
                        cycle_state=None, now=1.0)  # fmt: skip
        with s.transaction():
            s.db.execute("INSERT INTO examples VALUES ('e', 'ded', 0, 1, 0, 'p', 'i', 'o', 0.5)")
        s.set_run_state(RunState.STOPPED, "asked to stop", 1.0)
    return run


@pytest.mark.parametrize(
    ("overrides", "left"),
    [
        pytest.param(["model.path=other"], (0, 0, True, False), id="a fixed knob"),
        pytest.param(["azr.group_size=4"], (0, 0, True, False), id="a guarded knob"),
        pytest.param(["run.max_cycles=9"], (1, 2, False, True), id="a free knob, on which nothing of it rests"),
    ],
)
def test_what_was_made_under_another_profile_is_dropped(
    overrides: list[str], left: tuple[Any, ...], tmp_path: Path
) -> None:
    run, wanted = a_run_that_failed(tmp_path / "r"), load_profile("pocket", overrides).profile
    assert not has_begun(run)
    with closing(Store.open(run)) as store:
        begin_anew(run, wanted, diff(OLD, wanted), store)
    with closing(Reader.open(run)) as reader:
        history, examples = reader.history(), reader.connection.execute("SELECT count(*) FROM examples").fetchone()[0]
        assert from_json(reader.profile_json()) == wanted
    is_forgiven = history.state == RunState.FAILED  # by the master, which takes up a failed run with a clean sheet
    assert (examples, history.reductions, is_forgiven, run.imported.exists()) == left


class Typed:
    """`run` as a person types it, in a folder of runs; no data folder is named."""

    def __init__(self, folder: Path, *words: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "LONGHAUL_DATA"}
        command = [sys.executable, "-m", "orchestrator", "run", "--plain", *words]
        environment["PYTHONPATH"] = str(REPOSITORY)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        found = re.findall(r"next: +python -m orchestrator run (.*?)(?:   |\n|$)", self.err)
        self.next = shlex.split(found[0]) if found else []


def test_a_first_start_without_data_is_mended_by_the_command_that_it_names(tmp_path: Path) -> None:
    first = Typed(
        tmp_path, "--profile", "pocket-grpo-debug", "--set", "data.tasks=", "--set", "grpo.sent.enabled=false"
    )
    assert first.code == 66 and first.next == ["--set", "data.tasks=problems.jsonl"]
    pasted = Typed(tmp_path, *first.next)
    assert 'data.tasks  "" -> "problems.jsonl"' in pasted.out and "no checkpoint yet" in pasted.out
    assert "the problems problems.jsonl cannot be used" in pasted.err  # it went on; that file is missing too


def test_the_command_for_another_run_is_the_one_that_was_typed() -> None:
    args = argparse.Namespace(run="night", profile="my.toml", overrides=["run.seed=7"])
    assert typed_for_another(args) == "python -m orchestrator run --run NEW-NAME --profile my.toml --set run.seed=7"
    assert typed_for_another(argparse.Namespace(run="night", profile=None, overrides=["run.seed=7"])) == ""


@pytest.mark.parametrize(
    ("typed", "machine", "engine", "said"),
    [
        pytest.param(
            ["model.path=Qwen2.5-0.5B"], CARD, "hf", "auto would choose native", id="another model"
        ),
        pytest.param(["model.path=Qwen2.5-0.5B"], CARD, "native", "", id="the same engine"),
        pytest.param(["optimizer.learning_rate=1"], CARD, "hf", "", id="nothing to do with it"),
        pytest.param(
            ["model.path=Qwen2.5-0.5B", "sampling.engine=hf"], Machine(None), "hf", "", id="the engine itself is named"
        ),
    ],
)  # fmt: skip
def test_an_engine_that_was_chosen_for_another_model_is_told(
    typed: list[str], machine: Machine, engine: str, said: str
) -> None:
    profile = load_profile("azr-0.5b").profile
    profile = replace(profile, sampling=replace(profile.sampling, engine=engine, fallback=()))
    found = engine_kept(judge(profile, machine), argparse.Namespace(overrides=typed))
    assert (said in found) if said else found == ""
