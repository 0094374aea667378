"""Rows D1 to D5: files on disk are torn, duplicated, changed or damaged."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants, ending

KILLED = -signal.SIGKILL


def killed_with_open_events(run: Scene) -> Path:
    """A master that died while the first cycle was open; the events of its attempt."""
    run.finish("commit.after:3", code=KILLED)
    run.wait_until_nobody_is_left()
    return run.run.attempt(1, 1).events


def test_D1_torn_last_line_is_dropped_and_the_rest_kept(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        events = killed_with_open_events(run)
        whole = events.read_bytes()
        events.write_bytes(whole + b'{"seq":99,"type":"ste')
        run.finish()
        assert events.read_bytes() == whole
        assert "of a torn event dropped" in run.one("SELECT message FROM attempts WHERE cycle=1 AND attempt=1")
        check_invariants(run, clean.ending)


def write_while_it_trains(run: Scene, make: Callable[[list[dict[str, Any]]], bytes]) -> str:
    """Append `make(events so far)` to the events of a worker that goes on writing; what the master said."""
    master = run.start()
    master.wait_for_line("checkpoint of step 2 is durable")
    events = run.run.attempt(1, 1).events
    so_far = [json.loads(line) for line in events.read_bytes().splitlines()]
    with events.open("ab") as file:
        file.write(make(so_far))
    assert master.end() == 0, master.text()
    return master.out.read_text()


def test_D2_bad_line_in_the_middle_is_kept_as_unparsed_and_shown(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.1) as run:
        said = write_while_it_trains(run, lambda _: b"\x00\xffnot an event\n")
        (unparsed,) = run.events("unparsed")
        assert "not an event" in unparsed["line"]
        assert "unparsed: unreadable line at byte" in said
        check_invariants(run, clean.ending)


def test_D3_same_event_twice_is_ignored(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.1) as run:
        write_while_it_trains(run, lambda known: b"".join(json.dumps(event).encode() + b"\n" for event in known))
        assert not run.events("conflict")
        check_invariants(run, clean.ending)


def test_D3_same_event_with_another_payload_is_told_loudly_and_the_first_stays(clean: Clean, tmp_path: Path) -> None:
    def forged(known: list[dict[str, Any]]) -> bytes:
        step = next(event for event in known if event["type"] == "step")
        step["data"]["loss"] = -1.0
        started = next(event for event in known if event["type"] == "started")
        started["data"]["versions"] = {}
        return b"".join(json.dumps(event).encode() + b"\n" for event in (step, started))

    with scene(tmp_path / "run", fake__step_s=0.1) as run:
        said = write_while_it_trains(run, forged)
        assert len(run.events("conflict")) == 2
        assert "conflict: step 1 came twice and differs; the first is kept" in said
        check_invariants(run, clean.ending)


def flip_a_bit(directory: Path) -> None:
    file = directory / "weights.json"
    content = bytearray(file.read_bytes())
    content[1] ^= 1
    file.write_bytes(content)


def cut_short(directory: Path) -> None:
    file = directory / "rng.json"
    file.write_bytes(file.read_bytes()[:-1])


def remove_manifest(directory: Path) -> None:
    (directory / "MANIFEST.json").unlink()


def remove_all(directory: Path) -> None:
    shutil.rmtree(directory)


DAMAGE = [
    flip_a_bit,
    remove_all,
    pytest.param(cut_short, marks=pytest.mark.exhaustive),
    pytest.param(remove_manifest, marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_D4_newest_checkpoint_damaged_walks_back_and_says_so(
    damage: Callable[[Path], None], clean: Clean, tmp_path: Path
) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        head = run.head_dir()
        damage(head)
        said = run.finish().out.read_text()
        assert "DAMAGED HEAD, going on from c0001-s000004" in said
        if damage is not remove_all:
            assert (run.run.quarantine / f"{head.name}.WHY").read_text().strip()
        check_invariants(run, clean.ending)


def test_D4_damage_over_several_cycles_does_each_of_them_again(tmp_path: Path) -> None:
    knobs = {"run__max_cycles": 3, "run__steps_per_cycle": 2, "retention__keep_ancestors": 9}
    with scene(tmp_path / "run", **knobs) as run:
        run.finish()
        undisturbed = ending(run)
        for directory in run.run.checkpoints.glob("c000[23]-*"):
            flip_a_bit(directory)
        run.finish()
        check_invariants(run, undisturbed)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("recover.before_quarantine", marks=pytest.mark.exhaustive),
        "recover.after_quarantine",
        pytest.param("store.before_commit", marks=pytest.mark.exhaustive),
    ],
)
def test_D4_killed_during_the_walk_back_walks_back_all_the_same(point: str, clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        flip_a_bit(run.head_dir())
        run.finish(f"{point}:1", code=KILLED)
        run.finish()
        check_invariants(run, clean.ending)


def test_D4_damage_found_with_a_finished_validation_does_not_score_the_ancestor(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish("attempt.before_close:4", code=KILLED)
        run.wait_until_nobody_is_left()
        flip_a_bit(run.head_dir())
        run.finish()
        check_invariants(run, clean.ending)


def test_D4_damage_found_with_an_attempt_of_the_next_cycle_open(tmp_path: Path) -> None:
    with scene(tmp_path / "other", run__max_cycles=2) as other, scene(tmp_path / "run", run__max_cycles=2) as run:
        other.finish()
        run.finish("attempt.started:5", code=KILLED)
        run.wait_until_nobody_is_left()
        flip_a_bit(run.head_dir())
        run.finish()
        assert [state for state, *_ in run.attempts(cycle=2)][-1] == "succeeded"
        check_invariants(run, ending(other))


def test_D5_all_checkpoints_damaged_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    with scene(tmp_path / "run") as run:
        run.finish()
        names = sorted(path.name for path in run.run.checkpoints.iterdir())
        for name in names:
            flip_a_bit(run.run.checkpoints / name)
        error = run.finish(code=74).err.read_text()
        assert all(name in error for name in names)
        assert sorted(path.name for path in run.run.checkpoints.iterdir()) == names
        assert not list(run.run.quarantine.iterdir())
        assert run.head_step() == 6
