"""verdict(history, rule): does the run still improve, and does it still find new tasks? (pure)

Two facts, both read from committed work only:
plateau: in the last `patience_cycles` validated cycles, neither greedy nor sampled held-out accuracy rose above the
    best before them by more than one standard error of a score of that size. Sampled accuracy counts because greedy
    is a step function: it can stay flat for a hundred steps while the policy moves.
no data: in each of the last `poor_cycles` cycles, new valid distinct tasks per proposal, or proposals with a solve
    rate strictly between 0 and 1, were under their floors.
After a reseed both start afresh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiles.schema import Stagnation
from state.history import CycleFacts, History


@dataclass(frozen=True)
class Verdict:
    """kind: "go", "plateau", "no_data" or "exhausted". action: "go", "stop", "reseed" or "continue"."""

    kind: str
    action: str
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.action}"


GO = Verdict("go", "go")


def verdict(history: History, rule: Stagnation) -> Verdict:
    """Judge the run at the end of its current cycle, whose work is done."""
    current = history.current
    if current is None:
        return GO
    if current.exhausted:
        return Verdict("exhausted", "stop", f"the tasks of [data] tasks were used up at step {history.step}")
    cycles = [cycle for cycle in (*history.recent, current) if cycle.reseed == current.reseed]
    cycles = [cycle for n, cycle in enumerate(cycles) if not (cycle is current and n and cycles[n - 1] == current)]
    train = [cycle for cycle in cycles if cycle.phase == "train"]
    if len(train) < rule.min_cycles:
        return GO
    if evidence := poor_in_data(train, rule):
        return Verdict("no_data", _action(rule.on_no_data, history, rule), evidence)
    if evidence := plateau(cycles, rule):
        return Verdict("plateau", _action(rule.on_plateau, history, rule), evidence)
    return GO


def _action(wanted: str, history: History, rule: Stagnation) -> str:
    return "stop" if wanted == "reseed" and history.reseeds >= rule.max_reseeds else wanted


def poor_in_data(train: list[CycleFacts], rule: Stagnation) -> str:
    """Evidence that the last cycles found too little, or an empty string."""
    last = train[-rule.poor_cycles :]
    if len(last) < rule.poor_cycles or any(not cycle.proposals for cycle in last):
        return ""
    for floor, what, counts in (
        (rule.min_new_share, "new valid distinct tasks", [cycle.new_examples for cycle in last]),
        (rule.min_learnable_share, "learnable proposals", [cycle.learnable for cycle in last]),
    ):
        shares = [count / cycle.proposals for count, cycle in zip(counts, last, strict=True)]
        if all(share < floor for share in shares):
            seen = ", ".join(f"{share:.1%}" for share in shares)
            return f"{what} were under {floor:.0%} of proposals in {len(last)} cycles in a row ({seen})"
    return ""


def plateau(cycles: list[CycleFacts], rule: Stagnation) -> str:
    """Evidence that held-out accuracy no longer rises, or an empty string."""
    validated = [cycle for cycle in cycles if cycle.validations]
    late, early = validated[-rule.patience_cycles :], validated[: -rule.patience_cycles]
    if not early or len(late) < rule.patience_cycles:
        return ""
    lines = []
    for name in ("accuracy", "sampled_accuracy"):
        before, n = max((_score(cycle, name) for cycle in early), key=lambda score: score[0])
        after = max(_score(cycle, name)[0] for cycle in late)
        noise = math.sqrt(max(before * (1 - before), 0.0) / n) if n else 0.0
        if after > before + noise:
            return ""
        lines.append(f"{name.replace('_', ' ')} best {after:.3f}, before {before:.3f} (noise {noise:.3f})")
    return f"no improvement beyond noise in {len(late)} validated cycles: " + "; ".join(lines)


def _score(cycle: CycleFacts, name: str) -> tuple[float, int]:
    """(mean over suites of the suite's mean score, problems behind it)."""
    means = [validation.metrics["mean"] for validation in cycle.validations]
    scores = [float(mean.get(name, mean["accuracy"])) for mean in means]
    return sum(scores) / len(scores), int(sum(mean["n"] for mean in means))
