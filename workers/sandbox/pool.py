"""`Sandbox` runs many programs in parallel: it spreads jobs over zygotes and returns results in order."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import count
from threading import RLock
from types import TracebackType
from typing import Self

from workers.sandbox.job import Calls, Job, Prepared, ScriptJob, script_reason
from workers.sandbox.lanes import GRACE_S, Lanes
from workers.sandbox.limits import Limits
from workers.sandbox.result import Case, Result, Script, ScriptResult, Statements, Status
from workers.sandbox.verdict import agree

HASH_SEEDS = (0, 1)


class Sandbox:
    """Runs untrusted programs. Create it before opening locks, databases or GPUs.

    jobs: programs that run in parallel; starts this many zygotes for each of the two hash seeds.
    A context manager. Thread-safe: one thread works at a time.
    Raises SandboxRefused if the machine lacks a layer that the limits require.
    """

    def __init__(self, limits: Limits | None = None, jobs: int = 2) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, is {jobs}")
        self.limits = limits or Limits()
        self._num_jobs = jobs
        self._lock = RLock()
        self._numbers = count()
        self._closed = self._busy = False
        self._lanes = Lanes(self.limits, [seed for seed in HASH_SEEDS for _ in range(jobs)])

    def with_scripts(self) -> Sandbox:
        """Another sandbox with the same limits that also runs scripts."""
        return Sandbox(replace(self.limits, scripts=True), self._num_jobs)

    @property
    def layers(self) -> dict[str, str]:
        """Layer -> "ok", or why it is missing."""
        return self._lanes.layers

    @property
    def modules_failed(self) -> dict[str, str]:
        """Extra module -> why it failed to load. Programs cannot import it."""
        return self._lanes.modules_failed

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
            self._lanes.close()

    def execute(self, program: str, inputs: str, entry: str = "f") -> Result:
        """Run `entry(inputs)` in its own process. `inputs`: source text of the arguments, literals only."""
        return self.execute_many([Case(program, (inputs,), entry)])[0][0]

    def execute_many(self, cases: Sequence[Case]) -> list[list[Result]]:
        """Results of each case, in the order of cases and inputs. All inputs of a case share one process."""
        results: list[list[Result]] = [[] for _ in cases]
        for place, found in self.stream(cases):
            results[place] = found
        return results

    def stream(self, cases: Sequence[Case]) -> Iterator[tuple[int, list[Result]]]:
        """Yield (case index, its results) as cases complete."""
        prepared = [Prepared.of(case) for case in cases]
        jobs = [self._job(one, repeat=1, hash_seed=0) for one in prepared]
        for place, job in enumerate(jobs):
            if job is None:
                yield place, prepared[place].merge([])
        jobs_by_number = {job.number: (place, job) for place, job in enumerate(jobs) if job is not None}
        # Close explicitly: Python 3.12 keeps a closed generator's frame alive, so its inner iterator would stay open.
        with contextlib.closing(self._run([job for job in jobs if job is not None])) as done:
            for ended in done:
                place, job = jobs_by_number[ended.number]
                yield place, prepared[place].merge(job.results)

    def run_scripts(self, scripts: Sequence[Script]) -> list[ScriptResult]:
        """Run each script in its own process; results are in order. Raises ValueError without `Limits.scripts`."""
        return self.run_many((), scripts)[1]

    def run_many(
        self, cases: Sequence[Case | Statements], scripts: Sequence[Script] = ()
    ) -> tuple[list[list[Result]], list[ScriptResult]]:
        """Run all of them side by side: the results of each case or statement, and of each script, in order.

        Each case, each `Statements` and each script has a process of its own. Raises ValueError for scripts without
        `Limits.scripts`.
        """
        if scripts and not self.limits.scripts:
            raise ValueError("this sandbox was made without Limits.scripts")
        prepared = [Prepared.of(one) if isinstance(one, Case) else Prepared.of_statements(one) for one in cases]
        calls = [self._job(one, repeat=1, hash_seed=0) for one in prepared]
        found = [ScriptResult(Status.REJECTED, message=script_reason(script) or "") for script in scripts]
        whole = {
            place: ScriptJob(next(self._numbers), 0, script.budget or self.limits.budget, script)
            for place, script in enumerate(scripts)
            if not found[place].message
        }
        for _ in self._run([*(job for job in calls if job is not None), *whole.values()]):
            pass
        for place, script_job in whole.items():
            assert script_job.result is not None
            found[place] = script_job.result
        return [one.merge(job.results if job else []) for one, job in zip(prepared, calls, strict=True)], found

    def check_deterministic(self, program: str, inputs: str, entry: str = "f") -> Result:
        """Like `execute`, but `nondeterministic` unless two calls in one process and one in another agree.

        The second process is forked from a different Python start, with another hash seed and other addresses.
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

    def _job(self, prepared: Prepared, repeat: int, hash_seed: int) -> Calls | None:
        if not prepared.inputs:
            return None
        budget = prepared.case.budget or self.limits.budget
        return Calls(next(self._numbers), hash_seed, budget, prepared.case, prepared.inputs, repeat)

    def _run(self, jobs: Sequence[Job]) -> Generator[Job]:
        """Run every job; yield each one when its results are ready."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the sandbox is closed")
            if self._busy:
                raise RuntimeError("a stream of this sandbox is still open in this thread")
            self._busy = True
            for job in jobs:
                self._lanes.waiting[job.hash_seed].append(job)
            left = len(jobs)
            try:
                while left:
                    self._lanes.feed()
                    for job in self._turn():
                        left -= 1
                        yield job
            finally:
                self._lanes.abandon()  # jobs remain if the caller stopped early (exception, Ctrl+C)
                self._busy = False

    def _turn(self) -> list[Job]:
        """Wait until a lane can be read or written, serve it, and return the finished jobs."""
        done: list[Job] = []
        with selectors.DefaultSelector() as selector:
            for lane in self._lanes:
                if lane.jobs:
                    selector.register(lane.read_fd, selectors.EVENT_READ, lane)
                if lane.wants_to_write:
                    selector.register(lane.write_fd, selectors.EVENT_WRITE, lane)
            for key, events in selector.select(GRACE_S):
                if key.data not in self._lanes:
                    continue  # replaced while its other pipe was served; its descriptors are closed
                if events & selectors.EVENT_WRITE:
                    key.data.flush()
                else:
                    done.extend(self._lanes.collect(key.data))
        return done + self._lanes.replace_silent()
