"""From a completion to its answer, and whether two answers are the same: the one home of both. (pure)

Nothing of a text is run. Numbers are read exactly, as fractions; what is no plain number is left to `equality.py`.
Every search is a scan from the end or a bounded match, so that no text takes more than linear time.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import Literal

from msgspec import Struct

LONGEST_COMPLETION = 1_000_000
"""Characters; a longer one has no answer. No model writes as many, so it is an attack or a broken file."""
LONGEST_ANSWER = 256
"""Characters of an answer that are looked at; nobody's right answer is longer."""
MOST_DIGITS = 64
VERSION = 2
"""Of these rules; whatever was judged with other ones is stale."""

Rule = Literal["boxed", "answer tag", "mark", "phrase", "last number"]


class Extracted(Struct, frozen=True):
    """`text`: the answer as written; None if there is none, and then `reason` says why. `rule`: which one found it."""

    text: str | None
    rule: Rule | None = None
    reason: str = ""


def extract(completion: str, *, truncated: bool = False, lenient: bool = False) -> Extracted:
    """The answer of a completion. The first rule that matches decides, even if its content is no number.

    1 the last `\\boxed{...}`; 2 the last `<answer>...</answer>`; 3 the last `####` to the end of its line; 4 the last
    "answer is" or "answer:" before a number; 5 with `lenient` only, the last number. Thoughts do not count: what is
    searched comes after the last `</think>`. Without one, a completion that was cut, or that began to think, has none.
    """
    if len(completion) > LONGEST_COMPLETION:
        return Extracted(None, reason=f"longer than {LONGEST_COMPLETION} characters")
    _, closed, region = completion.rpartition("</think>")
    if not closed and (truncated or "<think>" in completion):
        return Extracted(None, reason="cut before its answer" if truncated else "its thoughts do not end")
    found = _boxed(region) or _tagged(region) or _marked(region) or _phrased(region)
    if found is None and lenient:
        found = _last_number(region)
    if found is None:
        return Extracted(None, reason="no answer in any known form")
    if found.text is not None and not found.text.strip():
        return Extracted(None, found.rule, "an empty answer")
    return found


def gold_of(answer: str) -> str:
    """The right answer of a data row: what follows the last `####`, or all of it where there is none."""
    return answer.rpartition("####")[2].strip()


def after_mark(text: str, mark: str = "####") -> str | None:
    """What follows the first `mark`, to the end of its line; None where there is no mark."""
    _, found, rest = text.partition(mark)
    return rest.strip().split("\n", 1)[0] if found else None


def is_formatted(completion: str, *, truncated: bool = False) -> bool:
    """Whether thoughts end exactly once, and a number in a box follows."""
    if truncated or completion.count("</think>") != 1:
        return False
    found = extract(completion)
    return found.rule == "boxed" and found.text is not None and read_number(found.text) is not None


_BOX = re.compile(r"\\boxed\s{0,8}\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def _boxed(region: str) -> Extracted | None:
    start = None
    for found in _BOX.finditer(region):
        start = found.end()
    if start is None:
        return None
    depth = 1
    for brace in _BRACE.finditer(region, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return Extracted(region[start : brace.start()], "boxed")
    return Extracted(None, "boxed", "a box that does not close")


def _tagged(region: str) -> Extracted | None:
    end = region.rfind("</answer>")
    start = region.rfind("<answer>", 0, max(end, 0))
    return None if start < 0 else Extracted(region[start + len("<answer>") : end].strip(), "answer tag")


def _marked(region: str) -> Extracted | None:
    _, found, rest = region.rpartition("####")
    return Extracted(rest.strip(" \t").partition("\n")[0].strip(), "mark") if found else None


_SEPARATOR = r"(?:,?\\[,;!]|\{,\}|,)"
"""Between the groups of a number as LaTeX sets it: `1,\\!000`, `1\\,000`, `1{,}000`."""
_AMOUNT = (
    rf"[-+−]?[$€£]?[-+−]?(?:\d{{1,3}}(?:{_SEPARATOR}\d{{3}}){{1,8}}|\d{{1,64}}|(?=\.\d))"
    r"(?:\.\d{1,64})?(?:/\d{1,64})?"
)
_ENDS = rf"(?![\d/^]|\*{{1,2}}\d|{_SEPARATOR}\d|\.\d|\s{{1,4}}or\s)"
_PHRASE = re.compile(
    rf"\banswer(?:\s{{1,8}}is\b|\s{{0,8}}:)[\s:*]{{0,8}}\\?(?P<amount>{_AMOUNT}){_ENDS}", re.ASCII | re.IGNORECASE
)
_ANY_NUMBER = re.compile(rf"(?<![\w.,/])(?<!\\[;!])(?<!,\}})(?P<amount>{_AMOUNT}){_ENDS}", re.ASCII)


def _phrased(region: str) -> Extracted | None:
    last = None
    for found in _PHRASE.finditer(region):
        last = found["amount"]
    return None if last is None else Extracted(last, "phrase")


def _last_number(region: str) -> Extracted | None:
    last = None
    for found in _ANY_NUMBER.finditer(region):
        last = found["amount"]
    return None if last is None else Extracted(last, "last number")


_NUMBER = re.compile(
    r"""
    (?P<sign>[-+]?) \s* [$€£]? \s* (?P<late_sign>(?<=[$€£])-|)
    (?:
      (?P<mixed>\d+) \s+ (?P<above>\d+) \s* / \s* (?P<below>\d+)
    | (?P<whole> \d{1,3}(?:,\d{3})+ | \d+ | (?=\.\d) ) (?: \. (?P<part>\d*) )? (?: \s* / \s* (?P<over>\d+) )?
    )
    (?P<rest> (?![\d/*^({\[]) .* )
    """,
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_UNIT = re.compile(r"(?:[^\W\d_]|[\s.,;:!?'\"%°$€£]|(?<=\w)-(?=\w)|(?<=\w)/(?=\w)|(?<=\s)\(|\))*")
_NO_UNIT = frozenset({
    "or", "and", "plus", "minus", "times", "over", "squared", "cubed", "half", "dozen", "dozens", "hundred", "thousand",
    "million", "billion", "trillion",
})  # fmt: skip
"""Words after a number that make it another number, or two."""
_BOLD = re.compile(r"(\*{1,3})([^*]*)\1([^*]*)")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}", re.ASCII)
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_TIGHT = re.compile(r"(?<![A-Za-z])\\!(?![A-Za-z])")
"""A negative space: none to be seen, but between letters, where it ends a word or a command."""
_GROUPS = re.compile(r"(?<!\d)\d{1,3}(?:,?(?:\\[,;])+\d{3})+(?!\d)", re.ASCII)
"""Thin spaces between the thousands of one number; other digits with one between are two numbers."""
_THIN = re.compile(r"\\[,;]")
_SPACES = re.compile(r"\\[,;! ]|\\(?:left|right|quad)(?![A-Za-z])|~")


def plain(text: str) -> str | None:
    """An answer without what only sets it: LaTeX spaces, wrappers of text, bold. None: too long to be one."""
    if len(text) > LONGEST_ANSWER:
        return None
    text = unicodedata.normalize("NFKC", text).replace("\u2212", "-").strip()
    if bold := _BOLD.fullmatch(text):
        text = bold[2] + bold[3]
    text = _WRAPPED.sub(r"\1", _WRAPPED.sub(r"\1", text))
    text = text.replace("{,}", ",").replace("\\$", "$").replace("\\%", "%")
    text = _GROUPS.sub(lambda found: _THIN.sub("", found[0]), _TIGHT.sub("", text))
    text = re.sub(r"\^\s*(?:\\circ|\{\s*\\circ\s*\}|°)", "°", _SPACES.sub(" ", text))
    for left, right in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")):
        inner = text.strip()
        if len(inner) > len(left) + len(right) and inner.startswith(left) and inner.endswith(right):
            text = inner[len(left) : -len(right)]
    return text.strip()


def read_number(text: str) -> Fraction | None:
    """The number that an answer is; None if it is none, or is more than one.

    Thousands commas and thin spaces, currency, `%` (as the data writes it) and words after it do not count: `$1,234.50`
    is 1234.5, `70,\\!000` 70000, `18 eggs.` 18. `x = 12` is 12; `3/4`, `\\frac{3}{4}` and `2 1/2` are numbers;
    `5 or 6`, `3*4`, `1e5`, `5 million`, `12,3`, `1,\\,2` are none.
    """
    cleaned = plain(text)
    if cleaned is None:
        return None
    cleaned = _FRACTION.sub(r" \1/\2", cleaned.rpartition("=")[2]).strip()
    found = _NUMBER.fullmatch(cleaned)
    if found is None or sum(character.isdigit() for character in cleaned) > MOST_DIGITS:
        return None
    if _UNIT.fullmatch(found["rest"]) is None or _NO_UNIT & set(re.findall(r"[a-z]+", found["rest"].lower())):
        return None
    value = _value(found)
    is_negative = (found["sign"] == "-") != (found["late_sign"] == "-")
    return -value if value is not None and is_negative else value


def _value(found: re.Match[str]) -> Fraction | None:
    """Its size, without a sign; None where a denominator is 0 or stands below decimals."""
    if found["mixed"]:
        below = int(found["below"])
        return None if below == 0 else int(found["mixed"]) + Fraction(int(found["above"]), below)
    whole, part = found["whole"].replace(",", ""), found["part"] or ""
    value = Fraction(int((whole + part) or "0"), 10 ** len(part))
    if found["over"]:
        below = int(found["over"])
        return None if part or below == 0 else value / below
    return value
