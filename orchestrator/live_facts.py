"""Collects the live facts that only the master knows, for the screen."""

from __future__ import annotations

import os

import psutil

from orchestrator.alive import rss_bytes
from orchestrator.display.view import Live
from orchestrator.schedule import Train
from orchestrator.worker_pool import Active, WorkerPool

MEMORY_INTERVAL_S = 2.0


class LiveFacts:
    """Remembers when the current step began, and the last memory measurement."""

    def __init__(self) -> None:
        self._step_began: tuple[int, float] = (-1, 0.0)
        """The step in progress and when it was first seen (monotonic)."""
        self._measured_at = 0.0
        self._worker_rss: int | None = None
        self._master_rss = 0

    def at(self, now: float, pool: WorkerPool, *, waiting_until: float | None, note: str) -> Live:
        """now and waiting_until are monotonic. note: a short message to the user."""
        active, standby = pool.active, next(iter(pool.standbys), None)
        self._measure_memory(active, now)
        if active is not None and active.worker.step != self._step_began[0]:
            self._step_began = (active.worker.step, active.worker.watch.progress_at)
        return Live(
            master_pid=os.getpid(),
            worker_pid=active.worker.handle.pid or None if active else None,
            role=active.attempt.role if active else "",
            stage=active.worker.watch.stage if active else "",
            step=active.worker.step if active and isinstance(active.action, Train) else None,
            step_started=self._step_began[1] if active else None,
            worker_rss_bytes=self._worker_rss,
            master_rss_bytes=self._master_rss,
            standby="" if standby is None else ("warm" if standby.watch.ready else "warming"),
            waiting_until=waiting_until,
            note=note,
            now=now,
        )

    def _measure_memory(self, active: Active | None, now: float) -> None:
        if now - self._measured_at < MEMORY_INTERVAL_S:
            return
        self._measured_at = now
        self._worker_rss = rss_bytes(active.worker.handle.pid) if active else None
        self._master_rss = int(psutil.Process().memory_info().rss)
