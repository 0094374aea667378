"""What the worker hears of the code server's answers, and when it ends the attempt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPOSITORY
from workers.sandbox.server.tally import VERDICT, WINDOW
from workers.verl.verdicts import Verdicts, note

LOST = "HTTP 504"


def heard(control: Path, kinds: list[str]) -> Verdicts:
    found = Verdicts(control)
    for kind in kinds:
        note(control, kind)
    found.read()
    return found


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        pytest.param([], None, id="no answers yet"),
        pytest.param([VERDICT] * WINDOW, None, id="a server that is well, however slow"),
        pytest.param([LOST] * 5 + [VERDICT] * 495, None, id="one lost in a hundred"),
        pytest.param([LOST] * 6 + [VERDICT] * 494, "6 of the last 500", id="more than one in a hundred"),
        pytest.param([VERDICT] * 2 + [LOST] * 6, "6 of the last 8 answers", id="a server that broke at the start"),
        pytest.param([LOST] * 6 + [VERDICT] * 495, None, id="losses that the window has passed"),
        pytest.param([VERDICT] * 900 + [LOST] * 6, "6 of the last 500", id="a server that breaks late"),
    ],
)
def test_the_share_that_ends_an_attempt(tmp_path: Path, kinds: list[str], reason: str | None) -> None:
    said = heard(tmp_path, kinds).stop_reason
    assert said is None if reason is None else said is not None and reason in said and "6 HTTP 504" in said


def test_each_loss_is_told_once(tmp_path: Path) -> None:
    found = heard(tmp_path, [VERDICT, LOST, "TimeoutError", LOST])
    assert found.take_lost() == {LOST: 2, "TimeoutError": 1} and found.take_lost() == {}


def test_answers_of_all_processes_count_together_and_each_once(tmp_path: Path) -> None:
    found = heard(tmp_path, [LOST] * 3)
    code = f"from pathlib import Path\nfrom workers.verl.verdicts import note\nnote(Path({str(tmp_path)!r}), {LOST!r})"
    for _ in range(3):
        assert found.stop_reason is None
        subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
        found.read()
    assert found.stop_reason == "6 of the last 6 answers of the code server were no verdicts (6 HTTP 504)"
