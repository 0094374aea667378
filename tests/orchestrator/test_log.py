"""orchestrator.log: what a model or a worker says can neither steer a terminal nor pass for a line of the master."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.display.plain import Plain
from orchestrator.display.screen import Screen, log_text
from profiles.schema import Profile
from state.facts import Line
from state.layout import RunDir

HOSTILE = "\x1b]0;owned\x07\x1b[2Jhe said\r\n2026-01-01 00:00:00 run 'x' finished\u2028more\x9b1m\u202e"


def test_a_warning_with_escapes_and_newlines_is_harmless_in_the_log(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    screen = Screen(run, Plain(None), None, Profile(name="x"))
    screen.take([Line(1, "warning", 3, 0.0, 0.0, {"text": HOSTILE}, "")])
    screen.say(HOSTILE)
    screen.note_pruned(HOSTILE)
    screen.close(HOSTILE)
    text = run.log.read_text()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", text)
    assert len(re.findall(r"(?m)^\d{4}-\d\d-\d\d", text)) == 4, "one for each thing that was logged"
    assert "worker: warning at step 3: \u241b]0;owned" in text


@given(st.text())
def test_whatever_is_logged_begins_one_line_and_indents_the_rest(text: str) -> None:
    first, *more = log_text("2026-01-01 00:00:00", text).splitlines()
    assert first.startswith("2026-01-01 00:00:00 ")
    assert all(line.startswith(" " * 20) for line in more)
    assert len(more) == text.count("\n")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", "".join([first, *more]))
