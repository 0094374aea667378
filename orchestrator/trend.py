"""Trends of held-out accuracy over cycles that answered the same problems, with standard errors. (pure)

The score is the mean of greedy and sampled accuracy, over suites, then tasks, then problems. Cycles are compared
problem by problem, as in a paired test, and the standard error comes from the spread of the problems' own contrasts.
The difficulty of a problem cancels out, and a problem that keeps its answer for several cycles counts once, not once
per cycle. The spread only needs the number of problems that two cycles both solved: the popcount of an AND.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from state.history import AnswerBits, CycleFacts

Z95 = 1.959964
"""Normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True)
class Stratum:
    """One task of one suite. rows: per cycle, the bits of greedy answers and above them those of sampled ones."""

    share: float
    """Weight of this stratum's mean in the score."""
    num_problems: int
    halves: int
    """2, or 1 without sampled answers."""
    rows: tuple[int, ...]

    @cached_property
    def _swapped(self) -> tuple[int, ...]:
        """Rows with greedy and sampled bits swapped, to pair greedy answers of one cycle with sampled of another."""
        n, low = self.num_problems, (1 << self.num_problems) - 1
        return tuple((row >> n) | ((row & low) << n) for row in self.rows)

    def _together(self, one: int, other: int) -> int:
        """Sum over problems of (right answers in one cycle) * (right answers in the other)."""
        count = (self.rows[one] & self.rows[other]).bit_count()
        return count + (self.rows[one] & self._swapped[other]).bit_count() if self.halves == 2 else count

    def score(self, place: int) -> float:
        """Score of one cycle."""
        return self.rows[place].bit_count() / (self.halves * self.num_problems)

    def mean(self, weights: Sequence[float]) -> float:
        right = sum(weight * row.bit_count() for weight, row in zip(weights, self.rows, strict=True) if weight)
        return right / (self.halves * self.num_problems)

    def variance(self, weights: Sequence[float]) -> float:
        """Squared standard error of `mean`, as if one more problem had changed permanently at the worst moment.

        Without that, a handful of problems that happen not to change would give an error of zero.
        """
        used = [place for place, weight in enumerate(weights) if weight]
        squares = 0.0
        for n, one in enumerate(used):
            squares += weights[one] ** 2 * self._together(one, one)
            squares += 2 * weights[one] * sum(weights[other] * self._together(one, other) for other in used[:n])
        squares /= self.halves**2
        centred = max(0.0, squares - self.num_problems * self.mean(weights) ** 2)
        late = worst = 0.0
        for weight in reversed(weights):
            late += weight
            worst = max(worst, abs(late))
        return (centred + worst**2) / self.num_problems**2


@dataclass(frozen=True)
class Panel:
    """Validated cycles side by side, oldest first."""

    at: tuple[int, ...]
    """Cycle numbers."""
    strata: tuple[Stratum, ...]
    """Empty if a cycle lacks answer bits; scores are then compared as if each cycle had drawn its own problems."""
    scores: tuple[float, ...]
    noise: tuple[float, ...]
    """Variance of each score if its problems were drawn independently."""
    num_problems: int

    @property
    def is_paired(self) -> bool:
        return bool(self.strata)

    def contrast(self, weights: Sequence[float]) -> tuple[float, float]:
        """(sum of weight * score, its standard error). weights: one per cycle, summing to 0."""
        if not self.strata:
            value = sum(weight * score for weight, score in zip(weights, self.scores, strict=True))
            return value, math.sqrt(sum(weight**2 * one for weight, one in zip(weights, self.noise, strict=True)))
        value = sum(one.share * one.mean(weights) for one in self.strata)
        return value, math.sqrt(sum(one.share**2 * one.variance(weights) for one in self.strata))


def panel_of(cycles: Sequence[CycleFacts]) -> Panel:
    """Compare validated cycles on the problems that all of them answered."""
    strata = tuple(_strata(cycles))
    if strata:
        scores = [sum(one.share * one.score(place) for one in strata) for place in range(len(cycles))]
        noise, num_problems = [0.0] * len(cycles), sum(one.num_problems for one in strata)
    else:
        counts = [_score(cycle) for cycle in cycles]
        scores = [score for score, _ in counts]
        # Greedy and sampled count as one answer, because their correlation is unknown. Agresti's two extra answers
        # keep the variance of a score of 0 or 1 above 0.
        shares = [(score * n + 1) / (n + 2) for score, n in counts]
        noise = [share * (1 - share) / (n + 2) for share, (_, n) in zip(shares, counts, strict=True)]
        num_problems = min(n for _, n in counts)
    return Panel(tuple(cycle.cycle for cycle in cycles), strata, tuple(scores), tuple(noise), num_problems)


def _strata(cycles: Sequence[CycleFacts]) -> list[Stratum]:
    """The strata common to all cycles; empty if a cycle lacks answer bits."""
    bits = [
        {(one.suite, task): found for one in cycle.validations for task, found in one.answers.items()}
        for cycle in cycles
    ]
    common = sorted(set.intersection(*(set(one) for one in bits)))
    suites = {suite for suite, _ in common}
    found = []
    for key in common:
        answers = _on_common_problems([one[key] for one in bits])
        n = len(answers[0].problems)
        if n == 0:
            continue
        share = 1 / (len(suites) * sum(suite == key[0] for suite, _ in common))
        is_sampled = all(one.sampled is not None for one in answers)
        rows = tuple(one.greedy | ((one.sampled or 0) << n) if is_sampled else one.greedy for one in answers)
        found.append(Stratum(share, n, 2 if is_sampled else 1, rows))
    return found if len(found) == len(common) else []


def _on_common_problems(answers: Sequence[AnswerBits]) -> list[AnswerBits]:
    """Restrict answers to the problems common to all cycles, in the same order."""
    first = answers[0].problems
    if all(one.problems is first or one.problems == first for one in answers):
        return list(answers)
    distinct = dict.fromkeys(one.problems for one in answers)
    shared = frozenset(first).intersection(*distinct)
    names = tuple(name for name in first if name in shared)
    places = {problems: _places(problems, names) for problems in distinct}
    return [
        AnswerBits(
            names,
            _picked(one.greedy, places[one.problems]),
            None if one.sampled is None else _picked(one.sampled, places[one.problems]),
        )
        for one in answers
    ]


def _places(problems: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    place_of = {name: place for place, name in enumerate(problems)}
    return [place_of[name] for name in names]


def _picked(bits: int, places: Sequence[int]) -> int:
    """The bits at these places; the first becomes the lowest bit."""
    if not places:
        return 0
    text = f"{bits:0{max(places) + 1}b}"[::-1]
    return int("".join([text[place] for place in reversed(places)]), 2)


def _score(cycle: CycleFacts) -> tuple[float, int]:
    """(mean over suites of greedy and sampled accuracy, number of problems), from the metrics."""
    means = [validation.metrics["mean"] for validation in cycle.validations]
    scores = [(float(mean["accuracy"]) + float(mean.get("sampled_accuracy", mean["accuracy"]))) / 2 for mean in means]
    return sum(scores) / len(scores), int(sum(mean["n"] for mean in means))


@dataclass(frozen=True)
class Trend:
    """A straight line through the scores of some cycles, in accuracy (a share) per cycle."""

    slope: float
    error: float
    """Standard error of the slope."""
    first: int
    last: int
    num_cycles: int
    num_problems: int
    is_paired: bool

    def is_rise(self, z: float) -> bool:
        return self.slope > z * self.error

    def within_95(self) -> str:
        """The change from the first cycle to the last, as text."""
        span = 100 * (self.last - self.first)
        low, high = (span * (self.slope + side * Z95 * self.error) for side in (-1, 1))
        paired = "the same " if self.is_paired else "not compared one by one, "
        return (
            f"{span * self.slope:+.1f} points (95 %: {low:+.1f} to {high:+.1f}) over {self.num_cycles} validated cycles"
            f" ({paired}{self.num_problems} problems)"
        )


def trend_of(cycles: Sequence[CycleFacts]) -> Trend:
    """Least squares over cycle numbers. cycles: at least three validated ones, oldest first.

    The error is the larger of two: of the paired contrast, which sees how answers stick to problems, and of the
    residuals, which see a wobble that all problems of a cycle share.
    """
    panel = panel_of(cycles)
    middle = sum(panel.at) / len(panel.at)
    spread = sum((at - middle) ** 2 for at in panel.at)
    slope, error = panel.contrast([(at - middle) / spread for at in panel.at])
    mean = sum(panel.scores) / len(panel.scores)
    residuals = [score - mean - slope * (at - middle) for at, score in zip(panel.at, panel.scores, strict=True)]
    scatter = math.sqrt(sum(one**2 for one in residuals) / (len(residuals) - 2) / spread)
    return Trend(
        slope, max(error, scatter), panel.at[0], panel.at[-1], len(panel.at), panel.num_problems, panel.is_paired
    )


@dataclass(frozen=True)
class Fall:
    """The drop from the best earlier cycles to the newest ones; `change` is a negative share."""

    change: float
    error: float
    before: float
    after: float
    """Mean score of each group."""
    highest: float
    """Highest score of the newest group."""
    best: tuple[int, int]
    newest: tuple[int, int]
    """First and last cycle of each group."""


def fall_of(cycles: Sequence[CycleFacts], length: int) -> Fall | None:
    """Compare the last `length` validated cycles with the best `length` consecutive ones before them.

    None if there are too few cycles, or no fall.
    """
    if len(cycles) < 2 * length:
        return None
    panel = panel_of(cycles)
    ends = range(length, len(cycles) - length + 1)
    sums = [sum(panel.scores[end - length : end]) for end in ends]
    end = ends[max(range(len(sums)), key=lambda n: (sums[n], n))]
    weights = [0.0] * len(cycles)
    weights[end - length : end] = [-1 / length] * length
    weights[-length:] = [1 / length] * length
    if sum(panel.scores[-length:]) >= sum(panel.scores[end - length : end]):
        return None
    change, error = panel.contrast(weights)
    before, after = sum(panel.scores[end - length : end]) / length, sum(panel.scores[-length:]) / length
    return Fall(
        change,
        error,
        before,
        after,
        max(panel.scores[-length:]),
        (panel.at[end - length], panel.at[end - 1]),
        (panel.at[-length], panel.at[-1]),
    )
