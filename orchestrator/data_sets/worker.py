"""Starts the data worker for `data` and for the end of a run."""

from __future__ import annotations

from contextlib import AbstractContextManager

from orchestrator.line_worker import DOCTOR, LineWorker, started
from workers.line_contract import DataSpec

KEPT = "the data set and all sources, unchanged"


def data_worker(spec: DataSpec, owner: str = "data") -> AbstractContextManager[LineWorker]:
    """Leaving the block ends the worker, which is safe: it writes only complete files. owner: see `started`."""
    return started(
        "workers.data",
        spec,
        name="data",
        kept=KEPT,
        owner=owner,
        next_command=f"{DOCTOR}   then the same command again; it resumes from complete files",
    )
