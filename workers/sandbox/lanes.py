"""All zygotes of a sandbox: queues jobs, hands them out, and replaces zygotes that die."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

from workers.sandbox.errors import SandboxRefused
from workers.sandbox.job import Job
from workers.sandbox.lane import Lane, ZygoteDied
from workers.sandbox.limits import Limits, refusal

AHEAD = 2
"""Jobs in flight per zygote: the next one is already in its pipe when it finishes the current one."""
MAX_TRIES = 2
"""A job is given up after this many attempts that killed its zygote."""
GRACE_S = 30.0
"""Seconds past the wall limit after which a silent zygote counts as lost."""


class Lanes:
    """A set of zygotes that run jobs. Never waits for a job: the owner waits on the lanes' descriptors.

    hash_seeds: one zygote is started per entry. Raises SandboxRefused if the machine lacks a required layer.
    """

    def __init__(self, limits: Limits, hash_seeds: Sequence[int]) -> None:
        self._limits = limits
        self._lanes: list[Lane] = []
        self.waiting: dict[int, deque[Job]] = {seed: deque() for seed in hash_seeds}
        """Jobs not yet handed out, keyed by hash seed."""
        try:
            self._lanes.extend(Lane(limits, seed) for seed in hash_seeds)
            for lane in self._lanes:
                lane.await_report()
            self.layers = dict(self._lanes[0].report["layers"])
            """Layer -> "ok", or why it is missing, as reported by the first zygote."""
            self.modules_failed = dict(self._lanes[0].report["modules_failed"])
            """Extra module -> why it failed to load. Programs cannot import it."""
            if reason := refusal(limits, self.layers):
                raise SandboxRefused(reason)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def __getitem__(self, place: int) -> Lane:
        return self._lanes[place]

    def __len__(self) -> int:
        return len(self._lanes)

    def close(self) -> None:
        """End every process. May be called again."""
        while self._lanes:
            self._lanes.pop().close()

    def abandon(self) -> None:
        """Drop every job. Busy zygotes are replaced: their late replies would be matched to later jobs."""
        for queue in self.waiting.values():
            queue.clear()
        for lane in [lane for lane in self._lanes if lane.jobs]:
            self._replace(lane)

    @property
    def room(self) -> int:
        """How many more jobs could be handed out now, after those already waiting."""
        return sum(AHEAD - len(lane.jobs) for lane in self._lanes) - sum(map(len, self.waiting.values()))

    def feed(self) -> None:
        """Hand out waiting jobs, emptiest lanes first."""
        for depth in range(1, AHEAD + 1):
            for lane in self._lanes:
                queue = self.waiting[lane.hash_seed]
                if queue and len(lane.jobs) < depth:
                    lane.give(queue.popleft(), time.monotonic())

    def collect(self, lane: Lane) -> list[Job]:
        """Read once from the lane and return the finished jobs. Replaces the lane if it died, changing the lanes."""
        done: list[Job] = []
        try:
            frame = lane.receive()
        except ZygoteDied as death:
            return self._revive(lane, str(death))
        while frame is not None:
            job = lane.take(time.monotonic())
            if job.settle(frame):
                done.append(job)
            else:
                self.waiting[lane.hash_seed].append(job)
            frame = lane.next_frame()
        return done

    def replace_silent(self) -> list[Job]:
        """Replace lanes that are long overdue; returns the jobs that were given up."""
        now = time.monotonic()
        silent = [lane for lane in self._lanes if lane.is_lost(now, GRACE_S)]
        return [job for lane in silent for job in self._revive(lane, "it fell silent")]

    def _replace(self, lane: Lane) -> None:
        lane.kill()
        fresh = Lane(self._limits, lane.hash_seed)
        self._lanes[self._lanes.index(lane)] = fresh
        fresh.await_report()

    def _revive(self, lane: Lane, why: str) -> list[Job]:
        """Replace a dead zygote. Its oldest job is the suspect: retried up to MAX_TRIES attempts, then given up."""
        self._replace(lane)
        if not lane.jobs:
            return []
        suspect, *innocent = lane.jobs
        suspect.tries += 1
        self.waiting[lane.hash_seed].extendleft(reversed(innocent))
        if suspect.tries < MAX_TRIES:
            self.waiting[lane.hash_seed].append(suspect)
            return []
        suspect.give_up(why)
        return [suspect]
