"""Score the model on the held-out problems after the current step, without waiting for the cycle's end.

Training stops for it and goes on exactly as it would have. The scores are shown and stored; no rule of the run reads
them. Returns once they are there. `evaluate` scores any checkpoint beside a run.
"""

from __future__ import annotations

import argparse

from orchestrator.control import ask, seconds
from orchestrator.display.answers import tell
from orchestrator.display.scores import task_scores
from orchestrator.display.wording import TASK_NAMES, count, score
from orchestrator.runs import find_run
from state.history import ValidationFacts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", type=seconds, default=7200.0, metavar="S", help="seconds to wait (7200)")


def run(args: argparse.Namespace) -> int:
    answer = ask(find_run(args), "validate", args.timeout)
    return tell(args, answer, text(answer) if answer.get("ok") else "")


def text(answer: dict[str, object]) -> str:
    """One line for each task."""
    found = answer["validation"]
    assert isinstance(found, dict)
    rows = task_scores([ValidationFacts(0, found["step"], "", 0.0, 0, 0, found["metrics"])], None)
    lines = [f"validated step {count(found['step'])} on {found['suite']}"]
    for row in rows:
        sampled = f", sampled {score(row.last.sampled)}" if row.last.sampled is not None else ""
        interval = f"[{row.last.low:.2f}, {row.last.high:.2f}]"
        lines.append(f"{TASK_NAMES.get(row.task, row.task):<12} {score(row.last.greedy)} {interval}{sampled}")
    return "\n".join(lines)
