"""Stores events from workers as rows. A repeated event changes nothing; a conflicting one is an error."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiles.metrics import LOSS, REWARD, SECONDS, TOKENS
from state import event_kinds

if TYPE_CHECKING:
    from sqlite_utils import Database


@dataclass(frozen=True)
class Line:
    """One parsed line of events.jsonl. text: the raw line."""

    seq: int
    type: str
    step: int
    t_wall: float
    t_mono: float
    data: dict[str, Any]
    text: str


class ConflictingEvent(Exception):
    """The same (cycle, attempt, seq) arrived with a different payload: a bug or a tampered file."""

    def __init__(self, what: str, line: Line) -> None:
        super().__init__(what)
        self.what, self.line = what, line

    def as_line(self) -> Line:
        """A `conflict` line to store instead. Its number is a hash of the content, so repeats are stored once."""
        number = -(1 << 62) + int.from_bytes(hashlib.sha256(self.line.text.encode()).digest()[:6])
        data = {"text": self.what, "line": self.line.text[:2000]}
        return Line(
            number, event_kinds.CONFLICT.name, self.line.step, self.line.t_wall, self.line.t_mono, data, self.line.text
        )


def insert_line(db: Database, cycle: int, role: str, attempt: int, line: Line) -> None:
    """Insert the line into the table for its type. Raises ConflictingEvent without changing anything."""
    if line.type == event_kinds.STEP.name:
        insert_step(db, cycle, attempt, line)
    elif line.type == event_kinds.EXAMPLES.name:
        insert_examples(db, cycle, attempt, line)
    else:
        insert_event(db, cycle, role, attempt, line)
        if line.type == event_kinds.RESTARTED.name:
            forget_steps(db, cycle, attempt, line)


def insert_event(db: Database, cycle: int, role: str, attempt: int, line: Line) -> None:
    key = [cycle, role, attempt, line.seq]
    known = db.execute("SELECT payload FROM events WHERE cycle=? AND role=? AND attempt=? AND seq=?", key).fetchone()
    payload = json.dumps(line.data, sort_keys=True)
    if known is not None:
        if known[0] != payload:
            raise ConflictingEvent(f"event {line.seq} came twice and differs; the first is kept", line)
        return
    db.execute(
        "INSERT INTO events VALUES (?,?,?,?,?,?,?,?,?)",
        [*key, line.type, line.step, line.t_wall, line.t_mono, payload],
    )


def insert_step(db: Database, cycle: int, attempt: int, line: Line) -> None:
    key = [line.step, cycle, attempt]
    metrics = json.dumps(line.data, sort_keys=True)
    known = db.execute("SELECT seq, metrics FROM steps WHERE step=? AND cycle=? AND attempt=?", key).fetchone()
    if known is not None:
        if tuple(known) != (line.seq, metrics):
            raise ConflictingEvent(f"step {line.step} came twice and differs; the first is kept", line)
        return
    get = line.data.get
    values = [get(SECONDS.name), get(REWARD.name), get(LOSS.name), int(get(TOKENS.name) or 0)]
    db.execute(
        "INSERT INTO steps (step, cycle, attempt, seq, seconds, reward, loss, tokens, metrics, t_wall)"
        " VALUES (?,?,?,?,?,?,?,?,?,?)",
        [*key, line.seq, *values, metrics, line.t_wall],
    )


def forget_steps(db: Database, cycle: int, attempt: int, line: Line) -> None:
    """Those that no checkpoint holds and that were reported before `line`: the restarted job does them again."""
    db.execute(
        "DELETE FROM steps WHERE cycle=? AND attempt=? AND step>? AND seq<? AND trained=0",
        [cycle, attempt, line.step, line.seq],
    )


def insert_examples(db: Database, cycle: int, attempt: int, line: Line) -> None:
    for example in line.data.get("tasks", ()):
        db.execute(
            "INSERT OR IGNORE INTO examples VALUES (?,?,?,?,?,?,?,?,?)",
            [
                example_id(example["task"], example["program"], example["input"]),
                example["task"],
                cycle,
                attempt,
                line.step,
                example["program"],
                example["input"],
                example["output"],
                example.get("solve_rate"),
            ],
        )


def example_id(task: str, program: str, inputs: str) -> str:
    """Identity of a task. Workers send programs in normal form."""
    return hashlib.sha256(f"{task}\0{program}\0{inputs}".encode()).hexdigest()
