"""Stores validation answers: one bit per problem. Checkpoints that share a problem set store its names once."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from state.history import AnswerBits

if TYPE_CHECKING:
    from sqlite_utils import Database


def insert_answers(db: Database, checkpoint_id: str, suite: str, answers: Mapping[str, AnswerBits]) -> None:
    """Rows of one validation on one suite. answers: task -> bits."""
    for task, one in answers.items():
        names = json.dumps(one.problems)
        set_id = hashlib.sha256(names.encode()).hexdigest()
        db.execute("INSERT OR IGNORE INTO problem_sets VALUES (?,?)", [set_id, names])
        size = (len(one.problems) + 7) // 8
        sampled = None if one.sampled is None else one.sampled.to_bytes(size, "little")
        db.execute(
            "INSERT INTO answers VALUES (?,?,?,?,?,?)",
            [checkpoint_id, suite, task, set_id, one.greedy.to_bytes(size, "little"), sampled],
        )


def answers_of(connection: sqlite3.Connection, first_cycle: int) -> dict[tuple[int, str], dict[str, AnswerBits]]:
    """(cycle, suite) -> task -> bits, for validations from `first_cycle` on. Equal problem sets share one tuple."""

    @cache
    def problems(set_id: str) -> tuple[str, ...]:
        row = connection.execute("SELECT problems FROM problem_sets WHERE set_id=?", [set_id]).fetchone()
        return tuple(json.loads(row[0]))

    found: dict[tuple[int, str], dict[str, AnswerBits]] = {}
    for cycle, suite, task, set_id, greedy, sampled in connection.execute(
        "SELECT v.cycle, a.suite, a.task, a.set_id, a.greedy, a.sampled FROM answers a"
        " JOIN validations v USING (checkpoint_id, suite) WHERE v.cycle >= ?",
        [first_cycle],
    ):
        bits = AnswerBits(
            problems(set_id),
            int.from_bytes(greedy, "little"),
            None if sampled is None else int.from_bytes(sampled, "little"),
        )
        found.setdefault((cycle, suite), {})[task] = bits
    return found
