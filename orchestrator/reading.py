"""Holds a checkpoint's files with links while a command reads them, because its run may prune it meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from orchestrator.evaluation.target import Chosen, hold, let_go
from state import durable
from state.layout import RunDir


@contextmanager
def held(run: RunDir, chosen: Chosen) -> Iterator[Path]:
    """A directory with the verified files of the checkpoint, except the optimiser's. Raises LonghaulError (INPUT)."""
    durable.make_dir(run.readers)
    sweep(run.readers)
    links = run.readers / f"{os.getpid()}-{chosen.target.step}"
    try:
        yield hold(chosen.directory, chosen.target.identity, links)
    finally:
        let_go(links)


def sweep(readers: Path) -> None:
    """Remove the links of killed commands."""
    for path in readers.iterdir():
        name = path.name.removeprefix(".").split("-")[0]
        if name.isdigit() and int(name) != os.getpid() and not psutil.pid_exists(int(name)):
            durable.remove_tree(path, readers)
