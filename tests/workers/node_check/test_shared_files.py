"""What nodes see of one directory: real processes of this host; a faulty file system is one that misbehaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests import REPOSITORY
from workers.node_check import shared_files
from workers.node_contract import EXCLUSIVE_FILES, NodeFacts

CHILD = """
import json, sys
from pathlib import Path
import msgspec
from workers.node_check import shared_files
from workers.node_contract import NodeFacts
shared_files.HERE_S, shared_files.STEP_S = 8.0, 8.0
{change}
facts = NodeFacts(int(sys.argv[2]), "n")
shared_files.examine(Path(sys.argv[1]), facts, int(sys.argv[3]))
print(json.dumps(msgspec.to_builtins(facts)))
"""
HONEST = ""


def examined(place: Path, changes: list[str], hosts: int) -> list[NodeFacts]:
    """changes: code that each process runs first."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD.format(change=change), str(place), str(host), str(hosts)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
        )
        for host, change in enumerate(changes)
    ]
    found = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    return [NodeFacts(**{**one, "pongs": one.get("pongs", [])}) for one in found]


def test_nodes_of_one_directory_see_each_other_and_each_file_has_one_winner(tmp_path: Path) -> None:
    found = examined(tmp_path, [HONEST] * 3, 3)
    assert [one.present for one in found] == [[0, 1, 2]] * 3
    assert sorted(number for one in found for number in one.won) == list(range(EXCLUSIVE_FILES))
    assert [one.locks for one in found[1:]] == [{"flock": "excluded", "fcntl": "excluded"}] * 2
    assert all(one.reads > 0 and one.torn == 0 for one in found[1:])
    assert [pong["host"] for pong in sorted(found[0].pongs, key=lambda one: one["host"])] == [1, 2]
    assert all(abs(pong["ahead_s"]) <= pong["round_trip_s"] for pong in found[0].pongs), "one host has one clock"


def test_a_host_that_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    (alone,) = examined(tmp_path, [HONEST], 2)
    assert alone.present == [0]


def test_a_replacement_that_is_no_rename_is_noticed(tmp_path: Path) -> None:
    in_place = """
def replace_whole(place, number):
    with (place / "whole").open("w") as file:
        for _ in range(64):
            file.write("ab"[number % 2] * 1024); file.flush()
shared_files.replace_whole = replace_whole"""
    _, reader = examined(tmp_path, [in_place, HONEST], 2)
    assert reader.torn > 0


def test_locks_and_exclusive_files_that_do_not_exclude_are_noticed(tmp_path: Path) -> None:
    careless = """
import contextlib
def holding(place, facts):
    for kind in shared_files.LOCKS:
        (place / f"lock-{kind}").touch()
    return contextlib.nullcontext()
shared_files.holding = holding
shared_files._creates = lambda path: True"""
    first, second = examined(tmp_path, [careless, "shared_files._creates = lambda path: True"], 2)
    assert second.locks == {"flock": "granted", "fcntl": "granted"}
    assert set(first.won) & set(second.won)


def test_a_clock_that_is_ahead_is_measured_by_one_clock(tmp_path: Path) -> None:
    ahead = "import time\nreal = time.time\nshared_files.time.time = lambda: real() + 100"
    first, _ = examined(tmp_path, [HONEST, ahead], 2)
    (pong,) = first.pongs
    assert abs(pong["ahead_s"] - 100) < 1


def test_a_file_with_parts_of_two_writings_is_not_whole(tmp_path: Path) -> None:
    assert not shared_files.is_whole(tmp_path)
    (tmp_path / "whole").write_text("a" * shared_files.WHOLE_BYTES)
    assert shared_files.is_whole(tmp_path)
    (tmp_path / "whole").write_text("a" * (shared_files.WHOLE_BYTES - 1) + "b")
    assert not shared_files.is_whole(tmp_path)
