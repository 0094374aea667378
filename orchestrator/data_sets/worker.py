"""The data worker, as `data` and the end of a run start it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from orchestrator.line_worker import DOCTOR, LineWorker, started
from workers.line_contract import DataSpec

KEPT = "the data set, unchanged, and all sources"


def data_worker(spec: DataSpec, owner: str = "data") -> AbstractContextManager[LineWorker]:
    """Leaving the block ends it, whatever it does: it writes whole files or none. owner: as of `started`."""
    return started(
        "workers.data",
        spec,
        name="data",
        kept=KEPT,
        owner=owner,
        next_command=f"{DOCTOR}   then the same command again; it resumes from complete files",
    )
