"""A problem's difficulty for a policy: the semantic entropy of its answers. Also the order and stages from it. (pure)

Source: semantic entropy, Kuhn et al., arXiv 2302.09664, with equality of answers as the meaning.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
from msgspec import Struct

from workers.verifiers.answers import read_number

VERSION = 2
"""Version of the clustering; entropies of other versions are stale."""
THIN_ONE_IN = 20
Saturated = Literal["thin", "keep", "drop"]


class Sample(Struct, frozen=True):
    """One answer to a problem. `answer`: None if none was found, or the completion was truncated."""

    answer: str | None
    is_correct: bool
    tokens: int


class Difficulty(Struct, frozen=True):
    """Difficulty of one problem. `clusters`: each distinct answer with its count, in the order of first samples."""

    problem: int
    entropy: float
    accuracy: float
    bad: int
    """Samples without a readable answer."""
    mean_tokens: float
    samples: int
    clusters: tuple[tuple[str, int], ...]


class Measured(Struct, frozen=True):
    """Everything that a problem's difficulty depends on. If any value differs, measured difficulties are stale."""

    data: str
    """Digest of questions and answers, in order."""
    model: str
    adapter: str
    quantization: str
    tokenizer: str
    chat_template: str
    prompt: str
    """Version of the prompt's wording."""
    samples: int
    temperature: float
    top_p: float
    max_completion_tokens: int
    seed: int
    verifier: str
    clustering: int = VERSION

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


def same_answer(first: str, second: str) -> bool:
    """Equal as exact numbers. A text that is not a number equals nothing, not even itself."""
    one, other = read_number(first), read_number(second)
    return one is not None and one == other


def difficulty(problem: int, samples: Sequence[Sample], same: Callable[[str, str], bool] = same_answer) -> Difficulty:
    """Difficulty of one problem from its samples, in the order in which they were drawn. Raises ValueError without
    samples.

    A sample joins the first cluster whose first member is the same answer. One without a readable answer forms its own
    cluster and counts as bad.
    """
    if not samples:
        raise ValueError(f"problem {problem} has no samples")
    names: list[str] = []
    counts: list[int] = []
    readable: list[int] = []
    bad = 0
    for sample in samples:
        answer, place = sample.answer, None
        is_bad = answer is None or not same(answer, answer)
        if answer is not None and not is_bad:
            place = next((at for at in readable if same(names[at], answer)), None)
        if place is not None:
            counts[place] += 1
            continue
        bad += is_bad
        if not is_bad:
            readable.append(len(names))
        names.append(answer or "")
        counts.append(1)
    return Difficulty(
        problem=problem,
        entropy=semantic_entropy(counts),
        accuracy=sum(sample.is_correct for sample in samples) / len(samples),
        bad=bad,
        mean_tokens=math.fsum(sample.tokens for sample in samples) / len(samples),
        samples=len(samples),
        clusters=tuple(zip(names, counts, strict=True)),
    )


def semantic_entropy(counts: Sequence[int]) -> float:
    """Entropy in nats of the cluster sizes; 0 to ln(samples), independent of the clusters' order."""
    total = sum(counts)
    return abs(math.fsum(-count / total * math.log(count / total) for count in counts))  # never -0.0


def stages(difficulties: Sequence[Difficulty], count: int, saturated: Saturated = "thin") -> list[list[int]]:
    """Problem numbers in `count` parts of equal size from easy to hard, independent of the input order.

    Sorted by entropy, then solve rate (high first), then length. Problems that mostly get no answer come after all
    these. Problems whose samples agree on a wrong answer look easy but are not: they go into the last part. Of those
    that are always solved, one in twenty stays, by hash. Raises ValueError if a part would be empty.
    """
    left = [one for one in difficulties if not _is_saturated(one) or _stays(one.problem, saturated)]
    misled = sorted((one for one in left if _is_misled(one)), key=_key)
    ordered = sorted((one for one in left if not _is_misled(one)), key=_key)
    cuts = [len(ordered) * part // count for part in range(count + 1)]
    parts = [[one.problem for one in ordered[low:high]] for low, high in pairwise(cuts)]
    parts[-1] += [one.problem for one in misled]
    if not all(parts):
        raise ValueError(f"{len(left)} problems do not fill {count} stages")
    return parts


def _key(one: Difficulty) -> tuple[bool, float, float, float, int]:
    return one.bad * 2 > one.samples, one.entropy, -one.accuracy, one.mean_tokens, one.problem


def _is_saturated(one: Difficulty) -> bool:
    return one.accuracy == 1 and one.entropy == 0


def _is_misled(one: Difficulty) -> bool:
    return one.accuracy == 0 and one.entropy == 0


def _stays(problem: int, saturated: Saturated) -> bool:
    if saturated == "thin":
        return int(hashlib.sha256(str(problem).encode()).hexdigest(), 16) % THIN_ONE_IN == 0
    return saturated == "keep"
