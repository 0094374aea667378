"""Says how near the stagnation rule is to firing, by its own numbers. (pure)

A share of 1 means that the rule fires at the end of this cycle, a share below 1 that it does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import stagnation
from orchestrator.display.wording import percent
from orchestrator.stagnation import (
    FALL_CYCLES,
    FALL_Z,
    LONGEST,
    MIN_CYCLES_OF_TREND,
    RISE_Z,
    data_shares,
    least_fall,
    newest_fall,
    rise,
    since_reseed,
    window_of,
)
from orchestrator.trend import trend_of
from state.history import CycleFacts, History
from state.states import CycleState

if TYPE_CHECKING:
    from profiles.schema import Stagnation


@dataclass(frozen=True)
class Nearness:
    """How near one of the rules is. action: what it does when it fires."""

    rule: str
    share: float
    """0: not in sight. 1: it fires."""
    action: str
    text: str
    """The numbers behind the share."""

    def as_json(self) -> dict[str, object]:
        return {"rule": self.rule, "share": round(self.share, 4), "action": self.action, "text": self.text}

    @property
    def words(self) -> str:
        return f"{self.rule} {percent(self.share)}"


def nearest(history: History, rule: Stagnation) -> Nearness | None:
    """The rule that is nearest to firing, the plateau if none is near; None before the first trained cycle is done."""
    found = every(history, rule)
    return max(found, key=lambda one: one.share) if found else None


def every(history: History, rule: Stagnation) -> list[Nearness]:
    """All rules, at the end of the newest cycle that is complete."""
    done = {one.cycle: one for one in history.recent}
    current = history.current
    if current is not None and current.state in (CycleState.VALIDATED, CycleState.COMMITTED):
        done[current.cycle] = current
    if not done:
        return []
    last = done[max(done)]
    cycles = [one for one in since_reseed(history, last) if one.cycle in done]
    train = [one for one in cycles if one.phase == "train"]
    if not train:
        return []
    validated = [one for one in cycles if one.validations]
    found = [plateau(validated, rule, last.cycle), no_data(train, validated, rule), collapse(validated, rule)]
    return [_not_yet(one, len(train), rule) for one in found]


def _not_yet(found: Nearness, num_cycles: int, rule: Stagnation) -> Nearness:
    """No rule fires before `min_cycles`."""
    if num_cycles >= rule.min_cycles:
        return found
    share = min(found.share, num_cycles / rule.min_cycles)
    return Nearness(
        found.rule, share, found.action, f"judged from cycle {rule.min_cycles} on, {num_cycles} are done; {found.text}"
    )


def collapse(validated: list[CycleFacts], rule: Stagnation) -> Nearness:
    fall = newest_fall(validated, rule)
    if fall is None:
        text = f"the newest {FALL_CYCLES} validated cycles are not below earlier ones"
        return Nearness("collapse", 0.0, rule.on_collapse, text)
    lost, least = fall.before - fall.highest, least_fall(fall)
    errors = -fall.change / fall.error if fall.error else float("inf")
    share = max(0.0, min(0.99, lost / least if least else 1.0, errors / FALL_Z))
    if stagnation.collapse(validated, rule):
        share = 1.0
    return Nearness(
        "collapse",
        share,
        rule.on_collapse,
        f"{100 * lost:.1f} of {100 * least:.1f} points below the best, {errors:.1f} of {FALL_Z:g} standard errors",
    )


def no_data(train: list[CycleFacts], validated: list[CycleFacts], rule: Stagnation) -> Nearness:
    """Poor cycles in a row, of as many as it takes."""
    last = train[-rule.poor_cycles :]
    most, text = 0, "no cycle with too few new or learnable tasks"
    while last and not last[0].proposals:
        last = last[1:]
    if all(one.proposals for one in last):
        for floor, what, shares in data_shares(last, rule):
            poor = 0
            for share in reversed(shares):
                if share >= floor:
                    break
                poor += 1
            if poor > most:
                most = poor
                text = f"{what} under {floor:.0%} of proposals in {poor} of {rule.poor_cycles} cycles in a row"
    if most == rule.poor_cycles and rise(validated, rule):
        return Nearness("no data", (most - 1) / most, rule.on_no_data, f"{text}, but accuracy rises")
    return Nearness("no data", most / rule.poor_cycles, rule.on_no_data, text)


def plateau(validated: list[CycleFacts], rule: Stagnation, cycle: int) -> Nearness:
    """Validated cycles without a rise, of as many as it takes to be sure."""
    window = window_of(validated, rule, cycle)
    known = validated[-min(len(validated), LONGEST) :]
    trend = window.trend
    if trend is None and len(known) >= MIN_CYCLES_OF_TREND:
        trend = trend_of(known)
    if trend is not None and trend.is_rise(RISE_Z):
        return Nearness("plateau", 0.0, rule.on_plateau, f"it rises: {trend.within_95()}")
    if window.is_sure and trend is not None:
        return Nearness("plateau", 1.0, rule.on_plateau, f"no rise: {trend.within_95()}")
    said = f"; {trend.within_95()}" if trend is not None else ""
    text = f"{len(known)} of {window.length} validated cycles that a verdict takes{said}"
    if window.length > LONGEST:
        text += f"; more than {LONGEST} are never looked at: validate on more problems"
    return Nearness("plateau", min(len(known) / window.length, 0.99), rule.on_plateau, text)
