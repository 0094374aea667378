"""The part that rewards a match of a regular expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workers.problems.problem import Problem
from workers.rewards.given import Where, bad_row, stretch, texts
from workers.rewards.patterns import TooLong, compiled, is_found
from workers.rewards.reward import Case


@dataclass(frozen=True)
class Regex:
    """A search that takes more than a second of CPU time, or is to search more than 100,000 characters, finds
    nothing."""

    pattern: str = ""
    """The expression, as Python's module `re` reads it."""
    column: str = ""
    """In its place: the column with the expression of each row, or a list of them, of which one must match."""
    where: Where = "final"
    """What is searched: `all`, the `final` text after the thoughts, or the `marked` answer."""
    whole: bool = False
    """Whether it must match the whole text, without the blanks at its ends, and not only some of it."""
    ignore_case: bool = False
    """Whether upper and lower case are the same."""
    name: ClassVar[str] = "regex"

    def __post_init__(self) -> None:
        if bool(self.pattern) == bool(self.column):
            raise ValueError("give either `pattern` or `column`")
        compiled(self.pattern, self.ignore_case)

    def __call__(self, case: Case[Problem, object]) -> float:
        patterns = texts(case.problem, self.column, self.name) if self.column else [self.pattern]
        text = stretch(case, self.where)
        if text is None:
            return 0.0
        return float(any(self._matches(case.problem, one, text) for one in patterns))

    def _matches(self, problem: Problem, pattern: str, text: str) -> bool:
        try:
            compiled(pattern, self.ignore_case)
        except ValueError as error:
            raise bad_row(problem, self.name, f"reads the column {self.column!r}, and {error}") from error
        try:
            searched = text.strip() if self.whole else text
            return is_found(pattern, searched, ignore_case=self.ignore_case, whole=self.whole)
        except TooLong:
            return False
