"""Questions of `init`: defaults, wrong answers, and what there is to ask with."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.new_job.asking import Plain, asker_here, settled
from profiles.errors import ExitCode, LonghaulError


class Someone:
    """Gives these answers in turn, and keeps what it was told."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.told = list(answers), ""

    def ask(self, question: str, default: str, choices: Sequence[str] = ()) -> str:
        return self.answers.pop(0) or default

    def confirm(self, question: str) -> bool:
        return False

    def tell(self, text: str) -> None:
        self.told += text


def number(text: str) -> int:
    if not text.isdigit():
        raise LonghaulError(f"{text} is no number", kept="all", next_command="try 7", exit_code=ExitCode.INPUT)
    return int(text)


def test_a_flag_is_not_asked_for_and_nobody_means_the_default() -> None:
    assert settled("5", Someone(), "How many?", "1", number) == 5
    assert settled(None, None, "How many?", "1", number) == 1
    with pytest.raises(LonghaulError, match="x is no number"):
        settled("x", Someone("5"), "How many?", "1", number)


def test_a_wrong_answer_is_explained_and_asked_for_again() -> None:
    someone = Someone("\x1b[2Jmany", "")
    assert settled(None, someone, "How many?", "1", number) == 1
    assert someone.told == "␛[2Jmany is no number\n-> try 7"


def test_plain_lines_are_asked_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("\n mine \nYes\nno\n")
    lines = (tmp_path / "lines").open()
    monkeypatch.setattr(sys, "stdin", lines)
    plain = Plain()
    assert (plain.ask("Name", "a"), plain.ask("Name", "a", ("a", "b"))) == ("a", "mine")
    assert (plain.confirm("Sure?"), plain.confirm("Sure?")) == (True, False)
    with pytest.raises(EOFError):
        plain.ask("Name", "a")
    lines.close()
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("Name [a]: Name (a, b) [a]: Sure? (yes, no) [no]: ")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stdin", "stdout", "term", "kind"),
    [
        (Screen(), Screen(), "xterm", "Rich"),
        (Screen(), Screen(), "dumb", "Plain"),
        (Screen(), io.StringIO(), "xterm", "Plain"),
        (io.StringIO(), Screen(), "xterm", "NoneType"),
    ],
)
def test_what_asks_depends_on_the_terminal(
    stdin: io.StringIO, stdout: io.StringIO, term: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("TERM", term)
    assert type(asker_here()).__name__ == kind
