"""Texts as they are compared: which differences do not count. (pure)"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Normal:
    """Blanks at both ends never count, nor how many stand in a row, nor how Unicode composes a character."""

    ignore_case: bool = False
    """Whether `Paris` and `paris` are the same."""
    ignore_punctuation: bool = False
    """Whether punctuation marks are left out."""
    ignore_articles: bool = False
    """Whether `a`, `an` and `the` are left out."""

    def normal(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text)
        if self.ignore_case:
            text = text.casefold()
        if self.ignore_punctuation:
            text = "".join(one for one in text if not unicodedata.category(one).startswith("P"))
        if self.ignore_articles:
            text = _ARTICLES.sub(" ", text)
        return " ".join(text.split())
