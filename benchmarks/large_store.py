"""Large store: makes a run with a million steps without training anything, to measure what reads it.

`large_store(folder)` is what other benchmarks and tests call. A step has the metrics of a GRPO step, drawn from a
curve, noise and rare spikes; each cycle has a validation with the answers to 300 problems.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from state.answers import insert_answers
from state.history import AnswerBits
from state.layout import RunDir
from tests.builders import NOW, build_store
from workers.intervals import wilson

VARIANTS = 997
"""Different texts of the metrics that do not follow a curve. Prime, so that no stride meets the same one again."""
SUITE, TASK = "words", "maths"
PROBLEMS = tuple(f"problem-{number:03d}" for number in range(300))
HARDNESS = [random.Random(number).random() for number in range(len(PROBLEMS))]
SHARES = (
    "all_right all_wrong answered clip_fraction clip_high clip_low distinct_share group_spread kept_tokens kl "
    "mismatch_kl mismatch_max mismatch_mean ratio_mean reward/correct reward/format reward_std skipped_share "
    "truncated uniform_share"
)
COUNTS = (
    "groups memory/rollout/allocated memory/rollout/expected memory/train/allocated memory/train/expected "
    "mismatch_tokens peak_rss_bytes problems problems_drawn rollouts_kept rss_bytes tokens_per_s train_tokens_per_s "
    "updates_done"
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks large_store", description=__doc__)
    parser.add_argument("folder", type=Path, help="the new run's directory, such as runs/large")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--best", type=float, default=0.9, help="accuracy that the run tends to (0.9)")
    args = parser.parse_args(arguments)
    began = time.perf_counter()
    run = large_store(args.folder, steps=args.steps, cycles=args.cycles, seed=args.seed, best=args.best)
    seconds = time.perf_counter() - began
    print(
        f"{args.steps:,} steps in {args.cycles:,} cycles: {run.store.stat().st_size / 1e6:,.0f} MB in {seconds:.1f} s"
    )
    return 0


def large_store(
    folder: Path, *, steps: int = 1_000_000, cycles: int = 10_000, seed: int = 0, best: float = 0.9
) -> RunDir:
    """A stopped run of `steps` trained steps in the new directory `folder`. best: accuracy that it tends to."""
    made = Made(steps, steps // cycles, cycles, seed, best)
    profile = {
        "name": "grpo-large",
        "run": {"worker": "grpo", "steps_per_cycle": made.per_cycle, "max_cycles": cycles, "seed": seed},
        "data": {"tasks": "pocket-words"},
    }
    run = build_store(
        folder,
        cycles=cycles,
        steps=steps,
        profile=json.dumps(profile, sort_keys=True),
        step_rows=made.step_rows(),
        validation_rows=made.validation_rows(),
    )
    with closing(sqlite3.connect(run.store, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=OFF")
        db.execute("BEGIN")
        for cycle in range(cycles + 1):
            insert_answers(Database(db), f"c{cycle:06d}", SUITE, {TASK: made.answers(cycle)})
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return run


@dataclass(frozen=True)
class Made:
    """What a run's rows are made from."""

    steps: int
    per_cycle: int
    cycles: int
    seed: int
    best: float

    def skill(self, step: int) -> float:
        """Accuracy at a step: most of the way is gone in a tenth of the run."""
        return self.best * (1 - math.exp(-step / (self.steps / 20)))

    def step_rows(self) -> Iterator[tuple[Any, ...]]:
        draw = random.Random(self.seed)
        rest = [_without_a_curve(draw) for _ in range(VARIANTS)]
        for step in range(1, self.steps + 1):
            noise, level = draw.random(), self.skill(step)
            accuracy = min(1.0, max(0.0, level + 0.2 * (noise - 0.5)))
            seconds = 8.0 + 3.0 * noise + (40.0 if noise > 0.9999 else 0.0)
            norm = 0.5 + noise + (30.0 if noise < 0.00002 else 0.0)
            length = 180 + 300 * level + 60 * noise
            tokens, reward, loss = int(64 * length), 1.1 * accuracy - 0.1, 0.02 * noise
            text = (
                f'{{"accuracy": {accuracy:.6f}, "entropy": {0.6 - 0.4 * level + 0.05 * noise:.6f}, "grad_norm": '
                f'{norm:.6f}, "loss": {loss:.8f}, "reward": {reward:.6f}, "seconds": {seconds:.6f}, "seconds/judge": '
                f'{0.04 * seconds:.6f}, "seconds/rollout": {0.6 * seconds:.6f}, "seconds/update": '
                f'{0.33 * seconds:.6f}, "tokens": {tokens}, "tokens_max": {2.2 * length:.1f}, "tokens_mean": '
                f'{length:.2f}, "tokens_min": {0.3 * length:.1f}, {rest[step % VARIANTS]}}}'
            )
            cycle, at = (step - 1) // self.per_cycle + 1, NOW - 12 * self.steps + 10 * step
            yield (step, cycle, 1, step, 1, seconds, reward, loss, tokens, text, at)

    def answers(self, cycle: int) -> AnswerBits:
        """Who answered what: a problem is mostly solved once the skill is above its difficulty."""
        draw, level = random.Random(f"{self.seed} {cycle}"), self.skill(cycle * self.per_cycle)
        greedy, sampled = (
            sum(1 << n for n, hard in enumerate(HARDNESS) if draw.random() < (0.95 if hard < level else 0.05))
            for _ in range(2)
        )
        return AnswerBits(PROBLEMS, greedy, sampled)

    def validation_rows(self) -> Iterator[tuple[Any, ...]]:
        for cycle in range(self.cycles + 1):
            step, bits = cycle * self.per_cycle, self.answers(cycle)
            n, correct = len(PROBLEMS), bits.greedy.bit_count()
            low, high = wilson(correct, n)
            figures = {"n": n, "correct": correct, "accuracy": correct / n, "low": low, "high": high}
            figures |= {"sampled_accuracy": (bits.sampled or 0).bit_count() / n, "mean_tokens": 200.0 + step % 100}
            metrics = json.dumps({TASK: figures, "mean": figures})
            at = NOW - 12 * self.steps + 10 * step
            yield (f"c{cycle:06d}", SUITE, cycle, 1, step, correct / n, correct, n, metrics, at, 0)


def _without_a_curve(draw: random.Random) -> str:
    """The metrics of a GRPO step that show no progress, as the inside of a JSON object."""
    values: dict[str, float] = {name: round(draw.random(), 6) for name in SHARES.split()}
    values |= {name: float(draw.randrange(1, 10_000_000)) for name in COUNTS.split()}
    values |= {"learning_rate": 1e-6, "oom_retries": 0, "epoch": 1.0}
    return json.dumps(values, sort_keys=True)[1:-1]
