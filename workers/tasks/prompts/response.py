"""Completions in think-and-answer form: are the tags right, what is the answer, what do its fences hold. (pure)

The prompt ends with `<think>`, so a completion starts inside it. It ends with the first `</answer>`; the rest is
ignored. Text is never split at words of the prompt, because a thought may contain them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

OPEN = "<think>"
END = "</answer>"

_WELL_FORMED = re.compile(r"<think>.*?</think>\s*<answer>(.*?)</answer>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_KNOWN_TAG = r"python3?|py|input|output|message"
_FENCE = re.compile(rf"```(?:({_KNOWN_TAG})\b[ \t]*\n?|([^\n`]*)\n)(.*?)```", re.DOTALL | re.IGNORECASE)
PROGRAM_TAGS = frozenset({"", "python", "python3", "py"})


@dataclass(frozen=True)
class Response:
    """A parsed completion. answer: for a malformed text the first closed answer element, else empty."""

    text: str
    """The text up to the end of the answer."""
    answer: str
    is_well_formed: bool
    """The thought is closed, and only space separates it from a closed answer."""


@dataclass(frozen=True)
class Fence:
    tag: str
    """In lower case."""
    text: str


def cut(text: str) -> str:
    """The text up to and including its first `</answer>`."""
    before, mark, _ = text.partition(END)
    return before + mark


def read(completion: str) -> Response:
    text = cut(completion)
    if not text.endswith(END):  # else each opening would be searched for an end
        return Response(text, "", False)
    if found := _WELL_FORMED.match(OPEN + text):
        return Response(text, found.group(1).strip(), True)
    loose = _ANSWER.search(text)
    return Response(text, loose.group(1).strip() if loose else "", False)


def thought_of(completion: str) -> str:
    """The thought before the answer."""
    return completion.partition("</think>")[0].strip()


def fences(text: str) -> list[Fence]:
    """All closed fences, in order. Spaces around a single line of arguments are stripped; code keeps its
    indentation."""
    return [
        Fence((known or other).strip().lower(), inside.strip("\r\n").rstrip())
        for known, other, inside in _FENCE.findall(text)
    ]


def tagged(found: Sequence[Fence], tag: str) -> list[str]:
    return [fence.text.strip() for fence in found if fence.tag == tag]


def programs(found: Sequence[Fence]) -> list[str]:
    """Fences tagged as Python, or untagged."""
    return [fence.text for fence in found if fence.tag in PROGRAM_TAGS]


def last_program(completion: str) -> str | None:
    """The program in the last closed fence of Python, or of no language; None if there is none.

    Thoughts do not count: the search starts after the last `</think>`, and thoughts that do not end hold no answer.
    """
    _, closed, region = completion.rpartition("</think>")
    if not closed and OPEN in completion:
        return None
    written = programs(fences(region))
    return written[-1] if written and written[-1].strip() else None


def after_comment(text: str, name: str) -> str | None:
    """The text after a line `# Name:` up to a blank line or a fence. Base models that use no fences write this."""
    found = re.search(rf"^#\s*{name}:[ \t]*(.*?)(?=\n\s*\n|```|\Z)", text, re.DOTALL | re.IGNORECASE | re.MULTILINE)
    return found.group(1).strip() or None if found else None


def element(text: str, name: str) -> str | None:
    """The content of the last `<name>` element."""
    text = _up_to_last(rf"</{name}>", text)
    found = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL | re.IGNORECASE)
    return found[-1].strip() if found else None


def _up_to_last(end: str, text: str) -> str:
    """The text up to the last match of `end`: behind it, each opening would be searched for one to the end."""
    ends = [found.end() for found in re.finditer(end, text, re.IGNORECASE)]
    return text[: ends[-1]] if ends else ""


def guessed(text: str, name: str) -> str | None:
    """An answer outside any fence, found by other common notations, the most reliable first."""
    calls = _up_to_last(r"\)[ \t]*(?:\n|\Z)", text)
    call = re.findall(rf"\b{name}\((.*?)\)[ \t]*(?:\n|\Z)", calls, re.DOTALL | re.IGNORECASE)
    answers = re.findall(rf"\bthe {name} is:?[ \t]*(.+?)\.?[ \t]*(?:\n|\Z)", text, re.IGNORECASE)
    ways = (
        after_comment(text, name),
        call[-1].strip() if call else None,
        element(text, name),
        answers[-1].strip() if answers else None,
    )
    return next((way for way in ways if way), None)
