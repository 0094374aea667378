"""Trackers: TensorBoard's files, Weights & Biases, trackio. A library is imported when its sink is opened.

Each may raise whatever its library raises; the caller reports it once and continues without the sink.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from workers.line_contract import TrackSpec
from workers.track.points import Kind, Point

EVENT_FILES = (
    ("tensorboard", "tensorboard.summary.writer.record_writer", "tensorboard.compat.proto"),
    ("tensorboardX", "tensorboardX.record_writer", "tensorboardX.proto"),
)
"""Libraries that write TensorBoard's files; the first that is installed supplies records and formats. Their own event
writers are unsuitable: both write from a thread, and tensorboardX names files by the second and overwrites."""


class Sink(Protocol):
    """One tracker. repeats: it ignores duplicates, so points may be sent before progress is recorded."""

    repeats: bool

    def write(self, point: Point) -> None: ...

    def flush(self) -> None:
        """Make what was written durable, or at least send it."""

    def close(self) -> None: ...


class TensorBoard:
    """Event files in one folder per kind of point, one file per process that wrote."""

    repeats = True

    def __init__(self, folder: Path, written: dict[Kind, int]) -> None:
        """written: last step of each kind known to be stored; TensorBoard hides everything after it as lost."""
        # tensorboardX imports torch if it can, for charts that we do not draw: 3 s and 300 MB.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
        found = next((three for three in EVENT_FILES if importlib.util.find_spec(three[0])), None)
        if found is None:
            raise ImportError("neither tensorboard nor tensorboardX is installed")
        library, records, formats = found
        self._events: Any = importlib.import_module(f"{formats}.event_pb2")
        self._summaries: Any = importlib.import_module(f"{formats}.summary_pb2")
        make: Any = importlib.import_module(records).RecordWriter
        self._records: dict[Kind, Any] = {}
        for kind, step in written.items():
            (folder / kind).mkdir(mode=0o700, parents=True, exist_ok=True)
            path = folder / kind / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
            self._records[kind] = make(path.open("xb") if library == "tensorboard" else str(path))
            self._add(kind, wall_time=time.time(), file_version="brain.Event:2")
            if step >= 0:
                start = self._events.SessionLog(status=self._events.SessionLog.START)
                self._add(kind, wall_time=time.time(), step=step + 1, session_log=start)

    def _add(self, kind: Kind, **fields: Any) -> None:
        self._records[kind].write(self._events.Event(**fields).SerializeToString())

    def write(self, point: Point) -> None:
        value = self._summaries.Summary.Value
        values = [value(tag=name, simple_value=number) for name, number in point.values.items()]
        self._add(point.kind, wall_time=point.at, step=point.step, summary=self._summaries.Summary(value=values))

    def flush(self) -> None:
        for records in self._records.values():
            records.flush()

    def close(self) -> None:
        for records in self._records.values():
            records.close()


class Wandb:
    """A Weights & Biases run with our run's id, so that a resume continues it."""

    repeats = True
    """It ignores any step that is not later than the last."""

    def __init__(self, spec: TrackSpec) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._run = wandb.init(
            project=spec.trackers.project,
            name=spec.name,
            id=spec.run_id,
            resume="allow",
            dir=spec.folder,
            mode=spec.trackers.wandb_mode,
            config=spec.config,
        )

    def write(self, point: Point) -> None:
        values = {f"{point.kind}/{name}": number for name, number in point.values.items()}
        self._run.log(values, step=max(0, point.step), commit=False)

    def flush(self) -> None:
        """Nothing to do: it sends by itself. A validation joins its step, which the next step's first number
        commits."""

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A run of trackio, in its own folder on this machine: `trackio show` finds it."""

    repeats = False

    def __init__(self, spec: TrackSpec) -> None:
        trackio: Any = importlib.import_module("trackio")
        self._trackio = trackio
        trackio.init(project=spec.trackers.project, name=spec.name, resume="allow", config=spec.config)

    def write(self, point: Point) -> None:
        values = {f"{point.kind}/{name}": number for name, number in point.values.items()}
        self._trackio.log(values, step=max(0, point.step))

    def flush(self) -> None:
        """Nothing to do: it sends by itself."""

    def close(self) -> None:
        self._trackio.finish()


def open_sink(name: str, spec: TrackSpec, written: dict[Kind, int]) -> Sink:
    if name == "tensorboard":
        return TensorBoard(Path(spec.tensorboard), written)
    return Wandb(spec) if name == "wandb" else Trackio(spec)
