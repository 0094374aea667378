"""Watches files for changes: by file system notifications where they work, otherwise by polling."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import psutil
from watchdog.events import FileCreatedEvent, FileModifiedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver
from watchdog.observers.polling import PollingObserver

LOOK_EVERY_S = 1.0
SILENT = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "fuse", "9p", "wekafs", "panfs")
"""Prefixes of file system types that do not notify one host of another's writes."""


def tells_of_changes(path: Path) -> bool:
    """Whether the file system of `path` notifies this host of changes by other hosts."""
    folders = [(partition.mountpoint, partition.fstype) for partition in psutil.disk_partitions(all=True)]
    around = [(folder, kind) for folder, kind in folders if path.resolve().is_relative_to(folder)]
    kind = max(around, default=("", ""), key=lambda one: len(one[0]))[1]
    return not kind.startswith(SILENT)


def watch(folder: Path, names: Collection[str], on_change: Callable[[], None]) -> BaseObserver:
    """Call `on_change` from a thread whenever one of these files is written. End it with `stop` and `join`.

    Raises OSError if the folder cannot be read.
    """
    handler = _Handler({str(folder / name) for name in names}, on_change)
    if tells_of_changes(folder):
        with suppress(OSError):  # this user has no inotify instance or watch left
            return _started(Observer(), handler, folder)
    return _started(PollingObserver(timeout=LOOK_EVERY_S), handler, folder)


def _started(observer: BaseObserver, handler: FileSystemEventHandler, folder: Path) -> BaseObserver:
    observer.schedule(handler, str(folder), event_filter=[FileCreatedEvent, FileModifiedEvent])
    try:
        observer.start()
    except OSError:
        observer.stop()
        raise
    return observer


class _Handler(FileSystemEventHandler):
    def __init__(self, paths: set[str], on_change: Callable[[], None]) -> None:
        self._paths, self._on_change = paths, on_change

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.src_path in self._paths:
            self._on_change()
