"""Schedules the jobs of concurrent requests on the event loop, earliest deadline first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from workers.sandbox.job import Job
from workers.sandbox.lane import Lane
from workers.sandbox.lanes import GRACE_S, Lanes


class Overdue(Exception):
    """The deadline passed before a verdict, through no fault of the program."""


class Stopping(Exception):
    """The server is shutting down."""


@dataclass
class _Batch:
    """The jobs of one request."""

    left: int
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Dispatcher:
    """Owns the lanes while the event loop runs. Use it on that loop only."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._loop = asyncio.get_running_loop()
        self._queue: list[tuple[float, int, Job]] = []
        self._order = count()
        self._batches: dict[int, _Batch] = {}
        """Job number -> its request's batch, while the request waits for it."""
        self._watched: dict[int, Lane] = {}
        """Read descriptor -> its lane."""
        self._stopped = False
        self._watch_lanes()
        self._patrol = self._loop.call_later(GRACE_S, self._look_for_silent)

    @property
    def waiting(self) -> int:
        """Number of unfinished jobs that a request waits for."""
        return len(self._batches)

    async def run(self, jobs: Sequence[Job], deadline: float) -> None:
        """Run the jobs until all are settled or the deadline (on the loop's clock) passes.

        At the deadline, if any of these jobs ran out of its own time, the program is slow: returns normally, and the
        missing results count as timeouts. Otherwise raises Overdue. Raises Stopping when the server shuts down.
        """
        if self._stopped:
            raise Stopping
        if not jobs:
            return
        batch = _Batch(len(jobs))
        for job in jobs:
            self._batches[job.number] = batch
            heappush(self._queue, (deadline, next(self._order), job))
        self._pump()
        try:
            async with asyncio.timeout_at(deadline):
                await batch.done
        except TimeoutError:
            if not any(job.was_late or self._is_slow(job) for job in jobs):
                raise Overdue from None
        finally:
            for job in jobs:
                self._batches.pop(job.number, None)

    def stop(self) -> None:
        """Refuse new jobs, and raise Stopping in every waiting request."""
        self._stopped = True
        self._patrol.cancel()
        for batch in self._batches.values():
            if not batch.done.done():
                batch.done.set_exception(Stopping())

    def close(self) -> None:
        """Stop watching the lanes' descriptors."""
        for fd in self._watched:
            self._loop.remove_reader(fd)
        for lane in self._lanes:
            self._loop.remove_writer(lane.write_fd)

    def _is_slow(self, job: Job) -> bool:
        """Whether the job is running and has exceeded its CPU limit in wall time."""
        now = time.monotonic()
        return any(lane.running_s(job, now) > job.budget.cpu_s for lane in self._lanes)

    def _pump(self) -> None:
        """Hand out as many jobs as the lanes accept."""
        room = self._lanes.room
        while room > 0 and self._queue:
            job = heappop(self._queue)[2]
            if job.number in self._batches:
                self._lanes.waiting[job.hash_seed].append(job)
                room -= 1
        self._lanes.feed()
        for lane in self._lanes:
            if lane.wants_to_write:
                self._loop.add_writer(lane.write_fd, self._flush, lane)

    def _flush(self, lane: Lane) -> None:
        lane.flush()
        if not lane.wants_to_write:
            self._loop.remove_writer(lane.write_fd)

    def _read(self, lane: Lane) -> None:
        write_fd = lane.write_fd
        done = self._lanes.collect(lane)
        if lane not in self._lanes:
            self._loop.remove_writer(write_fd)
            self._watch_lanes()
        self._settle(done)

    def _look_for_silent(self) -> None:
        self._patrol = self._loop.call_later(GRACE_S, self._look_for_silent)
        given_up = self._lanes.replace_silent()
        self._watch_lanes()
        self._settle(given_up)

    def _settle(self, jobs: list[Job]) -> None:
        for job in jobs:
            batch = self._batches.pop(job.number, None)
            if batch is not None:
                batch.left -= 1
                if not batch.left and not batch.done.done():
                    batch.done.set_result(None)
        self._pump()

    def _watch_lanes(self) -> None:
        """Update the watched descriptors to the current lanes. A new lane may reuse an old one's descriptor."""
        for fd in [fd for fd, lane in self._watched.items() if lane not in self._lanes]:
            self._loop.remove_reader(fd)
            del self._watched[fd]
        for lane in self._lanes:
            if lane.read_fd not in self._watched:
                self._loop.add_reader(lane.read_fd, self._read, lane)
                self._watched[lane.read_fd] = lane
