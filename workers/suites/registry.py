"""The suites by name: `load_suites` makes the ones that are asked for, or says why it cannot."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from workers.suites import cruxeval, gsm8k
from workers.suites.data_files import CRUXEVAL, GSM8K_TEST, DataFile
from workers.suites.pocket import pocket_suite
from workers.suites.question import Question, subset
from workers.suites.suite import Suite
from workers.suites.words import words_suite

READERS: dict[str, Callable[[Path | None], list[Question]]] = {
    "cruxeval-i": cruxeval.input_questions,
    "cruxeval-o": cruxeval.output_questions,
    "gsm8k": gsm8k.questions,
}
"""Suites that are read from published files."""
FILES: dict[str, DataFile] = {"cruxeval-i": CRUXEVAL, "cruxeval-o": CRUXEVAL, "gsm8k": GSM8K_TEST}
BUILT_IN: dict[str, Callable[[int], Suite]] = {"pocket": pocket_suite, "words": words_suite}
"""Suites that are drawn from a seed; the number of questions is of each task."""
NAMES = (*READERS, *BUILT_IN)


def load_suites(names: Sequence[str], folder: Path | None, count: int, *, all_of_files: bool = False) -> list[Suite]:
    """The named suites. count: questions of each task, a fixed subset; 0: all that there are.

    all_of_files: every question of suites that are read from files, `count` of those that are drawn without end.

    Raises LonghaulError: USAGE for an unknown name, INPUT where data is missing, torn or empty.
    """
    if unknown := [name for name in names if name not in NAMES]:
        raise _unknown(unknown[0])
    return [_load(name, folder, 0 if all_of_files and name in READERS else count) for name in names]


def _load(name: str, folder: Path | None, count: int) -> Suite:
    if name in BUILT_IN:
        return BUILT_IN[name](count)
    questions = READERS[name](folder)
    return Suite(name, subset(questions, count) if count else questions, available=len(questions))


def _unknown(name: str) -> LonghaulError:
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.4)
    meant = f"; did you mean {near[0]}?" if near else ""
    return LonghaulError(
        f"there is no suite {name!r}{meant} (there are {', '.join(NAMES)})",
        kept="everything; nothing was asked",
        next_command=f"python -m orchestrator evaluate --on {near[0] if near else 'pocket'}",
        exit_code=ExitCode.USAGE,
    )
