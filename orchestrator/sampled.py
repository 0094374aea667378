"""Tasks and rollouts as a person reads them: texts, verdict, reward. (pure)

The texts are as a model wrote them; `entry_of` makes them harmless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.display.browse import Entry
from orchestrator.display.wording import TASK_NAMES, count, harmless, harmless_lines, percent

LONGEST_TEXT = 4000
"""Characters of one text on a page."""


@dataclass(frozen=True)
class Sample:
    """A task or a rollout. The texts are as the model wrote them: `entry_of` makes them harmless."""

    kind: str
    """`task`, or `rollout`."""
    step: int
    task: str
    texts: tuple[tuple[str, str], ...]
    """(what it is, the text)."""
    verdict: str
    reward: float | None = None
    """Of a task: the share of answers that are right, which decides the proposer's reward."""

    def as_json(self) -> dict[str, Any]:
        said = {"verdict": self.verdict, "reward": self.reward}
        return {"kind": self.kind, "step": self.step, "task": self.task, **dict(self.texts), **said}


def tasks_of(rows: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """The newest tasks of self-play, newest first. rows: of `reader.examples`."""
    found = []
    for row in rows:
        rate = row["solve_rate"]
        verdict = "not answered yet" if rate is None else f"{percent(rate)} of answers are right"
        texts = (("program", str(row["program"])), ("input", str(row["input"])), ("output", str(row["output"])))
        found.append(Sample("task", int(row["step"]), str(row["task"]), texts, verdict, rate))
    return found


def entry_of(sample: Sample) -> Entry:
    """Title, then each text indented under its name."""
    reward = f", reward {sample.reward:.3g}" if sample.reward is not None and sample.kind == "rollout" else ""
    what = f"{sample.kind} {TASK_NAMES.get(sample.task, sample.task)}".strip()
    lines = [harmless(f"{what} · step {count(sample.step)} · {sample.verdict}{reward}")]
    for name, text in sample.texts:
        body = harmless_lines(text[:LONGEST_TEXT]).split("\n")
        more = [f"… {len(text) - LONGEST_TEXT:,} more characters"] if len(text) > LONGEST_TEXT else []
        first, *rest = [*body, *more]
        lines += [f"  {name:<8} {first}", *(f"           {line}" for line in rest)]
    return Entry((*lines, ""), "bold")


def sample_entries(samples: Sequence[Sample], term: str) -> list[Entry]:
    entries = [entry_of(sample) for sample in samples]
    return [one for one in entries if term.lower() in "\n".join(one.lines).lower()]
