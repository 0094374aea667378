"""Jobs sent to a zygote: checks before sending, the message, and the results.

Pure.
"""

from __future__ import annotations

import marshal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.sandbox.inside.child import STATEMENT
from workers.sandbox.inside.frames import HEADER, JOB_HEAD
from workers.sandbox.limits import Budget
from workers.sandbox.literal import Rejected, parse_arguments
from workers.sandbox.result import Case, Result, Script, ScriptResult, Statements, Status
from workers.sandbox.screen import MAX_SOURCE
from workers.sandbox.verdict import further, judge, judge_script, late

MAX_SCRIPT = 1 << 20
"""Maximum source size of a script, in bytes."""


@dataclass
class Job(ABC):
    """Work for one child process."""

    number: int
    hash_seed: int
    budget: Budget
    tries: int = field(default=0, init=False)
    """Number of zygotes that died while running this job."""
    is_lost: bool = field(default=False, init=False)
    """True once the job has been given up: its results are not a verdict on the program."""

    @property
    def calls(self) -> int:
        """Number of results expected from the process; 0 for a script."""
        return 0

    @property
    def longest_s(self) -> float:
        """Wall seconds that the process may take in total."""
        return self.budget.wall_s * max(1, self.calls)

    def message(self) -> bytes:
        """The message for the zygote. It holds no expected answer, so the child cannot copy one."""
        body, budget = self._body(), self.budget
        head = (self.number, len(body), self.calls, budget.cpu_s, budget.wall_s, budget.memory_mb << 20)
        return JOB_HEAD.pack(*head) + body

    @abstractmethod
    def _body(self) -> bytes: ...

    @abstractmethod
    def settle(self, reply: bytes) -> bool:
        """Record the zygote's reply. Returns False if the job must run again, after its first CPU timeout."""

    @property
    @abstractmethod
    def was_late(self) -> bool:
        """Whether the recorded results include a timeout; False before the first run."""

    def give_up(self, why: str) -> None:
        """Mark the job as lost, after its zygote died too many times."""
        self.is_lost = True


@dataclass
class Calls(Job):
    """Calls of a program's entry function."""

    case: Case
    inputs: list[bytes]
    """Packed arguments, one item per call."""
    repeat: int = 1
    results: list[Result] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.inputs) * self.repeat

    def _body(self) -> bytes:
        # `marshal` is safe in this direction only. Replies are untrusted, so they are JSON.
        case = self.case
        return marshal.dumps((case.program, case.entry, self.repeat, tuple(self.inputs), case.is_ambient))

    def settle(self, reply: bytes) -> bool:
        found = judge(reply, self.calls, self.budget.cpu_s)
        again = not self.results and late(found)
        self.results = further(self.results, found)
        return not again

    @property
    def was_late(self) -> bool:
        return any(result.status is Status.TIMEOUT for result in self.results)

    def give_up(self, why: str) -> None:
        super().give_up(why)
        self.results = [Result(Status.KILLED, message=f"the sandbox process died: {why}", is_lost=True)] * self.calls


@dataclass
class ScriptJob(Job):
    """A whole program with its standard input."""

    script: Script
    result: ScriptResult | None = None

    def _body(self) -> bytes:
        stdin, script = self.script.stdin, self.script
        return HEADER.pack(len(stdin)) + stdin + marshal.dumps((script.program, script.is_ambient))

    def settle(self, reply: bytes) -> bool:
        first, found = self.result, judge_script(reply, self.budget.cpu_s)
        self.result = found
        return first is not None or found.status is not Status.TIMEOUT or found.from_wall

    def give_up(self, why: str) -> None:
        super().give_up(why)
        self.result = ScriptResult(Status.KILLED, message=f"the sandbox process died: {why}", is_lost=True)

    @property
    def was_late(self) -> bool:
        return self.result is not None and self.result.status is Status.TIMEOUT


@dataclass
class Prepared:
    """A case with parsed arguments: packed if they are literals, otherwise a rejecting result."""

    case: Case
    inputs: list[bytes]
    rejected: dict[int, Result]

    @classmethod
    def of(cls, case: Case) -> Prepared:
        """Parse the arguments; reject all of them if the source cannot be sent."""
        inputs: list[bytes] = []
        rejected: dict[int, Result] = {}
        reason = source_reason(case.program, MAX_SOURCE)
        for place, text in enumerate(case.inputs):
            try:
                if reason is not None:
                    raise Rejected(reason)
                inputs.append(parse_arguments(text).packed)
            except Rejected as error:
                rejected[place] = Result(Status.REJECTED, message=str(error))
        return cls(case, inputs, rejected)

    @classmethod
    def of_statements(cls, asked: Statements) -> Prepared:
        """One call for each statement; all of them are rejected if the source cannot be sent."""
        case = Case(asked.program, asked.statements, STATEMENT, asked.budget)
        if reason := source_reason(asked.program, MAX_SCRIPT):
            refused = Result(Status.REJECTED, message=reason)
            return cls(case, [], dict.fromkeys(range(len(asked.statements)), refused))
        return cls(case, [pack_statement(text) for text in asked.statements], {})

    def merge(self, results: Sequence[Result]) -> list[Result]:
        """Combine the results of the inputs that ran with the rejections, in input order."""
        ran = iter(results)
        return [self.rejected[place] if place in self.rejected else next(ran) for place in range(len(self.case.inputs))]


def pack_statement(text: str) -> bytes:
    """A statement as the argument of a call."""
    return marshal.dumps(((text,), {}), 2)


def script_reason(script: Script) -> str | None:
    """Why a script cannot be sent, or None."""
    return source_reason(script.program, MAX_SCRIPT)


def source_reason(program: str, most: int) -> str | None:
    """Why a source cannot be sent, or None. most: maximum size in bytes."""
    if len(program) > most or len(program.encode("utf-8", "surrogatepass")) > most:
        return f"source of more than {most} bytes"
    if "\0" in program:
        return "source contains a null byte"
    return None
