"""Many programs at a time: `Sandbox` spreads jobs over its zygotes and puts the answers back in order."""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import RLock
from types import TracebackType
from typing import Any, Self

from workers.sandbox.lane import Lane, ZygoteDied
from workers.sandbox.limits import Limits
from workers.sandbox.literal import Rejected, parse_arguments
from workers.sandbox.result import Case, Result, Status
from workers.sandbox.screen import MAX_SOURCE
from workers.sandbox.verdict import agree, judge

AHEAD = 2
"""Jobs that one zygote may hold: it finds the next one in its pipe when it has answered."""
MAX_TRIES = 2
"""Starts of a job whose zygote died under it."""
HASH_SEEDS = (0, 1)


@dataclass
class Job:
    """One process to be: a program and the calls that it makes."""

    number: int
    case: Case
    trees: list[Any]
    repeat: int
    hash_seed: int
    tries: int = 0
    results: list[Result] = field(default_factory=list)

    @property
    def expected(self) -> int:
        return len(self.trees) * self.repeat

    def message(self, cpu_s: float) -> dict[str, Any]:
        return {
            "id": self.number,
            "program": self.case.program,
            "entry": self.case.entry,
            "inputs": self.trees,
            "repeat": self.repeat,
            "cpu_s": cpu_s,
        }


class Sandbox:
    """Runs programs that nobody vouches for. Start it before locks, databases and GPUs are opened.

    jobs: programs that run side by side; each has a zygote for each of the two hash seeds.
    Safe to use from several threads (one works at a time); a context manager.
    """

    def __init__(self, limits: Limits | None = None, jobs: int = 2) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, is {jobs}")
        self.limits = limits or Limits()
        self._lock = RLock()
        self._numbers = count()
        self._lanes = [Lane(self.limits, seed) for seed in HASH_SEEDS for _ in range(jobs)]
        self._closed = False
        try:
            for lane in self._lanes:
                lane.begin()
            for lane in self._lanes:
                lane.await_report()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the sandbox. May be called again."""
        with self._lock:
            self._closed = True
            while self._lanes:
                self._lanes.pop().close()

    def execute(self, program: str, inputs: str, entry: str = "f") -> Result:
        """Run `entry(inputs)` in a process of its own. `inputs`: source text of the arguments, literals only."""
        return self.execute_many([Case(program, (inputs,), entry)])[0][0]

    def execute_many(self, cases: Sequence[Case]) -> list[list[Result]]:
        """The results of each case, in the order of cases and inputs. A case is one process for all its inputs."""
        results: list[list[Result]] = [[] for _ in cases]
        for place, found in self.stream(cases):
            results[place] = found
        return results

    def stream(self, cases: Sequence[Case]) -> Iterator[tuple[int, list[Result]]]:
        """(index of the case, its results), as they are completed."""
        prepared = [_Prepared.of(case) for case in cases]
        jobs = [self._job(one, repeat=1, hash_seed=0) for one in prepared]
        places = {id(job): place for place, job in enumerate(jobs) if job is not None}
        for place, job in enumerate(jobs):
            if job is None:
                yield place, prepared[place].merge([])
        for job in self._run([job for job in jobs if job is not None]):
            place = places[id(job)]
            yield place, prepared[place].merge(job.results)

    def check_deterministic(self, program: str, inputs: str, entry: str = "f") -> Result:
        """`execute`, but `nondeterministic` unless two calls in one process and one in another agree.

        The other process is of another start of Python: other hash seed, other addresses.
        """
        return self.check_deterministic_many([Case(program, (inputs,), entry)])[0][0]

    def check_deterministic_many(self, cases: Sequence[Case]) -> list[list[Result]]:
        """`check_deterministic` of each input of each case, in order."""
        prepared = [_Prepared.of(case) for case in cases]
        twice = [self._job(one, repeat=2, hash_seed=0) for one in prepared]
        once = [self._job(one, repeat=1, hash_seed=1) for one in prepared]
        for _ in self._run([job for pair in zip(twice, once, strict=True) for job in pair if job is not None]):
            pass
        answers = []
        for one, first, second in zip(prepared, twice, once, strict=True):
            agreed: list[Result] = []
            if first is not None and second is not None:
                pairs = zip(first.results[::2], first.results[1::2], second.results, strict=True)
                agreed = [agree((a, b), c) for a, b, c in pairs]
            answers.append(one.merge(agreed))
        return answers

    def _job(self, prepared: _Prepared, repeat: int, hash_seed: int) -> Job | None:
        if not prepared.trees:
            return None
        return Job(next(self._numbers), prepared.case, prepared.trees, repeat, hash_seed)

    def _run(self, jobs: Sequence[Job]) -> Iterator[Job]:
        """Run every job; each is yielded when its results are there."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the sandbox is closed")
            waiting = {seed: deque(job for job in jobs if job.hash_seed == seed) for seed in HASH_SEEDS}
            left = len(jobs)
            while left:
                self._feed(waiting)
                for job in self._turn(waiting):
                    left -= 1
                    yield job

    def _feed(self, waiting: dict[int, deque[Job]]) -> None:
        for depth in range(1, AHEAD + 1):
            for lane in self._lanes:
                queue = waiting[lane.hash_seed]
                if queue and len(lane.jobs) < depth:
                    job = queue.popleft()
                    lane.jobs.append(job)
                    lane.send(job.message(self.limits.cpu_s))

    def _turn(self, waiting: dict[int, deque[Job]]) -> list[Job]:
        """Wait until some lane can be read or written, and do that."""
        done: list[Job] = []
        with selectors.DefaultSelector() as selector:
            for lane in self._lanes:
                if lane.jobs:
                    selector.register(lane.read_fd, selectors.EVENT_READ, lane)
                if lane.wants_to_write:
                    selector.register(lane.write_fd, selectors.EVENT_WRITE, lane)
            for key, events in selector.select():
                lane = key.data
                if events & selectors.EVENT_WRITE:
                    lane.flush()
                    continue
                try:
                    frame = lane.receive()
                except ZygoteDied as death:
                    done.extend(self._revive(lane, waiting, str(death)))
                    continue
                while frame is not None:
                    job = lane.jobs.popleft()
                    job.results = judge(frame, job.expected)
                    done.append(job)
                    frame = lane.next_frame()
        return done

    def _revive(self, lane: Lane, waiting: dict[int, deque[Job]], why: str) -> list[Job]:
        """Replace a dead zygote. Its oldest job is the suspect: it runs once more, then it is given up."""
        lane.close()
        fresh = Lane(self.limits, lane.hash_seed)
        self._lanes[self._lanes.index(lane)] = fresh
        fresh.begin()
        fresh.await_report()
        suspect, *innocent = lane.jobs
        suspect.tries += 1
        waiting[lane.hash_seed].extendleft(reversed(innocent))
        if suspect.tries < MAX_TRIES:
            waiting[lane.hash_seed].append(suspect)
            return []
        suspect.results = [Result(Status.KILLED, message=f"the sandbox process died: {why}")] * suspect.expected
        return [suspect]


@dataclass
class _Prepared:
    """A case with its arguments read: trees of those that are literals, results of those that are not."""

    case: Case
    trees: list[Any]
    rejected: dict[int, Result]

    @classmethod
    def of(cls, case: Case) -> _Prepared:
        trees: list[Any] = []
        rejected: dict[int, Result] = {}
        reason = _source_reason(case.program)
        for place, text in enumerate(case.inputs):
            try:
                if reason is not None:
                    raise Rejected(reason)
                trees.append(parse_arguments(text).tree)
            except Rejected as error:
                rejected[place] = Result(Status.REJECTED, message=str(error))
        return cls(case, trees, rejected)

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
