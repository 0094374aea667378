"""One line of set-up a test: histories, profiles, views, and whole stores without having trained anything."""

from __future__ import annotations

import hashlib
import json
import math
import random
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from orchestrator.display.view import Live, View, build_view
from profiles.schema import Profile
from state.history import CheckpointFacts, CycleFacts, EventFacts, History, StepFacts, ValidationFacts
from state.layout import RunDir
from state.series import Spread, Thinned
from state.states import CycleState, RunState
from state.tables import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from workers.intervals import wilson

NOW = 1_790_000_000.0
"""UTC seconds at which stores made here were last touched."""
TASKS = ("abd", "ded", "ind")


def learning(step: int, scale: float = 60.0) -> float:
    """0 at the start, towards 1 after `scale` steps: the shape of a run that learns."""
    return 1 / (1 + math.exp(-(step - scale) / (scale / 6)))


def step_metrics(step: int) -> dict[str, float]:
    """What a self-play worker reports of a step, in its names."""
    grown = learning(step)
    draw = random.Random(step)
    metrics: dict[str, float] = {"proposals": 36, "new_examples": 30, "learnable": 20, "accept_rate": 0.95}
    for number, task in enumerate(TASKS):
        skill = grown if task != "ind" else 0.1
        metrics[f"reward/propose_{task}"] = 0.3 - 0.1 * number + 0.1 * draw.random()
        metrics[f"reward/solve_{task}"] = -0.5 + skill + 0.1 * draw.random()
        metrics[f"buffer/{task}"] = 1 + 10 * step
        metrics[f"worked/{task}"] = 0.1 + 0.8 * skill
        metrics[f"tokens_mean/{task}"] = 8 + 22 * skill
    metrics |= {"entropy": 0.55 + 0.1 * grown, "clip_fraction": 0.01, "loss": 0.02 * draw.random()}
    metrics |= {"learning_rate": 2e-4, "rss_bytes": 7e8, "seconds": 0.9 + 0.3 * grown, "reward": -0.2 + grown}
    return metrics | {"seconds/propose": 0.2, "seconds/solve": 0.4, "seconds/update": 0.3, "tokens": 4000}


def step_facts(step: int, cycle: int = 1, **metrics: float) -> StepFacts:
    values = metrics or step_metrics(step)
    return StepFacts(step, cycle, values.get("seconds", 1.0), values)


def a_series(steps: Sequence[StepFacts]) -> Thinned:
    """What a reader makes of these steps, with a point for each: all of their metrics."""
    names = sorted({name for one in steps for name in one.metrics})

    def spread(value: float | None) -> Spread | None:
        return None if value is None else Spread(value, value, value, 1)

    metrics = {name: tuple(spread(one.metrics.get(name)) for one in steps) for name in names}
    metrics |= {"seconds": tuple(spread(one.seconds) for one in steps)}
    seconds = accumulate(one.seconds for one in steps)
    tokens = accumulate(int(one.metrics.get("tokens", 0)) for one in steps)
    edges = tuple(range(steps[0].step, steps[-1].step + 2)) if steps else ()
    return Thinned(edges, 1, tuple(seconds), tuple(tokens), metrics)


def validation_metrics(step: int, n: int = 300) -> dict[str, dict[str, float]]:
    """What a validation worker reports, in its names."""
    metrics: dict[str, dict[str, float]] = {}
    for task, first in zip(TASKS, (0.44, 0.23, 0.25), strict=True):
        grown = learning(step) if task != "ind" else 0.0
        correct = round(n * (first + (0.76 - first) * grown))
        low, high = wilson(correct, n)
        metrics[task] = {
            "n": n, "correct": correct, "accuracy": correct / n, "low": low, "high": high, "malformed": 2,
            "sampled_accuracy": 0.2 + 0.3 * grown, "worked_share": 0.1 + 0.8 * grown, "mean_tokens": 8 + 22 * grown,
        }  # fmt: skip
    correct = int(sum(values["correct"] for values in metrics.values()))
    low, high = wilson(correct, n * len(TASKS))
    sampled = sum(values["sampled_accuracy"] for values in metrics.values()) / len(TASKS)
    metrics["mean"] = {
        "n": n * len(TASKS), "correct": correct, "accuracy": correct / (n * len(TASKS)), "low": low, "high": high,
        "sampled_accuracy": sampled,
    }  # fmt: skip
    return metrics


def validation_facts(step: int, cycle: int = 1, suite: str = "pocket", n: int = 300) -> ValidationFacts:
    metrics = validation_metrics(step, n)
    mean = metrics["mean"]
    return ValidationFacts(cycle, step, suite, mean["accuracy"], int(mean["correct"]), int(mean["n"]), metrics)


def a_profile(**changes: Any) -> Profile:
    return Profile(**{"name": "pocket", **changes})


PROGRAM = "def f(a):\n    b = a[::-1]\n    c = b.swapcase()\n    return c"


def a_history(**changes: Any) -> History:
    """Cycle 3 of a run that trains: steps 41 to 60, of which 50 are in the head."""
    given: dict[str, Any] = {
        "run_id": "r0", "name": "night", "state": RunState.RUNNING,
        "head": CheckpointFacts("c", None, 3, 50, "checkpoints/c0003-s000050", "9f3ca1b2c3d4e5f6", 6_000_000),
        "current": CycleFacts(3, "train", CycleState.TRAINING, 41, 61),
        "first_validation": validation_facts(0), "examples": 1240, "training_s": 75.0, "cycles_done": 3,
        "created_at": NOW - 3600, "heartbeat_at": NOW,
    }  # fmt: skip
    return History(**{**given, **changes})


def a_live(**changes: Any) -> Live:
    given: dict[str, Any] = {
        "master_pid": 4700, "worker_pid": 4711, "role": "train", "stage": "update", "step": 55, "step_started": 99.5,
        "worker_rss_bytes": 812_000_000, "master_rss_bytes": 41_000_000, "standby": "warm", "now": 100.0,
    }  # fmt: skip
    return Live(**{**given, **changes})


def a_view(
    history: History | None = None, program: str = PROGRAM, event: str = "run 'night' begins", **live: Any
) -> View:
    """Step 55 of `a_history`, with all that a dashboard can show."""
    return build_view(
        history or a_history(),
        a_live(**live),
        [step_facts(step) for step in range(1, 55)],
        [validation_facts(step) for step in range(0, 41, 10)],
        [EventFacts(NOW, 3, 50, "master", event)],
        a_profile(),
        [{"task": "ded", "step": 54, "program": program, "input": "'uvX'", "output": "'xVU'", "solve_rate": 0.375}],
    )


Rows = Iterator[tuple[Any, ...]]


# --- whole stores ----------------------------------------------------------------------------------------------------


def build_store(
    run_dir: Path, *, cycles: int = 3, steps: int = 60, examples: int = 20, state: str = "stopped",
    reason: str = "asked to stop", profile: str = "", heartbeat_at: float = NOW,
    step_rows: Rows | None = None, validation_rows: Rows | None = None,
) -> RunDir:  # fmt: skip
    """A run of `cycles` committed cycles and `steps` trained steps in all, as rows; no checkpoint files.

    step_rows, validation_rows: in place of those that are made here.

    Written past the Store, in bulk: a million rows in half a minute.
    """
    run = RunDir(run_dir)
    run.root.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(run.store, isolation_level=None)
    db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
    for migration in MIGRATIONS:
        db.executescript(migration)
    db.executescript(f"PRAGMA user_version={SCHEMA_VERSION}; PRAGMA application_id={APPLICATION_ID};")
    per_cycle = steps // cycles
    db.execute("BEGIN")
    db.execute("PRAGMA defer_foreign_keys=ON")
    _insert_run(db, run.name, profile or _stored_profile(per_cycle), state, reason, f"c{cycles:06d}", heartbeat_at)
    for table, columns, rows in (
        ("cycles", 16, _cycles(cycles, per_cycle)),
        ("attempts", 18, _attempts(cycles, per_cycle)),
        ("checkpoints", 14, _checkpoints(cycles, per_cycle)),
        ("validations", 11, validation_rows or _validations(cycles, per_cycle)),
        ("steps", 11, step_rows or _steps(cycles, per_cycle)),
        ("events", 9, _events(cycles, per_cycle)),
        ("examples", 9, _examples(examples, steps)),
    ):
        db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * columns)})", rows)
    db.execute("COMMIT")
    db.execute("PRAGMA journal_mode=WAL")
    db.close()
    return run


def _stored_profile(per_cycle: int) -> str:
    return json.dumps({"name": "pocket", "run": {"steps_per_cycle": per_cycle, "deterministic": True}})


def _insert_run(
    db: sqlite3.Connection, name: str, profile: str, state: str, reason: str, head: str, heartbeat_at: float
) -> None:
    db.execute(
        "INSERT INTO runs VALUES ('r0',?,?,?,0,'0.1.0',?,?,?,0,?,?,NULL,'')",
        [name, profile, hashlib.sha256(profile.encode()).hexdigest(), state, reason, head, NOW - 1e6, heartbeat_at],
    )


def _cycles(cycles: int, per: int) -> Rows:
    yield (0, "seed", 1, 1, "committed", 0, "go:go", "", 0, 0, 3, 0, 0.0, NOW - 1e6, NOW - 1e6, "")
    for cycle in range(1, cycles + 1):
        first, found = (cycle - 1) * per + 1, 30 * per
        yield (cycle, "train", first, first + per, "committed", 0, "go:go", "", 0, 36 * per, found, 20 * per,
               1.1 * per, NOW - 1e6 + cycle, NOW - 1e6 + cycle, "")  # fmt: skip


def _attempts(cycles: int, per: int) -> Rows:
    for cycle in range(cycles + 1):
        first, last = max(0, cycle - 1) * per + 1, cycle * per
        for role in ("train", "validate"):
            yield (cycle, role, 1, f"{role}-{cycle}", 0, 0.0, "succeeded", first, last, int(role == "train"), 0, "", "",
                   0, 0, NOW - 1e6 + cycle, NOW - 1e6 + cycle, 0)  # fmt: skip


def _checkpoints(cycles: int, per: int) -> Rows:
    for cycle in range(cycles + 1):
        name, parent = f"c{cycle:06d}", f"c{cycle - 1:06d}" if cycle else None
        state = "committed" if cycle > cycles - 3 or cycle % 10 == 0 else "deleted"
        yield (name, parent, cycle, 1, cycle * per, f"checkpoints/{name}-s{cycle * per:06d}", f"{cycle:064x}",
               6_000_000, 1, state, 1, 0, NOW - 1e6 + cycle, "")  # fmt: skip


def _validations(cycles: int, per: int) -> Rows:
    for cycle in range(cycles + 1):
        metrics = validation_metrics(cycle * per)
        mean = metrics["mean"]
        yield (f"c{cycle:06d}", "pocket", cycle, 1, cycle * per, mean["accuracy"], mean["correct"], mean["n"],
               json.dumps(metrics), NOW - 1e6 + cycle, 0)  # fmt: skip


def _steps(cycles: int, per: int) -> Rows:
    text = {step: json.dumps(step_metrics(step)) for step in range(1, min(cycles * per, 400) + 1)}
    for step in range(1, cycles * per + 1):
        metrics = text.get(step) or text[step % 100 + 300]
        yield (
            step,
            (step - 1) // per + 1,
            1,
            step,
            1,
            1.1,
            -0.2 + learning(step),
            0.01,
            4000,
            metrics,
            NOW - 1e6 + step,
        )


def _events(cycles: int, per: int) -> Rows:
    versions = json.dumps({"versions": {"torch": "2.13.0", "machine": "x86_64"}})
    for cycle in range(cycles + 1):
        yield (cycle, "train", 1, 1, "started", max(0, cycle - 1) * per, NOW - 1e6 + cycle, 0.0, versions)
        yield (cycle, "train", 1, 2, "memory", cycle * per, NOW - 1e6 + cycle, 0.0, '{"peak_rss_bytes": 700000000}')


def _examples(examples: int, steps: int) -> Rows:
    program = "def f(a):\n    b = a[::-1]\n    c = b.swapcase()\n    return c"
    for number in range(examples):
        task, step = TASKS[number % 3], 1 + number * steps // examples
        yield (f"e{number:08d}", task, 1, 1, step, program, f"'uvX{number}'", f"'{number}xVU'", 0.5)
