"""A reward function as people write it for TRL, which the variant `own` of `grpo_learning` trains on."""

from __future__ import annotations

import re
from typing import Any


def accuracy(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """1 where the last number of a completion is the right one, else 0."""
    last = [re.findall(r"-?\d+", text)[-1:] for text in completions]
    return [float(found == [right]) for found, right in zip(last, answer, strict=True)]
