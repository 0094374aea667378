"""Finds the last `\\boxed{...}` of a completion, and decides whether its surroundings change the answer. (pure)

`\\boxed{5}\\sqrt{2}`, `1/\\boxed{5}` and `x > \\boxed{5}` do not say 5. Inside a box only a unit may follow the number;
around it people write anything, so the patterns that change a number are listed. One scan finds the boxes; everything
else is a match of bounded length at one position.
"""

from __future__ import annotations

import re

from msgspec import Struct

from workers.verifiers.units import is_factor

SEEN_BEFORE = 240
"""Characters examined before a box; an HTML tag with its attributes is shorter."""


class Box(Struct, frozen=True):
    """Start of its command, start and end of its content; and whether a fraction, a root or a power contains it."""

    command: int
    start: int
    end: int
    is_part: bool = False


_BRACE = re.compile(r"\\{1,4}boxed\s{0,8}\{|\\.|[{}]", re.DOTALL)
_HOLDER = re.compile(
    r"(?:(?:\\sqrt\s{0,4}(?:\[[^\]\n]{0,16}\])?|frac\s{0,4}\d?|\\[dt]?binom|\\[bx]?cancel)|\^|[A-Za-z\d)}]_)\s{0,4}\Z",
    re.ASCII,
)
"""Commands whose braces hold part of another number, or struck-out text. A lone `_` is italics in Markdown."""


def last_boxes(region: str) -> list[Box] | None:
    """The last two outermost boxes, or fewer if there are fewer; None if the last does not close."""
    boxes: list[tuple[int, int, int]] = []
    stack: list[tuple[bool, int, int, int]] = []  # is it a box, its start, its content's, the end of what it belongs to
    last, closed, owner = -1, -1, 0
    is_part = False
    for found in _BRACE.finditer(region):
        at = found.start()
        if found[0][-1] == "{" and found[0] != "\\{":
            is_box = len(found[0]) > 1
            last = at if is_box else last
            # The second group of `\frac{1}{2}` belongs to the command before the first.
            follows = closed >= 0 and at - closed <= 8 and not region[closed + 1 : at].strip(" \t")
            stack.append((is_box, at, found.end(), owner if follows else at))
        elif found[0] == "}" and stack:
            is_box, command, start, owner = stack.pop()
            closed = at
            if is_box:
                while boxes and boxes[-1][0] > command:
                    boxes.pop()
                boxes.append((command, start, at))
                is_part = _is_held(region, owner)
            elif boxes and boxes[-1][0] > command:
                is_part = is_part or _is_held(region, owner)
    if any(is_box and command == last for is_box, command, _, _ in stack):
        return None
    found_last = [Box(*box) for box in boxes[-2:]]
    return [*found_last[:-1], Box(*boxes[-1], is_part)] if found_last else []


def _is_held(region: str, owner: int) -> bool:
    return _HOLDER.search(region[max(0, owner - 32) : owner]) is not None


def _any(*alternatives: str) -> str:
    return f"(?:{'|'.join(alternatives)})"


_COMMAND = r"(?:\\{4}|\\{1,2})"
"""Also escaped once or twice more, as in JSON; three backslashes are a line end and a command."""
_SPACE = r"\\{1,2}[,;:!]|\\[ >]"
_CLOSER = r"[{})~]|\\right\s?[)\]}.|]"
_TIGHTLY = _any(_SPACE, _CLOSER) + "{0,40}"
_IN_MATHS = _any(r"[\s*]", _SPACE, _CLOSER) + "{0,40}"
_IN_LINE = _any(r"[ \t*$]", r"\\{1,2}[)\]]", _SPACE, _CLOSER) + "{0,40}"
_ANYWHERE = _any(r"[\s$*_~}]", r"\\{1,2}[)\]]", _SPACE) + "{0,40}"
_LETTER = r"[A-Za-z](?![\w'’])"
_NO_LETTER = r"(?![A-Za-z])"

_DEGREES = re.compile(
    _IN_LINE
    + _any(r"\^\s{0,4}\\circ" + _NO_LETTER, r"\^\s{0,4}\{\s{0,4}\\circ\s{0,4}\}", r"\^?\s{0,4}°")
    + r"(?:\s{0,4}(?:[CF](?![A-Za-z])|\\(?:text|mathrm)\s?\{\s?[CF]\s?\}))?"
)
"""A unit, not a power: `^\\circ`, as inside a box."""
_LETTERS = re.compile(_TIGHTLY + r"(?!a\s{1,4}[a-z]{2}|(?:st|nd|rd|th)\b)([A-Za-z]{1,16})" + _NO_LETTER)
"""Text that touches the box, except as in `\\ a day` or `the 6th place`."""
_WORDS = re.compile(
    _ANYWHERE
    + r"(?:\\(?:text|mathrm|mbox)\s?\{\s{0,4})?"
    + _any(
        r"\^",
        r"(?:to|vs\.?|plus|minus|times)\s{1,4}[$\\]{0,2}\d",
        r"(?:or|and\s{1,4}a\s{1,4}half|squared|cubed|factorial)\b",
        r"(?:k|bn|mil|mln|(?-i:M(?!&))|hundreds?|thousands?|[a-z]{1,6}illions?|dozen|lakhs?|crores?)\b",
        r"(?:halves|thirds|tenths?|hundredths?|thousandths?)\b",
        _COMMAND + r"(?:times|cdot|pm)\b",
    ),
    re.ASCII | re.IGNORECASE,
)
"""Also on the next line."""
_PRODUCT = re.compile(
    _any(_IN_MATHS, _IN_LINE)
    + r"\.?"
    + _any(
        _COMMAND
        + _any(
            "sqrt|[dtc]?frac|[dt]?binom|choose|over|ast|div|mp|bmod|pmod|mod|infty|prime|overline|bar|dot",
            "alpha|beta|gamma|delta|lambda|sigma|omega|rho|tau|psi|(?:var)?(?:pi|phi|theta|epsilon)",
            "sin|cos|tan|ln|log|exp|sum|int|prod|vee|lor",
            "[gl]eq?q?|[gl]eqslant|neq?|[gl]t|gg|ll",
        )
        + _NO_LETTER,
        "[√π∞×÷±≥≤≠≪≫½¼¾‰²³¹⁰-₉⅐-⅞万萬亿億]",
        r"\^|·\s?\d",
    )
)
"""Within the same mathematics, or in mathematics that follows on the same line."""
_NEXT = re.compile(
    _any(
        r"(?:[-–/:.,*+]|\*\*)?\d",
        rf"(?:\{{,\}}|,?(?:{_SPACE}))\d",  # thousands
        r"[ \t]{1,4}(?:\d{1,9}\s?/\s?\d|000)",  # a mixed number, thousands
        r"[ \t]{1,4}(?:[xyz](?![\w'’.)])|[A-Za-z]\s?\^)",
        r"[ \t]{1,4}\d{1,2}\s?(?:['’^]|\\prime)",  # minutes of a degree
        r"_[A-Za-z\d{]",
        r"![ \t]{0,4}(?:\$|\\[)\]]|[=/^+])",  # a factorial; a sentence may end in `!` too
        r"[ \t]{1,4}[<>]=?[ \t]{1,4}" + _LETTER + r"|[<>]=?[xyz](?![\w>])",  # but `because 5 < 6`
        _any(r"[ \t]{0,4}[-–+/][ \t]{0,4}", r"\*", r"[ \t]{1,4}\*[ \t]{1,4}")
        + _any(r"\d", _COMMAND + "(?:[dt]?frac|sqrt|pi)", r"(?![aI])" + _LETTER),
        _TIGHTLY + _any(r"\(\s?\d", r"\([a-z]\s?[-+*/^)]", _COMMAND + r"left\s?\("),
        r"[ \t]{0,4}\\(?:text|mathrm|mathit|mathbf)\s?\{\s?(?![mghslL])[A-Za-z]\s?\}",  # but symbols of units
    ),
    re.ASCII,
)

_OPENERS = _any(r"[\s$*_{(~]", r"\\{1,2}[(\[,;:!$]", r"\\[ >]", r"\\left\s?[(\[.|]") + "{0,16}"
_TIGHT_OPENERS = r"(?:[${(]|\*\*|\\{1,2}[(,;:!$]){0,8}"
_BEFORE = re.compile(
    _any(
        "[-−]" + _TIGHT_OPENERS,
        r"(?:(?:[=(]|\\[(\[])[ \t]{0,4}|(?<![\w)}])\$)[-−]" + _OPENERS,  # elsewhere `- ` begins a point of a list
        r"\d(?:[{(]|\\[,;:!]){0,4}",
        r"\d(?:\*|\s\*\s)",
        r"(?<![A-Za-z\\'’])[A-Za-z][{(]?",
        r"(?:\\pi|π)(?:[ \t{(]|\\[,;:!]){0,8}",
        "(?<!/)/" + _TIGHT_OPENERS,
        r"(?:[\d)}]|(?<![A-Za-z])[A-Za-z])[ \t]{0,4}/" + _OPENERS,
        r"\b(?:or|not|negative|minus|than)[ \t$*_{}(]{0,8}",
        r"\\(?:[gl]eq?q?|[gl]eqslant|[gl]t|gg|ll|neq?|not\s?=)" + _OPENERS,
        r"\\(?:times|cdot|div|ast|pm|mp|sqrt|log(?:_\w)?|ln|exp|sin|cos|tan)" + _OPENERS,
        "(?:[≥≤≠<≪≫＜＞×÷±√]|[<>!/]=)" + _OPENERS,
    )
    + r"\Z",
    re.ASCII,
)
"""A sign, a factor, a divisor, a negation, a relation or an operator."""
_GREATER = re.compile(rf">{_OPENERS}\Z", re.ASCII)
_NOT_GREATER = re.compile(
    _any(
        r"(?:\A|\n)[ \t]*(?:(?:[>*+#-]|\d{1,2}[.)])[ \t]*)*",
        r"[-=~–—:\\]",
        r"<<[^<>\n]*>",
        r"<[/!|]?[A-Za-z][\w|:/-]*(?:\s+[\w:-]+=(?:\"[^\"<>\n]*\"|'[^'<>\n]*'|[^\s\"'<>]+))*\s*/?",
    )
    + r"\Z"
)
"""Text before a `>` that is not a relation: a quotation, an arrow, GSM8K's `<<2+3=5>>`, an HTML tag."""


def is_another(region: str, box: Box) -> bool:
    """Whether the text around a box changes the answer in it."""
    before = region[max(0, box.command - SEEN_BEFORE) : box.command]
    if box.is_part or _BEFORE.search(before) or _is_less(before):
        return True
    end = box.end + 1
    degrees = _DEGREES.match(region, end)
    end = degrees.end() if degrees else end
    letters = _LETTERS.match(region, end)
    if letters is not None and is_factor(letters[1]):
        return True
    return any(pattern.match(region, end) is not None for pattern in (_NEXT, _WORDS, _PRODUCT))


def _is_less(before: str) -> bool:
    """Whether the text says that something is greater than the box."""
    greater = _GREATER.search(before)
    return greater is not None and _NOT_GREATER.search(before[: greater.start()]) is None
