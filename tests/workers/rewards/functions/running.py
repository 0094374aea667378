"""Files with reward functions, and a runner over them: what the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.rewards.functions.protocol import Call, Given
from workers.rewards.functions.runner import Failure, FunctionRunner


@dataclass(frozen=True)
class Limits:
    timeout_s: float = 60.0
    memory_gib: float = 1.0
    threads: int = 4


@contextmanager
def running(folder: Path, source: str, *names: str, limits: Limits | None = None) -> Iterator[FunctionRunner]:
    """The functions of a file `mine.py` with this source."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(source)
    made = FunctionRunner([f"mine.py:{name}" for name in names], limits or Limits(), folder / "attempt", cwd=folder)
    with made as runner:
        yield runner


def call(function: int, *completions: Any, answer: str = "4", **fields: Any) -> Call:
    """Row 7 of the data, `2+2=`."""
    return Call(
        **({"function": function, "row": 7, "prompt": "2+2=", "answer": answer} | fields),
        rollouts=[Given(one, {"tokens": 3, "seed": 0}, [1, 2, 3]) for one in completions],
    )


def outcomes(runner: FunctionRunner, calls: Sequence[Call]) -> list[list[Any]]:
    """Of each call: the named values of each rollout, or why there are none."""
    answers = [future.result(60) for future in runner.submit(calls)]
    return [[one.why if isinstance(one, Failure) else one for one in answer.outcomes] for answer in answers]
