"""Suites by name: where their records are found, what they say, and what that costs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.schema import Model, Profile, Run
from profiles.suites import FOR_PROBLEMS, PROBLEM_STYLES, UnknownSuite, record_of, shipped_suites, suites_for_models
from profiles.worker_kinds import KINDS
from tests import REPOSITORY
from tests.test_architecture import HEAVY


def test_the_suites_that_ship_are_the_files_of_their_folder() -> None:
    for_models = ["cruxeval-i", "cruxeval-o", "gsm8k", "held-out", "humaneval", "mbpp", "pocket", "words"]
    assert shipped_suites() == sorted([*for_models, "fake"])
    assert suites_for_models() == for_models


def test_a_file_that_is_put_there_is_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "my_own.py").touch()
    monkeypatch.setattr("profiles.suites.SHIPPED", tmp_path)
    assert shipped_suites() == ["my-own"]


@pytest.mark.parametrize("name", shipped_suites())
def test_a_record_names_workers_and_styles_that_there_are(name: str) -> None:
    record = record_of(name)
    assert record.about and record.tasks and record.workers
    for worker in record.workers:
        Run(worker=worker)  # type: ignore[arg-type]
        assert worker in KINDS
        assert KINDS[worker].uses_model == bool(record.styles)
    known = {"pocket", *PROBLEM_STYLES}
    assert {*record.styles} <= known
    assert all(Profile(name="x", model=Model(prompt_style=style)) for style in record.styles)  # type: ignore[arg-type]


def test_suites_that_only_ask_word_problems_have_no_programs() -> None:
    assert [name for name in shipped_suites() if record_of(name).has_programs] == ["cruxeval-i", "cruxeval-o", "pocket"]
    assert all({*FOR_PROBLEMS} <= {*record_of(name).styles} for name in ("gsm8k", "humaneval", "words"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gsm", "there is no suite 'gsm'; did you mean gsm8k?"),
        ("", "there is no suite ''"),
        ("../words", "there is no suite '../words'"),
        (":NAME", "there is no suite ':NAME'"),
        (".relative:NAME", "there is no suite '.relative:NAME'"),
        ("no_such_module:NAME", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("profiles..suites:NAME", "cannot be imported"),
        ("profiles.suites:NAME", "the module profiles.suites has no suite 'NAME'"),
        ("profiles.suites:SHIPPED", "the module profiles.suites has no suite 'SHIPPED'"),
    ],
)
def test_a_name_that_leads_to_no_suite_is_refused_with_the_known_ones(name: str, why: str) -> None:
    with pytest.raises(UnknownSuite) as caught:
        record_of(name)
    assert why in str(caught.value)
    known = "cruxeval-i, cruxeval-o, gsm8k, held-out, humaneval, mbpp, pocket, words"
    assert f"there are {known}; or module:NAME" in str(caught.value)


def test_reading_every_record_imports_nothing_that_takes_time() -> None:
    code = "import sys, profiles.suites as s\nfor one in s.shipped_suites(): s.record_of(one)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "workers.suites.shipped.gsm8k" in loaded
    assert (HEAVY | {"workers.sandbox", "workers.verifiers.answers", "workers.suites.suite"}) & loaded == set()


def test_the_documented_table_names_every_suite_that_asks_a_model() -> None:
    text = (REPOSITORY / "docs/evaluation.md").read_text()
    (table,) = re.findall(r"^\| name \| what is asked .*\n\| --- .*\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    assert sorted(re.findall(r"^\| `([\w-]+)`", table, flags=re.MULTILINE)) == suites_for_models()
