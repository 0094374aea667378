"""Names of functions: their file and its hash, the two forms, and what is said of names that lead nowhere."""

from __future__ import annotations

import functools
import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.reward_files import file_of, hash_of
from workers.rewards.functions.signatures import load, signature_of
from workers.user_code.errors import NotUsable


def test_the_hash_is_that_of_the_file_and_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_package"
    package.mkdir()
    source = b"raise RuntimeError('imported')\n"
    for file in (package / "__init__.py", package / "inner.py", tmp_path / "mine.py"):
        file.write_bytes(source)
    monkeypatch.syspath_prepend(tmp_path)
    expected = hashlib.sha256(source).hexdigest()
    names = ("mine.py:f", f"{tmp_path}/mine.py:f", "my_package:f", "my_package.inner:f")
    assert [hash_of(name, tmp_path) for name in names] == [expected] * 4
    assert file_of("my_package.inner:f", tmp_path) == package / "inner.py"
    assert "my_package" not in sys.modules


@pytest.mark.parametrize(
    ("name", "what", "todo"),
    [
        ("mine.py:f", "mine.py:f: there is no file /", "correct the name in the profile"),
        ("no_such_module:f", "Python finds no module no_such_module", "no_such_module.py:f"),
        ("json.no_such:f", "Python finds no module json.no_such", "PYTHONPATH"),
        ("mine.py", "FILE.py:NAME or MODULE:NAME", "grpo.rewards"),
        ("mine.py:2", "FILE.py:NAME or MODULE:NAME", "grpo.rewards"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_with_what_to_type(
    tmp_path: Path, name: str, what: str, todo: str
) -> None:
    with pytest.raises(LonghaulError) as caught:
        hash_of(name, tmp_path)
    assert what in caught.value.what and todo in caught.value.next_command
    assert caught.value.exit_code == ExitCode.INPUT


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def f(:\n  pass\n", r"a syntax error in .*mine.py line 1: invalid syntax: def f\(:"),
        ("def g(completions): ...\n", "there is no f in .*mine.py; it has g"),
        ("x = 1\nimport no_such_package\n", r"importing .*mine.py raises ModuleNotFoundError: .*\(line 2\)"),
        ("exit(3)\n", r"calls exit\(3\) when it is imported"),
        ("class f:\n  def reset(self): ...\n  def step(self): ...\n", "f is an environment: name it in"),
        ("class f:\n  def __call__(self, completions): ...\n", "f is a class; give an instance of it a name"),
        ("f = 3\n", "f is int, not a function"),
    ],
)
def test_a_file_that_has_no_such_function_is_refused_in_words(tmp_path: Path, source: str, why: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    with pytest.raises(NotUsable, match=why):
        load("mine.py:f", file, {})


def test_a_file_is_imported_once_and_hides_no_module_of_python_s_own(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("import neighbour\ncount = [0]\ncount[0] += 1\ndef f(completion): return count\n")
    (tmp_path / "neighbour.py").write_text("")
    modules: dict[str, Any] = {}
    try:
        first = load("json.py:f", tmp_path / "json.py", modules)
        assert load("json.py:f", tmp_path / "json.py", modules) is first and first("") == [1]
        assert first.__module__ == "own_json"
    finally:
        sys.path.remove(str(tmp_path))


async def of_coroutine(completions: list[str], **columns: Any) -> list[float]:
    return []


class Judge:
    async def __call__(self, problem: Any, completion: str) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("function", "takes_groups", "is_async", "required"),
    [
        (lambda problem, completion, facts: 0, False, False, []),
        (lambda completion: 0, False, False, []),
        (lambda completions, ground_truth, weight=1, **columns: 0, True, False, ["ground_truth"]),
        (lambda prompts, completions, completion_ids, trainer_state, log_metric, log_extra: 0, True, False, []),
        (lambda **columns: 0, True, False, []),
        (of_coroutine, True, True, []),
        (functools.partial(of_coroutine, level=3), True, True, []),
        (Judge(), False, True, []),
    ],
)
def test_the_form_is_known_by_the_names_of_the_parameters(
    function: Any, takes_groups: bool, is_async: bool, required: list[str]
) -> None:
    found = signature_of(function)
    assert (found.takes_groups, found.is_async, found.required) == (takes_groups, is_async, required)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda text: 0, r"it takes \(text\), which is neither f\(problem, completion, facts\) nor"),
        (lambda: 0, r"it takes \(\), which is neither"),
        (lambda completions, /: 0, "which is neither"),
        (lambda completion, solution: 0, r"it requires `solution`; .* reads a column as problem.solution"),
    ],
)
def test_a_function_of_another_form_is_refused_with_the_forms_that_there_are(function: Any, why: str) -> None:
    with pytest.raises(NotUsable, match=why):
        signature_of(function)
