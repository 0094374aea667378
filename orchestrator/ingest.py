"""Ingests events.jsonl into the store. An incomplete last line waits, and is dropped once its writer is dead."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from state import event_kinds
from state.facts import Line
from state.store import Store
from workers.contract import Event

MAX_BYTES = 8 << 20
"""Bytes read at a time; a longer backlog takes several turns."""

_decoder = msgspec.json.Decoder(Event)


def parse(chunk: bytes, offset: int) -> list[Line]:
    """Parse whole lines of events.jsonl that start at byte `offset`.

    An invalid line becomes an `unparsed` event. Its negative offset is its number, so that it is ingested only once.
    """
    lines = []
    for raw in chunk.splitlines(keepends=True):
        text = raw.decode("utf-8", "replace").rstrip("\n")
        try:
            event = _decoder.decode(raw)
            lines.append(Line(event.seq, event.type, event.step, event.t_wall, event.t_mono, event.data, text))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            data = {"text": f"unreadable line at byte {offset}: {error}", "line": text[:2000]}
            lines.append(Line(-offset - 1, event_kinds.UNPARSED.name, 0, 0.0, 0.0, data, text))
        offset += len(raw)
    return lines


def ingest(store: Store, token: str, events: Path) -> list[Line]:
    """Ingest everything written since the last call, up to the last newline. Returns the new lines."""
    offset = store.ingest_offset(token)
    try:
        with events.open("rb") as file:
            file.seek(offset)
            chunk = file.read(MAX_BYTES)
            if len(chunk) == MAX_BYTES and b"\n" not in chunk:
                chunk += file.readline()
    except FileNotFoundError:
        return []
    whole = chunk[: chunk.rfind(b"\n") + 1]
    if not whole:
        return []
    lines = parse(whole, offset)
    return store.ingest(token, lines, offset + len(whole))


def ingest_all(store: Store, token: str, events: Path) -> list[Line]:
    """Repeat `ingest` until no complete line is left, for a file whose writer is dead or waiting."""
    taken: list[Line] = []
    while lines := ingest(store, token, events):
        taken += lines
    return taken


def drop_torn_line(events: Path) -> int:
    """Truncate a last line without newline in a dead worker's file. Returns the number of bytes dropped."""
    try:
        with events.open("rb+") as file:
            content = file.read()
            torn = len(content) - (content.rfind(b"\n") + 1)
            if torn:
                file.truncate(len(content) - torn)
                os.fsync(file.fileno())
            return torn
    except FileNotFoundError:
        return 0
