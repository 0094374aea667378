"""Judges whether a run still improves and still finds new tasks. (pure)

Uses only committed work. docs/operations.md explains the rule and its error rates.
collapse: the newest validated cycles are far below the best earlier ones.
no data: in each of the last `poor_cycles` cycles, the share of proposals that are new valid distinct tasks, or the
    share with a solve rate strictly between 0 and 1, was below its floor. Rising accuracy overrides this.
plateau: there is no rise over a window long enough that noise could not hide a rise of `min_progress`.
All rules start over after a reseed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from orchestrator.trend import Z95, Fall, Trend, fall_of, trend_of
from state.history import CycleFacts, History

if TYPE_CHECKING:
    from profiles.schema import Stagnation

RISE_Z = 1.5
"""A slope above this many standard errors counts as a rise. Noise reaches it with a chance of 1 in 15."""
FALSE_STOPS = 0.02
"""Chance that a run that always rises by `min_progress` is ever stopped as a plateau."""
LOOKS = 4
"""Effective number of independent tests per window, since neighbouring windows overlap (simulated)."""
LONGEST = 60
"""Cycles in the longest window; a History holds a few more."""
MIN_CYCLES_OF_TREND = 4
FALL_CYCLES = 3
"""Number of consecutive validated cycles in each of the two groups that the collapse test compares."""
FALL = 0.10
"""Loss of accuracy that counts as a collapse: this much, or half of the earlier accuracy if that is less."""
FALL_Z = 3.0


@dataclass(frozen=True)
class StagnationVerdict:
    """kind: "go", "collapse", "no_data", "plateau" or "exhausted". action: "go", "stop", "reseed" or "continue"."""

    kind: str
    action: str
    evidence: str = ""
    """Also set for "go" if a stop was considered but overruled."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.action}"


GO = StagnationVerdict("go", "go")


def verdict(history: History, rule: Stagnation) -> StagnationVerdict:
    """Judge the run at the end of its current cycle."""
    current = history.current
    if current is None:
        return GO
    if current.exhausted:
        return StagnationVerdict("exhausted", "stop", f"the tasks of [data] tasks were used up at step {history.step}")
    cycles = since_reseed(history, current)
    train = [cycle for cycle in cycles if cycle.phase == "train"]
    if len(train) < rule.min_cycles:
        return GO
    validated = [cycle for cycle in cycles if cycle.validations]
    is_new_score = bool(current.validations)
    if is_new_score and (evidence := collapse(validated, rule)):
        return StagnationVerdict("collapse", rule.on_collapse, evidence)
    if evidence := poor_in_data(train, rule):
        if risen := rise(validated, rule):
            return replace(GO, evidence=f"{evidence}; but accuracy rises, {risen.within_95()}")
        return StagnationVerdict("no_data", _action(rule.on_no_data, history, rule), evidence)
    if is_new_score:
        found = plateau(validated, rule, current.cycle)
        return replace(found, action=_action(rule.on_plateau, history, rule)) if found.kind == "plateau" else found
    return GO


def since_reseed(history: History, current: CycleFacts) -> list[CycleFacts]:
    """The known cycles since the last reseed, oldest first; `current` is the last one."""
    cycles = [cycle for cycle in (*history.recent, current) if cycle.reseed == current.reseed]
    return [cycle for n, cycle in enumerate(cycles) if not (cycle is current and n and cycles[n - 1] == current)]


def _action(wanted: str, history: History, rule: Stagnation) -> str:
    return "stop" if wanted == "reseed" and history.reseeds >= rule.max_reseeds else wanted


def poor_in_data(train: list[CycleFacts], rule: Stagnation) -> str:
    """Evidence that the last cycles found too few tasks, or an empty string."""
    last = train[-rule.poor_cycles :]
    if len(last) < rule.poor_cycles or any(not cycle.proposals for cycle in last):
        return ""
    for floor, what, shares in data_shares(last, rule):
        if all(share < floor for share in shares):
            seen = ", ".join(f"{share:.1%}" for share in shares)
            return f"{what} were under {floor:.0%} of proposals in {len(last)} cycles in a row ({seen})"
    return ""


def data_shares(cycles: list[CycleFacts], rule: Stagnation) -> list[tuple[float, str, list[float]]]:
    """(floor, what it counts, its share of the proposals in each cycle). Every cycle has proposals."""
    return [
        (rule.min_new_share, "new valid distinct tasks", [one.new_examples / one.proposals for one in cycles]),
        (rule.min_learnable_share, "learnable proposals", [one.learnable / one.proposals for one in cycles]),
    ]


def rise(validated: list[CycleFacts], rule: Stagnation) -> Trend | None:
    """The trend of up to `patience_cycles` last validated cycles, if it is a rise."""
    window = validated[-rule.patience_cycles :]
    if len(window) < MIN_CYCLES_OF_TREND:
        return None
    trend = trend_of(window)
    return trend if trend.is_rise(RISE_Z) else None


def collapse(validated: list[CycleFacts], rule: Stagnation) -> str:
    """Evidence that accuracy has fallen and stays down, or an empty string."""
    fall = newest_fall(validated, rule)
    if fall is None or fall.highest > fall.before - least_fall(fall) or fall.change > -FALL_Z * fall.error:
        return ""  # a single dip is not a collapse
    low, high = (100 * (fall.change + side * Z95 * fall.error) for side in (-1, 1))
    return (
        f"held-out accuracy fell by {-100 * fall.change:.1f} points (95 %: {-high:.1f} to {-low:.1f}): {fall.after:.3f}"
        f" in cycles {fall.newest[0]} to {fall.newest[1]}, {fall.before:.3f} in cycles {fall.best[0]} to {fall.best[1]}"
    )


def newest_fall(validated: list[CycleFacts], rule: Stagnation) -> Fall | None:
    return fall_of(validated[-rule.patience_cycles - FALL_CYCLES :], FALL_CYCLES)


def least_fall(fall: Fall) -> float:
    """Loss of accuracy that counts as a collapse."""
    return min(FALL, fall.before / 2)


@dataclass(frozen=True)
class Window:
    """The cycles over which a plateau is looked for. trend: None if there are too few for any window."""

    trend: Trend | None
    wanted: float
    """Standard error of the slope at which a rise of `min_progress` could not be missed."""
    length: int
    """Cycles that this takes: those of `trend` if its error is small enough, else as many as it seems to need."""

    @property
    def is_sure(self) -> bool:
        return self.trend is not None and self.trend.error <= self.wanted


def window_of(validated: list[CycleFacts], rule: Stagnation, cycle: int) -> Window:
    """`patience_cycles` cycles, or more if that is needed to detect a rise of `min_progress`."""
    length, trend = max(rule.patience_cycles, MIN_CYCLES_OF_TREND), None
    wanted = rule.min_progress / 10 / (RISE_Z + missed_z(cycle, rule))
    while length <= min(len(validated), LONGEST):
        trend = trend_of(validated[-length:])
        if trend.error <= wanted:
            break
        # The error of a slope is proportional to length ** -1.5.
        length = max(length + 1, math.ceil(length * (trend.error / wanted) ** (2 / 3)))
    return Window(trend, wanted, length)


def plateau(validated: list[CycleFacts], rule: Stagnation, cycle: int) -> StagnationVerdict:
    """A plateau, or GO with evidence if noise could hide a rise. cycle: the current one."""
    window, bound = window_of(validated, rule, cycle), missed_z(cycle, rule)
    trend = window.trend
    if trend is None or trend.is_rise(RISE_Z):
        return GO
    missed = f"a rise of {1000 * max(0.0, trend.slope + bound * trend.error):.1f} points in 10 cycles"
    if window.is_sure:
        return StagnationVerdict(
            "plateau", "", f"no trend: {trend.within_95()}; at most {missed} could have been missed"
        )
    if len(validated) < LONGEST:
        return GO
    return replace(
        GO, evidence=f"no trend, but {missed} could be missed: validate on more problems ({trend.within_95()})"
    )


def missed_z(cycle: int, rule: Stagnation) -> float:
    """How many standard errors above the slope progress may be missed, corrected for repeated testing.

    FALSE_STOPS is split among successive windows in shares of 1/2, 1/6, 1/12 ..., which sum to 1.
    """
    window = max(1, cycle // rule.patience_cycles)
    return NormalDist().inv_cdf(1 - FALSE_STOPS / (LOOKS * window * (window + 1)))
