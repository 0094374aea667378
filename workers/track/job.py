"""Sends everything committed to the run's store since the last time to its trackers, once.

Only steps in a committed checkpoint are sent: a step that a crash undid would otherwise be sent twice. Nothing here can
stop the run: this process only reads, and a sink that fails is reported once and dropped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from state import durable
from state.layout import RunDir
from state.reader import Reader
from workers.line_contract import Note, TrackSpec
from workers.lines import Say
from workers.track.points import Kind, Point, flat
from workers.track.sinks import Sink, open_sink

KINDS: tuple[Kind, ...] = ("train", "validation")
CURSOR = "cursor.json"
PIECE = 1000
"""Steps that are held in memory at once."""


class Tracking:
    """Owns the working sinks, and the file with the progress of each."""

    def __init__(self, spec: TrackSpec, say: Say) -> None:
        self._spec, self._say = spec, say
        self._cursor_file = Path(spec.folder) / CURSOR
        self._written = read_cursor(self._cursor_file)
        self._sinks: dict[str, Sink] = {}
        for name in spec.trackers.use:
            self._written.setdefault(name, dict.fromkeys(KINDS, -1))
            with self._failures_of(name):
                self._sinks[name] = open_sink(name, spec, self._written[name])

    def catch_up(self) -> None:
        """Send every sink what it lacks. One that fails is dropped."""
        for name in list(self._sinks):
            with self._failures_of(name):
                self._send(name, self._sinks[name])

    def _send(self, name: str, sink: Sink) -> None:
        while points := self._read(name):
            after = self._written[name] | {point.kind: point.step for point in points}
            if not sink.repeats:
                self._remember(name, after)
            for point in points:
                sink.write(point)
            sink.flush()
            self._remember(name, after)

    def _read(self, name: str) -> list[Point]:
        """What comes next; a run that has long been without the sink takes many pieces."""
        with closing(Reader.open(RunDir(Path(self._spec.run_dir)))) as reader:
            return list(new_points(reader, self._written[name]))

    def _remember(self, name: str, written: dict[Kind, int]) -> None:
        self._written[name] = written
        durable.write_file(self._cursor_file, msgspec.json.encode(self._written))

    def close(self) -> None:
        for name, sink in list(self._sinks.items()):
            with self._failures_of(name):
                sink.close()

    def _failures_of(self, name: str) -> _Failures:
        return _Failures(self, name)

    def give_up(self, name: str, error: Exception) -> None:
        """Report why, once; the others and the run continue."""
        self._sinks.pop(name, None)
        logging.exception("%s failed", name)
        lines = str(error).strip().splitlines() or [""]
        self._say(Note(f"{name} gets nothing more: {type(error).__name__}: {lines[0][:300]}"))


class _Failures:
    """A block in which a sink may raise anything that its library raises."""

    def __init__(self, tracking: Tracking, name: str) -> None:
        self._tracking, self._name = tracking, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, Exception):
            self._tracking.give_up(self._name, error)
            return True
        return False


def new_points(reader: Reader, written: dict[Kind, int]) -> Iterator[Point]:
    """Committed steps and validations after those already written, in order; a step comes before its validation.

    At most PIECE steps, and the validations up to the last of them if there are more.
    """
    steps = reader.trained_after(written["train"], PIECE)
    last = steps[-1][0] if len(steps) == PIECE else None
    validations = reader.validated_after(written["validation"], last)
    found = [
        *(Point("train", step, at, flat(json.loads(metrics))) for step, at, metrics in steps),
        *(Point("validation", step, at, flat(suites)) for step, at, suites in validations),
    ]
    yield from sorted(found, key=lambda point: (point.step, point.kind))


def read_cursor(path: Path) -> dict[str, dict[Kind, int]]:
    """The progress of each sink; an unreadable file means starting over."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[Kind, int]])
    except (OSError, msgspec.MsgspecError):
        return {}
