"""A user's own suite: one file, validated between cycles of a real run, and evaluated, by its name alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Model, Profile, Validation
from profiles.suites import record_of
from state.layout import RunDir
from state.reader import Reader
from tests import REPOSITORY
from tests.extending import example
from tests.workers.suites.outside import sums
from tests.workers.suites.samples import DED, DOUBLE
from workers.suites.held_out import held_out_of
from workers.suites.question import Question
from workers.suites.registry import load_suites
from workers.suites.source import Listed

OUTSIDE = Path(sums.__file__).parent
NAME = "sums:SUMS"
HERE = "tests.workers.suites.test_suite_from_outside"


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(OUTSIDE))), "LONGHAUL_DATA": ""}
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_is_validated_on_it_and_its_checkpoint_evaluated(tmp_path: Path) -> None:
    knobs = [
        f'validation.suites=["{NAME}"]', "validation.examples_per_task=6", "run.steps_per_cycle=1", "run.threads=1",
        "stagnation.min_cycles=9",
    ]  # fmt: skip
    settings = [word for knob in knobs for word in ("--set", knob)]
    trained = command(
        "run", "--plain", "--profile", "pocket-grpo-debug", "--run", "a", "--max-cycles", "3",
        "--until", f"{NAME}/small.n>=1", *settings, cwd=tmp_path,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stdout + trained.stderr
    reader = Reader.open(RunDir(tmp_path / "runs" / "a"))
    try:
        validations = reader.validations(10)
    finally:
        reader.close()
    assert f"{NAME}/small.n >= 1 is reached" in trained.stdout
    assert {one.suite for one in validations} == {NAME}
    assert {*validations[-1].metrics} == {"small", "large", "mean"} and validations[-1].n == 6
    done = command("evaluate", "--run", "a", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads(done.stdout)["suites"]
    assert (facts["suite"], facts["n"], facts["answered"]) == (NAME, 36, 36)
    assert NAME in command("status", "--run", "a", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('["sums:SUM"]', "the module sums has no suite 'SUM'"),
        ('["summs:SUMS"]', "cannot be imported: ModuleNotFoundError: No module named 'summs'"),
        ('["gsm"]', "there is no suite 'gsm'; did you mean gsm8k?"),
    ],
)
def test_a_wrong_name_is_refused_with_the_known_ones_before_anything_starts(
    setting: str, words: str, tmp_path: Path
) -> None:
    done = command("run", "--profile", "pocket-grpo-debug", "--set", f"validation.suites={setting}", cwd=tmp_path)
    assert done.returncode == ExitCode.INPUT and words in done.stderr
    assert (
        "there are cruxeval-i, cruxeval-o, gsm8k, held-out, humaneval, mbpp, pocket, words; or module:NAME"
        in done.stderr
    )
    assert not (tmp_path / "runs").exists()


def test_the_example_of_the_documentation_is_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "capitals.py").write_text(example("A suite of your own"))
    monkeypatch.syspath_prepend(tmp_path)
    (suite,) = load_suites(["capitals:CAPITALS"], None, 0)
    assert [one.gold for one in suite.questions] == ["1927"]


def of(*questions: Question) -> Listed:
    return Listed(about="", tasks=("ded",), workers=("azr",), styles=("azr",), read=lambda folder: questions)


PROGRAMS = of(DED)
UNLISTED = of(Question("d", "ded", DED.item, 2, listed="other"))


def test_its_programs_are_held_out_of_a_run_that_names_it_and_of_no_other() -> None:
    model = Model(prompt_style="azr", path="m")
    named = Profile(name="t", model=model, validation=Validation(suites=(f"{HERE}:PROGRAMS",)))
    assert held_out_of(named)(DOUBLE)
    assert not held_out_of(Profile(name="t", model=model))(DOUBLE)


def test_a_question_of_a_task_that_its_record_does_not_list_is_refused() -> None:
    with pytest.raises(LonghaulError, match="asks about other; its record lists ded"):
        load_suites([f"{HERE}:UNLISTED"], None, 0)


def test_it_is_one_file_that_nothing_else_names() -> None:
    assert record_of(f"{sums.__name__}:SUMS") is sums.SUMS
    homes = [
        path
        for folder in ("profiles", "state", "orchestrator", "workers")
        for path in (REPOSITORY / folder).rglob("*.py")
    ]
    assert len(homes) > 300
    assert [path for path in homes if "sums" in path.stem or "SUMS" in path.read_text()] == []
