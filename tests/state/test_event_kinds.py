"""Kinds of events: every one that is declared is emitted, and nothing else can be."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from state import event_kinds
from state.event_kinds import BY_MASTER, BY_WORKERS, EventKind
from tests.test_architecture import sources, tree_of

DECLARED = {name: kind for name, kind in vars(event_kinds).items() if isinstance(kind, EventKind)}


def emitted() -> Iterator[str]:
    """What stands first in every call of `Attempt.event`."""
    for path in sources("workers"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "event":
                yield ast.unparse(node.args[0])


def test_workers_emit_each_kind_that_is_declared_and_no_other() -> None:
    assert set(emitted()) == {f"event_kinds.{name}" for name, kind in DECLARED.items() if kind in BY_WORKERS}


def test_every_kind_has_one_name_and_one_list() -> None:
    assert len({kind.name for kind in DECLARED.values()}) == len(DECLARED)
    assert sorted(DECLARED.values(), key=str) == sorted([*BY_WORKERS, *BY_MASTER], key=str)


def test_readers_compare_an_event_with_no_text_of_their_own() -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for path in sources("state", "orchestrator", "workers")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Compare) and ast.unparse(node.left) in ("line.type", "event.type")
        if any(isinstance(part, ast.Constant) for other in node.comparators for part in ast.walk(other))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "data", [{"path": "x", "digest": "d"}, {"path": "", "checkpoint_id": "", "digest": "", "x": 1}]
)
def test_data_with_other_fields_than_those_declared_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="an event 'checkpoint' has the fields"):
        event_kinds.CHECKPOINT.check(data)


def test_an_open_kind_has_its_fields_and_more() -> None:
    event_kinds.IMPORT.check({"text": "x", "read": 1})
    with pytest.raises(ValueError, match="text"):
        event_kinds.IMPORT.check({"read": 1})
