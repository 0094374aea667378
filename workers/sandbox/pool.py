"""Many programs at a time: `Sandbox` spreads jobs over its zygotes and puts the answers back in order."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from itertools import count
from threading import RLock
from types import TracebackType
from typing import Self

from workers.sandbox.errors import SandboxRefused
from workers.sandbox.job import Job, Prepared
from workers.sandbox.lane import Lane, ZygoteDied
from workers.sandbox.limits import Limits, refusal
from workers.sandbox.result import Case, Result, Status
from workers.sandbox.verdict import agree, judge

AHEAD = 2
"""Jobs that one zygote may hold: it finds the next one in its pipe when it has answered."""
MAX_TRIES = 2
"""Starts of a job whose zygote died under it."""
HASH_SEEDS = (0, 1)
GRACE_S = 30.0
"""Seconds beyond all wall limits after which a silent zygote is taken for lost."""

Waiting = dict[int, deque[Job]]
"""Jobs not yet handed out, by hash seed."""


class Sandbox:
    """Runs programs that nobody vouches for. Start it before locks, databases and GPUs are opened.

    jobs: programs that run side by side; each has a zygote for each of the two hash seeds.
    Safe to use from several threads (one works at a time); a context manager.
    Raises SandboxRefused if the machine lacks a layer that the limits require.
    """

    def __init__(self, limits: Limits | None = None, jobs: int = 2) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, is {jobs}")
        self.limits = limits or Limits()
        self._lock = RLock()
        self._numbers = count()
        self._closed = self._busy = False
        self._lanes: list[Lane] = []
        try:
            for seed in HASH_SEEDS:
                self._lanes.extend(Lane(self.limits, seed) for _ in range(jobs))
            for lane in self._lanes:
                lane.await_report()
            self.layers = dict(self._lanes[0].report["layers"])
            """Layer -> "ok", or why it is missing, as the first zygote found them."""
            self.modules_failed = dict(self._lanes[0].report["modules_failed"])
            """Module of the limits -> why it could not be loaded. Programs cannot import it."""
            if reason := refusal(self.limits, self.layers):
                raise SandboxRefused(reason)
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
        prepared = [Prepared.of(case) for case in cases]
        jobs = [self._job(one, repeat=1, hash_seed=0) for one in prepared]
        for place, job in enumerate(jobs):
            if job is None:
                yield place, prepared[place].merge([])
        places = {job.number: place for place, job in enumerate(jobs) if job is not None}
        # Closed here: Python 3.12 keeps the frame of a generator that was closed, and what it iterates over stays open.
        with contextlib.closing(self._run([job for job in jobs if job is not None])) as done:
            for job in done:
                place = places[job.number]
                yield place, prepared[place].merge(job.results)

    def check_deterministic(self, program: str, inputs: str, entry: str = "f") -> Result:
        """`execute`, but `nondeterministic` unless two calls in one process and one in another agree.

        The other process is of another start of Python: other hash seed, other addresses.
        """
        return self.check_deterministic_many([Case(program, (inputs,), entry)])[0][0]

    def check_deterministic_many(self, cases: Sequence[Case]) -> list[list[Result]]:
        """`check_deterministic` of each input of each case, in order."""
        prepared = [Prepared.of(case) for case in cases]
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

    def _job(self, prepared: Prepared, repeat: int, hash_seed: int) -> Job | None:
        if not prepared.inputs:
            return None
        return Job(next(self._numbers), prepared.case, prepared.inputs, repeat, hash_seed)

    def _run(self, jobs: Sequence[Job]) -> Generator[Job]:
        """Run every job; each is yielded when its results are there."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the sandbox is closed")
            if self._busy:
                raise RuntimeError("a stream of this sandbox is still open in this thread")
            self._busy = True
            waiting: Waiting = {seed: deque(job for job in jobs if job.hash_seed == seed) for seed in HASH_SEEDS}
            left = len(jobs)
            try:
                while left:
                    self._feed(waiting)
                    for job in self._turn(waiting):
                        left -= 1
                        yield job
            finally:
                # The caller left early (an exception, Ctrl+C): answers on their way would meet the next call.
                for lane in [lane for lane in self._lanes if lane.jobs]:
                    self._replace(lane)
                self._busy = False

    def _feed(self, waiting: Waiting) -> None:
        for depth in range(1, AHEAD + 1):
            for lane in self._lanes:
                queue = waiting[lane.hash_seed]
                if queue and len(lane.jobs) < depth:
                    lane.give(queue.popleft(), time.monotonic())

    def _turn(self, waiting: Waiting) -> list[Job]:
        """Wait until some lane can be read or written, and do that."""
        done: list[Job] = []
        with selectors.DefaultSelector() as selector:
            for lane in self._lanes:
                if lane.jobs:
                    selector.register(lane.read_fd, selectors.EVENT_READ, lane)
                if lane.wants_to_write:
                    selector.register(lane.write_fd, selectors.EVENT_WRITE, lane)
            for key, events in selector.select(GRACE_S):
                if key.data not in self._lanes:
                    continue  # it died while its other pipe was served: replaced, and its descriptors are closed
                if events & selectors.EVENT_WRITE:
                    key.data.flush()
                else:
                    done.extend(self._collect(key.data, waiting))
        now = time.monotonic()
        for lane in [lane for lane in self._lanes if lane.is_lost(now, GRACE_S)]:
            done.extend(self._revive(lane, waiting, "it fell silent"))
        return done

    def _collect(self, lane: Lane, waiting: Waiting) -> list[Job]:
        """Jobs that the lane has answered."""
        done: list[Job] = []
        try:
            frame = lane.receive()
        except ZygoteDied as death:
            return self._revive(lane, waiting, str(death))
        while frame is not None:
            job = lane.take(time.monotonic())
            if job.settle(judge(frame, job.expected, self.limits.cpu_s)):
                done.append(job)
            else:
                waiting[lane.hash_seed].append(job)
            frame = lane.next_frame()
        return done

    def _replace(self, lane: Lane) -> None:
        lane.kill()
        fresh = Lane(self.limits, lane.hash_seed)
        self._lanes[self._lanes.index(lane)] = fresh
        fresh.await_report()

    def _revive(self, lane: Lane, waiting: Waiting, why: str) -> list[Job]:
        """Replace a dead zygote. Its oldest job is the suspect: it runs once more, then it is given up."""
        self._replace(lane)
        suspect, *innocent = lane.jobs
        suspect.tries += 1
        waiting[lane.hash_seed].extendleft(reversed(innocent))
        if suspect.tries < MAX_TRIES:
            waiting[lane.hash_seed].append(suspect)
            return []
        suspect.results = [Result(Status.KILLED, message=f"the sandbox process died: {why}")] * suspect.expected
        return [suspect]
