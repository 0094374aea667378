"""A case on its way to a zygote: what can be refused beforehand, and the message that is sent.

Pure.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.sandbox.inside.frames import JOB_HEAD
from workers.sandbox.literal import Rejected, parse_arguments
from workers.sandbox.result import Case, Result, Status
from workers.sandbox.screen import MAX_SOURCE
from workers.sandbox.verdict import further, late


@dataclass
class Job:
    """One process to be: a program and the calls that it makes."""

    number: int
    case: Case
    inputs: list[bytes]
    """Arguments, packed."""
    repeat: int
    hash_seed: int
    tries: int = 0
    results: list[Result] = field(default_factory=list)

    @property
    def expected(self) -> int:
        """Results that its process owes."""
        return len(self.inputs) * self.repeat

    def settle(self, found: list[Result]) -> bool:
        """Take the results of one run. False: a call was late for the first time, so the job is to run once more."""
        again = not self.results and late(found)
        self.results = further(self.results, found)
        return not again

    def message(self, cpu_s: float) -> bytes:
        """For the zygote. No expected answer is in it: what the child has not, it cannot copy.

        Packed by `marshal`, which only this direction may use: what comes back is hostile, and read as JSON.
        """
        body = marshal.dumps((self.case.program, self.case.entry, self.repeat, tuple(self.inputs)))
        return JOB_HEAD.pack(self.number, len(body), self.expected, cpu_s) + body


@dataclass
class Prepared:
    """A case with its arguments read: packed those that are literals, results of those that are not."""

    case: Case
    inputs: list[bytes]
    rejected: dict[int, Result]

    @classmethod
    def of(cls, case: Case) -> Prepared:
        """Read the arguments; refuse all of them if the source cannot be sent."""
        inputs: list[bytes] = []
        rejected: dict[int, Result] = {}
        reason = _source_reason(case.program)
        for place, text in enumerate(case.inputs):
            try:
                if reason is not None:
                    raise Rejected(reason)
                inputs.append(parse_arguments(text).packed)
            except Rejected as error:
                rejected[place] = Result(Status.REJECTED, message=str(error))
        return cls(case, inputs, rejected)

    def merge(self, results: Sequence[Result]) -> list[Result]:
        """Results of the inputs that ran, with the rejected ones in their places."""
        ran = iter(results)
        return [self.rejected[place] if place in self.rejected else next(ran) for place in range(len(self.case.inputs))]


def _source_reason(program: str) -> str | None:
    if len(program) > MAX_SOURCE or len(program.encode("utf-8", "surrogatepass")) > MAX_SOURCE:
        return f"source of more than {MAX_SOURCE} bytes"
    if "\0" in program:
        return "source contains a null byte"
    return None
