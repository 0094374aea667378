"""Extracts the answer from a completion, and compares numbers: the only home of both. (pure)

Nothing of a text is run. Numbers are read exactly, as fractions; `symbolic.py` handles anything but plain numbers.
Every search is a scan from the end or a bounded match, so no text takes more than linear time.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from msgspec import Struct

from workers.verifiers.boxes import is_another, last_boxes
from workers.verifiers.units import is_noun, is_unit, makes_another

LONGEST_COMPLETION = 1_000_000
"""Characters; a longer completion has no answer. No model writes this much: it is an attack or a broken file."""
LONGEST_ANSWER = 256
"""Characters of an answer that are read; no right answer is longer."""
MOST_DIGITS = 64
VERSION = 7
"""Version of these rules; verdicts under other versions are stale."""

Rule = Literal["boxed", "answer tag", "mark", "phrase", "last number"]


class Extracted(Struct, frozen=True):
    """`text`: the answer as written; None if there is none, and `reason` says why. `rule`: the rule that found it."""

    text: str | None
    rule: Rule | None = None
    reason: str = ""


def extract(completion: str, *, truncated: bool = False, lenient: bool = False) -> Extracted:
    """The answer of a completion. The first rule that matches decides, even if its content is not a number.

    1 the last `\\boxed{...}`; 2 the last `<answer>...</answer>`; 3 the last `####` to the end of its line; 4 the last
    "answer is" or "answer:" before a number or a formula; 5 with `lenient` only, the last number. Two alternative
    answers count as no answer (`\\boxed{5} or \\boxed{6}`), as does a number that its sentence changes (`the answer is
    5 million`).
    Thoughts do not count: the search starts after the last `</think>`. A completion without one has no answer if it was
    truncated or opened a thought.
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
    """The right answer of a data row: the text after the last `####`, or all of it without one."""
    return answer.rpartition("####")[2].strip()


def written(number: int | float) -> str:
    """A data row's number in plain notation: all digits, no exponent."""
    return format(Decimal(repr(number)), "f")


def after_mark(text: str, mark: str = "####") -> str | None:
    """The text after the first `mark`, to the end of its line; None without a mark."""
    _, found, rest = text.partition(mark)
    return rest.strip().split("\n", 1)[0] if found else None


def is_formatted(completion: str, *, truncated: bool = False) -> bool:
    """Whether thoughts end exactly once, and a number in a box follows."""
    if truncated or completion.count("</think>") != 1:
        return False
    found = extract(completion)
    return found.rule == "boxed" and found.text is not None and read_number(found.text) is not None


_JOINED = re.compile(r"[\s$*_()]*(?:[,;][\s$*_]*(?:or|and)?|or|and|and/or|to|vs|[-–—/&+|])[\s$*_()]*")
"""Words between two answers that make both one statement. With other words, or none, the second answer stands alone."""
LONGEST_JOINT = 40


def _boxed(region: str) -> Extracted | None:
    """The last box, or the box around it; no answer if it is one of two alternatives."""
    boxes = last_boxes(region)
    if boxes is None:
        return Extracted(None, "boxed", "a box that does not close")
    if not boxes:
        return None
    box = boxes[-1]
    text = _innermost(region[box.start : box.end])
    if len(boxes) > 1:
        first = boxes[-2]
        is_joint = _is_joint(region[first.end + 1 : box.command])
        if is_joint and _innermost(region[first.start : first.end]).strip() != text.strip():
            return Extracted(None, "boxed", "two boxes as one answer")
    if is_another(region, box):
        return Extracted(None, "boxed", "what is next to the box makes it another answer")
    return Extracted(text, "boxed")


_NESTED = re.compile(r"\s*\\{1,4}boxed\s{0,8}\{([^{}]*)\}\s*")


def _innermost(text: str) -> str:
    """The content of the innermost of nested boxes."""
    inner = _NESTED.fullmatch(text)
    return inner[1] if inner else text


def _is_joint(between: str) -> bool:
    return len(between) <= LONGEST_JOINT and _JOINED.fullmatch(plain(between) or "") is not None


def _tagged(region: str) -> Extracted | None:
    end = region.rfind("</answer>")
    start = region.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    text = region[start + len("<answer>") : end].strip()
    before = region.rfind("</answer>", 0, start)
    if before >= 0 and _is_joint(region[before + len("</answer>") : start]):
        first = region[region.rfind("<answer>", 0, before) + len("<answer>") : before].strip()
        if first != text:
            return Extracted(None, "answer tag", "two tags as one answer")
    return Extracted(text, "answer tag")


def _marked(region: str) -> Extracted | None:
    before, found, rest = region.rpartition("####")
    if not found:
        return None
    text = rest.strip(" \t").partition("\n")[0].strip()
    first = before.rpartition("\n")[2].rpartition("####")
    if first[1] and first[2].strip() != text:
        return Extracted(None, "mark", "two marks in one line")
    return Extracted(text, "mark")


_SEPARATOR = r"(?:,?\\[,;!]|\{,\}|,)"
"""Separators between digit groups in LaTeX: `1,\\!000`, `1\\,000`, `1{,}000`."""
_AMOUNT = (
    rf"[-+−]?[$€£]?[-+−]?(?:\d{{1,3}}(?:{_SEPARATOR}\d{{3}}){{1,8}}|\d{{1,64}}|(?=\.\d))"
    r"(?:\.\d{1,64})?(?:/\d{1,64})?"
)
_ENDS = rf"(?![\d/^]|\*{{1,2}}\d|{_SEPARATOR}\d|\.\d|\s{{1,4}}or\s)"
_PHRASE = re.compile(
    r"\banswer(?:\s{1,8}is\b|\s{0,8}:)[\s:*]{0,8}(?=[-+−]?(?:\.?\d|[$€£\\\"'`])|[a-z]\s?=)", re.ASCII | re.IGNORECASE
)
"""Before anything else, as in "the answer is clear", it announces no answer."""
_ANNOUNCED = re.compile(
    rf"(?:\\[(\[]\s{{0,4}}|\$(?=[\\$A-Za-z]))?(?:[A-Za-z]\s?=\s?)?"
    rf"(?:\\?(?P<amount>{_AMOUNT})|(?P<fraction>-?\\[dt]?frac\{{\d{{1,64}}\}}\{{\d{{1,64}}\}}))",
    re.ASCII,
)
_CLAUSE = re.compile(
    r"""
    (?: [*_]{1,3}(?![\d*_]) | \$(?!\d) | \s{0,4}\\[)\]] )?
    (?P<unit> (?: \\[,;!] | [^\n.!?;:,=<>()] ){0,80}? )
    (?:
      \s{0,99} [*_"'$)\]]{0,4} \s{0,99} \Z
    | \s{0,99} [*_"'$)\]]{0,4} (?: \.(?!\.) | ! (?!\s{0,99}[^\sA-Z]) ) [*_"'$)\]]{0,4} (?=\s|\Z)
    | \s{0,99} [*_"'$)\]]{0,4} \n (?! \s{0,99} [a-z+\-*/=^<>%] )
    | ,? \s{1,99} (?=(?:because|since|as|so|which)\b)
    )
    """,
    re.VERBOSE | re.ASCII,
)
"""From a number to the end of its statement: its sentence, its line, or a reason."""
_ANY_NUMBER = re.compile(rf"(?<![\w.,/])(?<!\\[;!])(?<!,\}})(?P<amount>{_AMOUNT})", re.ASCII)
_NOT_WHOLE = re.compile(
    rf"(?!{_ENDS})|\s{{0,4}}(?:\\(?:times|cdot|div|pm|sqrt|[dt]?frac|binom|leq?|geq?|lt|gt)(?![A-Za-z])|[\^/<>=×÷±])"
    r"|\*(?=[\w(])|\s\*\s",
    re.ASCII,
)
_WITHIN = re.compile(
    r"(?:\\(?!approx|implies|therefore|[Rr]ightarrow)[A-Za-z]{2,16}|[\w)}\]]\s{0,4}[-+*/^<>×÷±]|[{^]|\bor)[\s$]{0,4}\Z"
)
"""What follows a number, or precedes it, that is a part of something larger."""


def _phrased(region: str) -> Extracted | None:
    """The number of the last phrase; none where what follows it in its sentence is more than a unit."""
    phrase = None
    for found in _PHRASE.finditer(region):
        phrase = found
    if phrase is None:
        return None
    last = _ANNOUNCED.match(region, phrase.end())
    if last is None:
        return Extracted(None, "phrase", "what follows the phrase is not a plain number")
    amount = last["amount"] or last["fraction"]
    clause, number = _CLAUSE.match(region, last.end()), read_number(amount)
    if clause is None or number is None or read_number(amount + clause["unit"]) != number:
        return Extracted(None, "phrase", "what follows the number makes it another answer")
    return Extracted(amount, "phrase")


_NEXT_WORD = re.compile(r"\s{0,4}\$?\s{0,4}([A-Za-z]{1,16})(?![A-Za-z])")


def _last_number(region: str) -> Extracted | None:
    last = None
    for found in _ANY_NUMBER.finditer(region):
        last = found
    if last is None:
        return None
    word = _NEXT_WORD.match(region, last.end())
    is_part = _NOT_WHOLE.match(region, last.end()) or _WITHIN.search(region, max(0, last.start() - 32), last.start())
    if is_part or (word is not None and makes_another(word[1])):
        return Extracted(None, "last number", "what follows the number makes it another answer")
    return Extracted(last["amount"], "last number")


_NUMBER = re.compile(
    r"""
    (?P<sign>[-+]?) \s* [$€£]? \s* (?P<late_sign>(?<=[$€£])-|)
    (?:
      (?P<mixed>\d+) \s+ (?P<above>[1-9]\d*) \s* / \s* (?P<below>\d+)
    | (?P<whole> [1-9]\d{0,2}(?:,\d{3})+ | \d+ | (?=\.\d) ) (?: \. (?P<part>\d*) )? (?: \s* / \s* (?P<over>\d+) )?
    )
    (?P<rest> (?! [\d*^({\[.!] | /\s*\d ) .* )
    """,
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z](?:_\{?[A-Za-z\d]{1,8}\}?)?|[A-Za-z]{2,}(?:\s+[A-Za-z]{2,}){0,5}", re.ASCII)
"""What a number may be assigned to: a letter, or words."""
_BOLD = re.compile(r"(\*{1,3})([^*]*)\1([^*]*)")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}(?!\s*\d)", re.ASCII)
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SYMBOL = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[\s~]*[mghslL]\s*\}")
"""One letter set as text is a unit; set as mathematics, or bare, it is a variable or short for a multiplier."""
_TIGHT = re.compile(r"(?<![A-Za-z])\\!(?![A-Za-z])")
"""A negative space: none to be seen, but between letters, where it ends a word or a command."""
_GROUPS = re.compile(r"(?<!\d)\d{1,3}(?:,?(?:\\[,;])+\d{3})+(?!\d)", re.ASCII)
"""Thin spaces between the thousands of one number; other digits with one between are two numbers."""
_THIN = re.compile(r"\\[,;]")
_SPACES = re.compile(r"\\[,;! ]|\\(?:left|right|quad)(?![A-Za-z])|~")
_RAISED = re.compile(r"\^\{([^{}]*)\}\^\{(?=[^{}]*\})")


def plain(text: str) -> str | None:
    """An answer without what only sets it: LaTeX spaces, wrappers of text, bold. None: too long to be one."""
    if len(text) > LONGEST_ANSWER:
        return None
    text = _folded(text).strip()
    if bold := _BOLD.fullmatch(text):
        text = bold[2] + bold[3]
    text = _WRAPPED.sub(r" \1 ", _WRAPPED.sub(r" \1 ", text))
    text = text.replace("{,}", ",").replace("\\$", "$").replace("\\%", "%")
    text = _GROUPS.sub(lambda found: _THIN.sub("", found[0]), _TIGHT.sub("", text))
    text = re.sub(r"\^\s*(?:\\circ|\{\s*\\circ\s*\}|°)", "°", _SPACES.sub(" ", text))
    for left, right in (("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")):
        inner = text.strip()
        if len(inner) > len(left) + len(right) and inner.startswith(left) and inner.endswith(right):
            text = inner[len(left) : -len(right)]
    return text.strip()


def _folded(text: str) -> str:
    """Characters as ASCII has them where they mean the same. NFKC alone would make 25 of `2⁵`, and 11/3 of `1⅓`."""
    if text.isascii():
        return text
    folded = "".join(_fold(character) for character in unicodedata.normalize("NFC", text))
    while (joined := _RAISED.sub(r"^{\1", folded)) != folded:
        folded = joined
    return folded


def _fold(character: str) -> str:
    if character == "\u2212":
        return "-"
    if character == "\u2044":
        return "/"
    if character in "\u2009\u202f":
        return "\\,"
    kind = unicodedata.decomposition(character).partition(">")[0]
    same = unicodedata.normalize("NFKC", character)
    if kind == "<super":
        return f"^{{{same}}}".replace("\u2212", "-")
    if kind == "<sub":
        return f"_{{{same}}}"
    if kind == "<fraction":
        return f" {same} ".replace("\u2044", "/")
    if unicodedata.name(character, "").startswith(("ROMAN", "SMALL ROMAN")):
        return character
    if kind in ("<wide", "<narrow", "<font", "<noBreak") or not any(one in _MEANT for one in same):
        return same
    return character


_MEANT = frozenset("0123456789!\"#$%&'()*+,-./:;<=>?@[]^_{|}~\\`")
"""A sign that stands for several with one of these among them (`⑤`, `⒌`, `…`) is no digit and no full stop."""


def read_number(text: str) -> Fraction | None:
    """The number that an answer is; None if it is none, or is more than one.

    Thousands commas and thin spaces, currency, `%` (as the data writes it) and a unit after it (`units.py`) do not
    count: `$1,234.50` is 1234.5, `70,\\!000` 70000, `18 eggs.` 18. `x = 12` is 12; `3/4`, `\\frac{3}{4}`, `1⅓` and
    `2 1/2` are numbers; `1 500/3`, `5 or 6`, `3*4`, `2⁵`, `5!`, `1e5`, `5 million`, `5k`, `5x`, `x >= 6` and `12,3` are
    none.
    """
    cleaned = plain(_SYMBOL.sub(" metres ", text)) if len(text) <= LONGEST_ANSWER else None
    if cleaned is None:
        return None
    name, sign, cleaned = ("", "", cleaned) if "=" not in cleaned else cleaned.partition("=")
    if sign and not is_name(name.strip()):
        return None
    cleaned = re.sub(r"(?<=[$€£])\s+(?=-)", "", _FRACTION.sub(r" \1/\2", cleaned)).strip()
    found = _NUMBER.fullmatch(cleaned)
    if found is None or sum(character.isdigit() for character in cleaned) > MOST_DIGITS or not is_unit(found["rest"]):
        return None
    value = _value(found)
    if found["sign"] and found["late_sign"]:
        return None
    return -value if value is not None and "-" in (found["sign"], found["late_sign"]) else value


def is_name(text: str) -> bool:
    """Whether a number can be assigned to it: `x`, `x_1`, `Total cost`, but not `x or y` nor `half x`."""
    return _NAME.fullmatch(text) is not None and all(is_noun(word) for word in re.findall("[A-Za-z]{2,}", text))


def _value(found: re.Match[str]) -> Fraction | None:
    """Its absolute value; None if a denominator is 0 or follows decimals, or thousands separators look mixed.

    `1 500/3` could also mean 1500/3, so a mixed number's fraction must be below one.
    """
    if found["mixed"]:
        above, below = int(found["above"]), int(found["below"])
        return int(found["mixed"]) + Fraction(above, below) if above < below else None
    whole, part = found["whole"].replace(",", ""), found["part"] or ""
    value = Fraction(int((whole + part) or "0"), 10 ** len(part))
    if found["over"]:
        below = int(found["over"])
        return None if part or below == 0 else value / below
    return value
