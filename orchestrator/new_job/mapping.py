"""Guesses which columns of a data set hold the prompt, the answer and the tests, and checks named ones. (pure)"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.display.wording import harmless
from profiles.errors import ExitCode, LonghaulError
from profiles.refusal import nearest
from workers.line_contract import Column

PROMPTS = (
    "messages",
    "prompt",
    "question",
    "problem",
    "instruction",
    "query",
    "input",
    "task",
    "text",
    "description",
)
ANSWERS = (
    "answer",
    "solution",
    "final_answer",
    "ground_truth",
    "gold",
    "target",
    "label",
    "expected",
    "output",
    "response",
    "completion",
    "result",
)
TESTS = ("tests", "test_list", "test_cases", "input_output", "test")
"""Usual names of columns, the most telling first."""
DEFAULT_PROMPTS = ("prompt", "question", "messages")
DEFAULT_ANSWER, DEFAULT_TESTS = "answer", "tests"
"""What is read when a profile maps no columns."""
READABLE = ("text", "messages")
COMPARABLE = ("text", "number")
LONGEST_ANSWER = 256
"""In characters, as the reader of problems has it."""
NONE = "none"
"""What a person types for a data set without an answer."""


@dataclass(frozen=True)
class ColumnMap:
    """Names of columns; empty: there is none."""

    prompt: str
    answer: str
    tests: str = ""
    others: tuple[str, ...] = ()
    """Further columns, which reach a reward function by name."""

    @property
    def changed(self) -> dict[str, str]:
        """What `[data.columns]` must say: part -> column, where another one would be read by default."""
        there = {self.prompt, self.answer, self.tests, *self.others}
        default = next((name for name in DEFAULT_PROMPTS if name in there), "")
        read = {"prompt": default, "answer": self.answer and DEFAULT_ANSWER, "tests": self.tests and DEFAULT_TESTS}
        chosen = {"prompt": self.prompt, "answer": self.answer, "tests": self.tests}
        return {part: name for part, name in chosen.items() if name != read[part]}


def mapping_of(columns: Sequence[Column], file: str, prompt: str = "", answer: str = "") -> ColumnMap:
    """The named columns, and guesses for those that are not named. answer: `none` if no column holds it.

    Raises LonghaulError (INPUT), with the columns that are there, for a name that is not among them, and if no column
    can be a prompt.
    """
    for option, name, kinds in (("--prompt-column", prompt, READABLE), ("--answer-column", answer, COMPARABLE)):
        if name and not (option == "--answer-column" and name == NONE):
            _check_named(columns, file, option, name, kinds)
    prompt = prompt or _guess(columns, PROMPTS, READABLE) or _longest_text(columns, {answer})
    if not prompt:
        raise _refused(columns, file, "has no column of text that could be a prompt", "--prompt-column COLUMN")
    if not answer:
        answer = _guess([one for one in columns if one.name != prompt and _is_short(one)], ANSWERS, COMPARABLE)
    answer = "" if answer == NONE else answer
    tests = next((one.name for name in TESTS for one in columns if one.name.lower() == name and one.filled > 0), "")
    used = {prompt, answer, tests}
    return ColumnMap(prompt, answer, tests, tuple(one.name for one in columns if one.name not in used))


def _guess(columns: Sequence[Column], names: Sequence[str], kinds: Collection[str]) -> str:
    """The first column with one of the usual names, whatever its case; then one whose name contains it."""
    fitting = [one for one in columns if one.kind in kinds and one.filled > 0]
    for name in names:
        for one in fitting:
            if one.name.lower() == name:
                return one.name
    for name in names:
        for one in fitting:
            if name in one.name.lower().replace("-", "_").split("_"):
                return one.name
    return ""


def _is_short(column: Column) -> bool:
    """Whether its values can be compared with an answer: an essay cannot."""
    return column.longest_answer <= LONGEST_ANSWER


def _longest_text(columns: Sequence[Column], without: Collection[str]) -> str:
    texts = [one for one in columns if one.kind == "text" and one.name not in without]
    return max(texts, key=lambda one: one.mean_length).name if texts else ""


def _check_named(columns: Sequence[Column], file: str, option: str, name: str, kinds: Collection[str]) -> None:
    found = next((one for one in columns if one.name == name), None)
    if found is None:
        near = nearest(name, [one.name for one in columns])
        guess = f"; did you mean {harmless(near)}?" if near else ""
        raise _refused(columns, file, f"has no column {harmless(name)!r}{guess}", f"{option} {near or 'COLUMN'}")
    if found.kind not in kinds:
        why = f"holds {found.kind} in its column {harmless(name)!r}, not {' or '.join(kinds)}"
        raise _refused(columns, file, why, f"{option} COLUMN")


def _refused(columns: Sequence[Column], file: str, why: str, option: str) -> LonghaulError:
    return LonghaulError(
        f"the data {file} {why}; its columns:\n{columns_text(columns)}",
        kept="everything; nothing was written",
        next_command=f"the same command with {option}",
        exit_code=ExitCode.INPUT,
    )


def columns_text(columns: Sequence[Column]) -> str:
    """One column a line: name, kind, the beginning of its first value."""
    width = min(max(len(one.name) for one in columns), 24)
    return "\n".join(
        f"  {harmless(one.name):<{width}}  {one.kind:<8}  {harmless(one.example[:60].replace(chr(10), ' '))}"
        for one in columns
    )
