"""The part that rewards the right letter of a multiple choice. (pure)

What counts as the chosen letter, in the text after the thoughts; the first of these that is there decides:
1 the last `\\boxed{B}`, else the last `<answer>B</answer>`, else what follows the last `####`, as the verifier
  finds them;
2 the last "answer is B", "answer: B", "option B", "choose B" and the like;
3 the last line, if it is a letter, with or without a text after it: `B`, `(B)`, `**B.**`, `B) Paris`; but not if the
  line above is another letter, as in a list of all;
4 the only letter in brackets in the last line: `so it is (B).`
A letter may have brackets, stars and quotes around it. In 2 it must be upper case, or in brackets. Two letters as one
answer (`B or C`) are none, and so is a word (`answer: A triangle`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

from workers.problems.problem import Problem
from workers.rewards.given import WHOLLY_MARKED, bad_row, final, texts
from workers.rewards.reward import Case
from workers.verifiers.answers import extract

MOST = 26
LONGEST_LINE = 2_000
"""Characters of a last line that are read."""


@dataclass(frozen=True)
class Choice:
    letters: str = "ABCDE"
    """The letters that there are, in order."""
    column: str = ""
    """The column with the right letter (`B`, `(b)`), or its number from 0; empty: the right answer."""
    name: ClassVar[str] = "choice"

    def __post_init__(self) -> None:
        upper = self.letters.upper()
        if not re.fullmatch("[A-Z]{2,26}", upper) or len(set(upper)) < len(upper):
            raise ValueError(f"`letters` ({self.letters!r}) must be 2 to {MOST} different letters from A to Z")

    def __call__(self, case: Case[Problem, object]) -> float:
        (wanted, *others) = texts(case.problem, self.column, self.name)
        right = self._right(wanted.strip())
        if right is None or others:
            raise bad_row(case.problem, self.name, f"is given {wanted[:40]!r} as the right one of {self.letters}")
        return float(self.chosen(case) == right)

    def chosen(self, case: Case[Problem, object]) -> str | None:
        """The chosen letter in upper case; None if there is none."""
        found = extract(case.text, truncated=case.is_truncated)
        forms = _forms(self.letters.upper())
        if found.rule in WHOLLY_MARKED:
            return _alone(forms, found.text or "")
        text = final(case)
        if text is None:
            return None
        named = list(forms.named.finditer(text))
        if named:
            return _named(forms, text, named[-1])
        above, _, line = text.strip().rpartition("\n")
        line, above = line[-LONGEST_LINE:], above.rstrip().rpartition("\n")[2][-LONGEST_LINE:]
        alone = _alone(forms, line)
        if alone is not None:
            return alone if _alone(forms, above) in (None, alone) else None
        bracketed = {letter.upper() for letter in forms.bracketed.findall(line)}
        return bracketed.pop() if len(bracketed) == 1 else None

    def _right(self, wanted: str) -> str | None:
        upper = self.letters.upper()
        if re.fullmatch("[0-9]{1,2}", wanted):
            return upper[int(wanted)] if int(wanted) < len(upper) else None
        letter = wanted.strip("().: ").upper()
        return letter if len(letter) == 1 and letter in upper else None


class _Forms(NamedTuple):
    named: re.Pattern[str]
    alone: re.Pattern[str]
    bracketed: re.Pattern[str]
    other: re.Pattern[str]


_OPENERS = r"(?:[\s*_$(\[{\"'`]|\\[(\[]|\\(?:text|mathrm|mathbf)\s?(?=\{)){0,12}"
_CLOSERS = r"(?:[\s*_$)\]}\"'`]|\\[)\]]){0,12}"
_NO_WORD = r"(?![\w'’-])"
_WORDS = r"(?:(?:option|choice|letter|answer)\s{1,4})?"
_ARTICLE = re.compile(r"[ \t]{1,4}(?!(?:because|since|as|is|due|based|given|for|with|from|which|and|or)\b)[a-z]")
"""What follows the first letter of `A triangle`. Only A and I are words."""


@lru_cache(maxsize=32)
def _forms(letters: str) -> _Forms:
    upper, both = f"[{letters}]", f"[{letters}{letters.lower()}]"
    return _Forms(
        named=re.compile(
            r"\b(?i:answer|choice|option|choose|pick|select)(?i:\s{1,4}(?:is|would\s{1,4}be|must\s{1,4}be))?"
            rf"(?:\s{{0,4}}[:=])?(?i:\s{{1,4}}(?:option|choice|letter))?(?![\w]){_OPENERS}"
            rf"(?:(?<=\()(?P<low>{both})(?=\))|(?P<high>{upper}){_NO_WORD})"
        ),
        alone=re.compile(
            rf"{_OPENERS}(?i:{_WORDS}){_OPENERS}({both})(?:{_CLOSERS}\.?{_CLOSERS}\Z|{_CLOSERS}[.:)\]].*)", re.S
        ),
        bracketed=re.compile(rf"\(({both})\)"),
        other=re.compile(
            rf"{_CLOSERS}(?:(?:,\s?)?\b(?:or|and)\b|[/&]|,(?={_OPENERS}{upper}{_CLOSERS}(?:[.,\n]|\Z)))"
            rf"{_OPENERS}({both}){_NO_WORD}"
        ),
    )


def _alone(forms: _Forms, text: str) -> str | None:
    """The letter, if the text is nothing else, or begins with it as an entry of a list does."""
    text = text.strip()
    found = forms.alone.fullmatch(text)
    if found is None or _is_one_of_two(forms, text, found.end(1), found[1]):
        return None
    return found[1].upper()


def _named(forms: _Forms, text: str, found: re.Match[str]) -> str | None:
    letter = found["low"] or found["high"]
    if letter in "AI" and found["high"] and _ARTICLE.match(text, found.end()):
        return None
    return None if _is_one_of_two(forms, text, found.end(), letter) else letter.upper()


def _is_one_of_two(forms: _Forms, text: str, end: int, letter: str) -> bool:
    other = forms.other.match(text, end)
    return other is not None and other[1].upper() != letter.upper()
