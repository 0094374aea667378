"""Trains two floats under the same contract, loop and files as the real trainer, to test durability in microseconds.

Does not use torch. Has one state of each kind: weights, an optimiser moment, a random generator, an ordered buffer.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

from profiles.task_kinds import NAMES
from state.registry import Registry
from workers.contract import TaskAnswers
from workers.cycle.ahead import Ahead
from workers.cycle.cursor import Exhausted
from workers.cycle.progress import Progress
from workers.cycle.rollout_file import Record
from workers.cycle.train import StepReport
from workers.cycle.validate import Scored, Suite
from workers.fake import faults
from workers.intervals import wilson
from workers.memory.backoff import Sizes
from workers.rng import derive, stream
from workers.runtime import Attempt
from workers.suites.shipped.fake import SUITE

ROLLOUTS = 4
BUFFER_ROWS = 64
TASK = NAMES[0]
"""The kind of every task that the fake trainer finds."""
SIZES = Sizes(micro_batch=2, head_rows=16, rollout_rows=1)
"""The micro-batch can be halved once."""


class JsonFile:
    """A registered object whose state is one JSON value, read and set through two functions."""

    def __init__(self, filename: str, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self.filename = filename
        self._get, self._put = get, put

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self._get(), sort_keys=True))

    def load(self, path: Path) -> None:
        self._put(json.loads(path.read_text()))


class FakeTrainer:
    """Moves `weight` towards 1 by noisy gradients with momentum."""

    static_files: ClassVar[Collection[str]] = ("filler.bin",)

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.faults = faults.parse(attempt.profile.fake.fault)
        self.weight, self.momentum = 0.0, 0.0
        self.generator = random.Random()
        self.buffer: list[str] = []
        self.micro_batch = SIZES.micro_batch
        self._memory_errors = 0
        self._ahead = Ahead()

    def build(self, head: Path | None) -> None:
        if head is None:
            self.generator.seed(derive(self.attempt.profile.run.seed, 0, "fake"))

    def registry(self, progress: Progress) -> Registry:
        registry = Registry()
        registry.register(progress)
        registry.register(JsonFile("weights.json", lambda: [self.weight], self._put_weight))
        registry.register(JsonFile("optimizer.json", lambda: [self.momentum], self._put_momentum))
        registry.register(JsonFile("rng.json", self.generator.getstate, self._put_generator))
        registry.register(JsonFile("buffer.json", lambda: self.buffer, self._put_buffer))
        return registry

    def probe(self) -> dict[str, Any]:
        return {}

    def seed(self, stop_asked: Callable[[], bool]) -> Sequence[Record]:
        self.buffer = ["def f(a):\n    return a"]
        return [example(TASK, self.buffer[0], 0, 1.0)]

    def reseed(self) -> dict[str, float]:
        before = len(self.buffer)
        self.buffer = self.buffer[-BUFFER_ROWS // 2 :]
        return {"kept": len(self.buffer), "dropped": before - len(self.buffer)}

    def worst_case(self, *, first_attempt: bool) -> dict[str, float]:
        return {"expected_peak_bytes": 0.0} if first_attempt else {}

    @property
    def sizes(self) -> Sizes:
        return SIZES

    def resize(self, sizes: Sizes) -> None:
        self.micro_batch = sizes.micro_batch

    def collect(self, step: int) -> list[Record]:
        self._strike(step)
        draws = stream(self.attempt.profile.run.seed, step, "rollouts")
        records: list[Record] = [{"prompt": number, "noise": draws.gauss(0.0, 0.1)} for number in range(ROLLOUTS)]
        if self.attempt.profile.run.overlap:
            return [record | {"weight": self.weight} for record in records]
        return records

    def draw_beside(self, ahead: Ahead) -> None:
        self._ahead = ahead

    def collect_after(self, step: int, records: Sequence[Record]) -> Callable[[], list[Record]]:
        return lambda: self.collect(step)

    def update(self, step: int, records: Sequence[Record]) -> StepReport:
        self._ahead.begin()
        memory = [fault for fault in self._striking(step) if fault.name == "oom"]
        if memory and self._memory_errors < (memory[0].argument or 1):
            self._memory_errors += 1
            raise faults.OutOfMemoryError("CUDA out of memory (fake)")
        if any(fault.name == "nan" for fault in self._striking(step)):
            return StepReport(metrics={"loss": math.nan, "proposals": ROLLOUTS}, finite=False)
        self._ahead.finish()
        noise = sum(record["noise"] for record in records) / len(records) + self.generator.gauss(0.0, 0.01)
        if self.attempt.profile.run.overlap:  # rollouts of other weights teach something else
            noise += sum(record["weight"] - self.weight for record in records) / len(records)
        self.momentum = 0.9 * self.momentum + (1.0 - self.weight + noise)
        self.weight += 0.02 * self.momentum
        program = f"def f(a):\n    return a + {step}"
        self.buffer = [*self.buffer, program][-BUFFER_ROWS:]
        metrics = {
            "loss": (1.0 - self.weight) ** 2,
            "reward": self.weight,
            "learning_rate": 0.02,
            "proposals": float(ROLLOUTS),
            "new_examples": 1.0,
            "learnable": 1.0,
            f"buffer/{TASK}": float(len(self.buffer)),
        }
        return StepReport(metrics=metrics, tokens=ROLLOUTS * 8, examples=[example(TASK, program, step, 0.5)])

    def write_static(self, directory: Path) -> None:
        size = self.attempt.profile.fake.state_bytes
        if size:
            (directory / "filler.bin").write_bytes(b"\x5a" * size)

    def _striking(self, step: int) -> list[faults.Fault]:
        return [fault for fault in self.faults if fault.strikes(step, self.attempt.spec.attempt)]

    def _strike(self, step: int) -> None:
        slow = sum(fault.at for fault in self.faults if fault.name == "slow")
        time.sleep(self.attempt.profile.fake.step_s + slow)
        for fault in self._striking(step):
            if fault.name == "exhausted":
                raise Exhausted(f"the fake source ends before step {step}")
            if fault.name in faults.EFFECTS:
                faults.EFFECTS[fault.name](self.attempt.control, fault.argument)

    def _put_weight(self, value: list[float]) -> None:
        (self.weight,) = value

    def _put_momentum(self, value: list[float]) -> None:
        (self.momentum,) = value

    def _put_generator(self, value: list[Any]) -> None:
        version, words, gauss = value
        self.generator.setstate((version, tuple(words), gauss))

    def _put_buffer(self, value: list[str]) -> None:
        self.buffer = list(value)


def example(task: str, program: str, step: int, solve_rate: float) -> Record:
    """One row of an `examples` event. (pure)"""
    return {"task": task, "program": program, "input": "1", "output": "1", "step": step, "solve_rate": solve_rate}


def fake_suites(attempt: Attempt) -> dict[str, Suite]:
    """The fake held-out suites. Accuracy is 0.25 + 0.5 * weight, clamped to [0, 1]."""

    def evaluate(head: Path) -> Scored:
        (weight,) = json.loads((head / "weights.json").read_text())
        n = attempt.profile.validation.examples_per_task
        accuracy = min(max(0.25 + 0.5 * weight, 0.0), 1.0)
        correct = round(accuracy * n)
        low, high = wilson(correct, n)
        one = {
            "n": n,
            "correct": correct,
            "accuracy": correct / n,
            "low": low,
            "high": high,
            "sampled_accuracy": accuracy,
            "worked_share": 0.0,
            "mean_tokens": 8.0,
            "malformed": 0.0,
        }
        bits = "1" * correct + "0" * (n - correct)
        answers = TaskAnswers(tuple(map(str, range(n))), bits, bits)
        tasks = SUITE.tasks
        return Scored({task: dict(one) for task in tasks}, dict.fromkeys(tasks, answers), n * len(tasks), 0.0)

    return dict.fromkeys(attempt.profile.validation.suites, evaluate)
