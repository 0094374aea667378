"""Completions of the think-and-answer form: whether the tags are right, the answer, what its fences hold. (pure)

The prompt ends with `<think>`, so a completion begins inside it. It ends with the first `</answer>`: what comes after
was not asked for. Text is never split on the words of the prompt: a thought may hold them.
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
    """What a completion says. answer: of a malformed text the first closed answer element, else empty."""

    text: str
    """All of it up to the end of the answer."""
    answer: str
    is_well_formed: bool
    """The thought is closed, and nothing but space stands between it and a closed answer."""


@dataclass(frozen=True)
class Fence:
    tag: str
    """In lower case."""
    text: str


def cut(text: str) -> str:
    """The text up to and with its first `</answer>`."""
    before, mark, _ = text.partition(END)
    return before + mark


def read(completion: str) -> Response:
    text = cut(completion)
    if found := _WELL_FORMED.match(OPEN + text):
        return Response(text, found.group(1).strip(), True)
    loose = _ANSWER.search(text)
    return Response(text, loose.group(1).strip() if loose else "", False)


def thought_of(completion: str) -> str:
    """What was thought before the answer."""
    return completion.partition("</think>")[0].strip()


def fences(text: str) -> list[Fence]:
    """All closed fences, in order. Spaces around one line of arguments do not count; those before a line of code do."""
    return [
        Fence((known or other).strip().lower(), inside.strip("\r\n").rstrip())
        for known, other, inside in _FENCE.findall(text)
    ]


def tagged(found: Sequence[Fence], tag: str) -> list[str]:
    return [fence.text.strip() for fence in found if fence.tag == tag]


def programs(found: Sequence[Fence]) -> list[str]:
    """Fences that are tagged as Python, or not at all."""
    return [fence.text for fence in found if fence.tag in PROGRAM_TAGS]


def after_comment(text: str, name: str) -> str | None:
    """What follows a line `# Name:` up to a blank line or a fence: how base models without fences write it."""
    found = re.search(rf"^#\s*{name}:[ \t]*(.*?)(?=\n\s*\n|```|\Z)", text, re.DOTALL | re.IGNORECASE | re.MULTILINE)
    return found.group(1).strip() or None if found else None


def element(text: str, name: str) -> str | None:
    """The inside of the last `<name>` element."""
    found = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL | re.IGNORECASE)
    return found[-1].strip() if found else None


def guessed(text: str, name: str) -> str | None:
    """An answer that stands in no fence, by the ways that it is written elsewhere, most certain first."""
    call = re.findall(rf"\b{name}\((.*?)\)[ \t]*(?:\n|\Z)", text, re.DOTALL | re.IGNORECASE)
    said = re.findall(rf"\bthe {name} is:?[ \t]*(.+?)\.?[ \t]*(?:\n|\Z)", text, re.IGNORECASE)
    ways = (
        after_comment(text, name),
        call[-1].strip() if call else None,
        element(text, name),
        said[-1].strip() if said else None,
    )
    return next((way for way in ways if way), None)
