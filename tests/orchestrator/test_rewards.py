"""rewards test: a real command and a real worker, on a file as people write it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.commands.rewards import render
from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.extending import example

SOURCE = r"""
import re

def accuracy(problem, completion, facts):
    found = re.search(r"\\boxed\{(.*?)\}", completion)
    return float(found is not None and found[1] == problem.answer and facts["is_correct"])

def exact(completions, solution, **columns):
    return [float(one == right) for one, right in zip(completions, solution)]

def inverse(completion):
    return 1 / len(completion)

def _helper(completion):
    return 0

def other(text):
    return 0
"""


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(cwd)}
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", "rewards", "test", *words],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def write(path: Path, *rows: object) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_file_is_tested_on_rows_with_obvious_completions(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    write(
        tmp_path / "rows.jsonl", *({"question": f"{n}+1=", "answer": n + 1, "solution": str(n + 1)} for n in range(3))
    )
    done = command("mine.py", "--data", "rows.jsonl", "--rows", "2", cwd=tmp_path)
    assert done.returncode == ExitCode.REWARD == 87, done.stderr
    first, heads, *lines = done.stdout.splitlines()
    assert first == "2 rows, 6 completions (each row's own answer, an empty text and a wrong answer)"
    assert heads.split("  ")[0] == "function" and heads.endswith("exceptions")
    cells = {line.split()[0]: line.split()[1:3] + line.split()[-1:] for line in lines[:3]}
    assert cells == {
        "mine.py:accuracy": ["0.333", "0.471", "0"],
        "mine.py:exact": ["0.000", "0.000", "0"],
        "mine.py:inverse": ["0.111", "0.000", "2"],
    }
    failed, zero, *_ = lines[3:]
    why = "it raised ZeroDivisionError: division by zero; "
    what = f"exception  the reward mine.py:inverse failed on row 1 of the data: {why}"
    assert failed.startswith(what)
    kept = Path(failed.removeprefix(what).split()[0])
    assert json.loads(kept.read_text())["call"]["prompt"] == "0+1="
    assert zero.startswith("note       mine.py:exact gives 0 to all 6 completions, the right answers in a box included")


def test_the_functions_of_the_how_to_are_tested_by_its_command(tmp_path: Path) -> None:
    document = (REPOSITORY / "docs/extending.md").read_text(encoding="utf-8")
    (words,) = re.findall(r"^python -m orchestrator rewards test (.*)$", document, flags=re.MULTILINE)
    (tmp_path / "my_rewards.py").write_text(example("A reward of your own"))
    write(tmp_path / "train.jsonl", {"question": "1+1=", "answer": "2"}, {"question": "2+2=", "answer": "4"})
    done = command(*words.split(), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert [(one["function"], one["values"], one["high"]) for one in facts["functions"]] == [
        ("my_rewards.py:close", 6, 1.1),
        ("my_rewards.py:brief", 6, 0.0),
    ]


def test_given_completions_belong_to_rows_by_line_or_prompt(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    write(tmp_path / "rows.jsonl", {"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"})
    write(
        tmp_path / "done.jsonl",
        {"row": 2, "completion": [r"\boxed{4}", "4", r"\boxed{5}"]},
        {"prompt": "1+1=", "completion": "2"},
        {"prompt": "1+1=", "completion": r"\boxed{2}"},
    )
    words = ("mine.py:accuracy", "--data", "rows.jsonl", "--completions", "done.jsonl", "--json")
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["rows"], facts["completions"], facts["obvious"]) == (2, 5, False)
    (one,) = facts["functions"]
    assert (one["mean"], one["equal_groups"], one["exceptions"]) == (0.4, 0.0, 0)
    assert [line.split(":")[0] for line in facts["advice"]] == ["no completion has the format of the part `format`"]
    assert not list(tmp_path.glob("longhaul-rewards-*"))


@pytest.mark.parametrize(
    ("words", "what", "todo"),
    [
        (["none.py"], "none.py: there is no file", "correct the name"),
        (["torn.py"], "torn.py: a syntax error in line 2: ", "sed -n 2p"),
        (
            ["mine.py:other"],
            "it takes (text), which is neither f(problem, completion, facts) nor",
            "rewards test mine.py:other",
        ),
        (["mine.py:exact"], "requires `solution`, and the data has no such column", "give `solution` a default"),
        (["mine.py", "--data", "bad.jsonl"], "line 1: no text `prompt`", "correct these lines"),
        (["mine.py", "--data", "chat.jsonl"], "line 1: the content of message 1", "correct these lines"),
        (["mine.py", "--completions", "bad.jsonl"], "line 1 has no `completion`, a text or a list", "sed -n 1p"),
        (["mine.py", "--rows", "-1"], "--rows -1: 0 (all) or more", "rewards --help"),
    ],
)
def test_what_cannot_be_tested_is_refused_with_what_to_type(
    words: list[str], what: str, todo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "torn.py").write_text("\ndef f(completion:\n")
    write(tmp_path / "bad.jsonl", {"text": "?"})
    write(tmp_path / "chat.jsonl", {"prompt": [{"role": "user"}]})
    assert main(["rewards", "test", *words]) == (ExitCode.USAGE if "--rows" in words else ExitCode.INPUT)
    error, _, following = capsys.readouterr().err.splitlines()[-3:]
    assert what in error and todo in following


def test_foreign_text_cannot_control_the_terminal() -> None:
    one = {
        "function": "f\x1b[2J",
        "mean": None,
        "spread": None,
        "equal_groups": None,
        "slowest_row": 1,
        "slowest_s": 2.0,
    }
    facts = {"rows": 1, "completions": 1, "obvious": False, "advice": ["\x1b]0;x"]}
    shown = render(facts | {"functions": [one | {"exceptions": 1, "first_exception": "\x1b[1A"}]})
    assert "\x1b" not in shown and "1 (2.0 s)" in shown


def test_a_profile_says_which_data_and_which_columns(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def known(problem, completion, facts):\n    return problem.answer == '7'\n")
    (tmp_path / "own.jsonl").write_text('{"story": "3 + 4?", "solution": "7"}\n')
    (tmp_path / "own.toml").write_text(
        'extends = "pocket-grpo"\n[data]\ntasks = "own.jsonl"\n[data.columns]\nprompt = "story"\nanswer = "solution"\n'
    )
    done = command("mine.py", "--profile", "./own.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (function,) = json.loads(done.stdout)["functions"]
    assert function["mean"] == 1.0
