"""How hard a problem is for a policy: the semantic entropy of its answers; and the order and stages that follow. (pure)

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
"""Of clustering; entropies of other versions are stale."""
THIN_ONE_IN = 20
Saturated = Literal["thin", "keep", "drop"]


class Sample(Struct, frozen=True):
    """One answer to a problem. `answer`: None where there is none, or the completion was cut."""

    answer: str | None
    is_correct: bool
    tokens: int


class Difficulty(Struct, frozen=True):
    """Of one problem. `clusters`: answers that differ, each with its count, in the order of their first sample."""

    problem: int
    entropy: float
    accuracy: float
    bad: int
    """Samples without an answer that can be read."""
    mean_tokens: float
    samples: int
    clusters: tuple[tuple[str, int], ...]


class Measured(Struct, frozen=True):
    """Everything that a problem's difficulty depends on. Where one value differs, what was measured is stale."""

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
    """Equal as exact numbers; what is none is the same as nothing, itself included."""
    one, other = read_number(first), read_number(second)
    return one is not None and one == other


def difficulty(problem: int, samples: Sequence[Sample], same: Callable[[str, str], bool] = same_answer) -> Difficulty:
    """Of one problem, from its samples in the order that they were drawn. Raises ValueError where there are none.

    A sample joins the first cluster whose first member is the same. One without an answer, or with one that cannot be
    read and so is not even the same as itself, is alone and counted as bad.
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
    """Entropy in nats of how samples fall into clusters; 0 to ln(samples), independent of the clusters' order."""
    total = sum(counts)
    return abs(math.fsum(-count / total * math.log(count / total) for count in counts))  # never -0.0


def stages(difficulties: Sequence[Difficulty], count: int, saturated: Saturated = "thin") -> list[list[int]]:
    """Problems by number, in `count` parts of equal size from easy to hard, whatever order they come in.

    By entropy, then the more often solved, the shorter; what mostly gives no answer goes after all that. Problems whose
    samples agree on a wrong answer look easy and are not: they are in the last part. Of those that are always solved,
    one in twenty stays, by hash. Raises ValueError where a part would be empty.
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
