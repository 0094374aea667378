"""The part that rewards tags: each exactly once, in order, with something between its marks. (pure)

Tags are found as text, not by a parser: what stands between them is prose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from workers.rewards.reward import Case

_TAG = re.compile(r"[A-Za-z][\w.-]{0,63}")


@dataclass(frozen=True)
class Xml:
    tags: tuple[str, ...] = ("think", "answer")
    """Names of the required tags, in their order."""
    is_open: bool = False
    """Whether the prompt ends with the opening mark of the first tag, so that the completion begins inside it."""
    alone: bool = False
    """Whether other text than blanks outside the tags earns no more than broken tags do."""
    partial: bool = False
    """Whether each mark that stands exactly once earns its share of a half; the other half is for all of them right."""
    name: ClassVar[str] = "xml"

    def __post_init__(self) -> None:
        if not self.tags:
            raise ValueError("`tags` must name at least one tag")
        for tag in self.tags:
            if _TAG.fullmatch(tag) is None:
                raise ValueError(f"`tags` has {tag!r}, which is no name of a tag: it is written without its brackets")
        if len(set(self.tags)) < len(self.tags):
            raise ValueError("`tags` names a tag twice, and each may stand only once")

    def __call__(self, case: Case[object, object]) -> float:
        text = f"<{self.tags[0]}>{case.text}" if self.is_open else case.text
        marks = [mark for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")]
        once = [mark for mark in marks if text.count(mark) == 1]
        if len(once) == len(marks) and self._is_right(text, marks):
            return 1.0
        earned = once[1:] if self.is_open and once[:1] == marks[:1] else once
        return 0.5 * len(earned) / (len(marks) - self.is_open) if self.partial else 0.0

    def _is_right(self, text: str, marks: list[str]) -> bool:
        """Whether marks that stand once each are in order, with text between those of a tag."""
        places = [text.index(mark) for mark in marks]
        ends = [place + len(mark) for place, mark in zip(places, marks, strict=True)]
        if any(place < end for place, end in zip(places[1:], ends, strict=False)):
            return False
        inside = [text[ends[n] : places[n + 1]] for n in range(0, len(marks), 2)]
        edges = [0, *ends[1::2]]
        outside = [text[edge:place] for edge, place in zip(edges, [*places[0::2], len(text)], strict=True)]
        return all(map(str.strip, inside)) and not (self.alone and any(map(str.strip, outside)))
