"""Writes docs/reliability.md: every kind of fault with how often it was tried, from the results of runs of the tests.

make reliability                      the tests of each submission, then the page
make reliability EXHAUSTIVE=1         every case, in hours
make reliability FAULTS=test_replay   some of them: the other rows stay as they are

A row shows the run that tried most, or the newest one in which something was lost.
"""

from __future__ import annotations

import re
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TRIED = "tried"
"""Name of the property with which a test says how many faults it made; a test without it made one."""


@dataclass(frozen=True)
class Row:
    """One kind of fault. sees: what the user is told. lost: the most that is lost. tests: a pattern, `file::name`."""

    fault: str
    sees: str
    lost: str
    tests: str


NOTHING = "nothing"
STEPS = "steps since the last checkpoint; finished rollouts are used again"

ROWS = (
    Row("master killed at any point of its work", "the next start goes on", STEPS, r"test_(master|sweep)::"),
    Row(
        "two hosts on one directory whose locks do not reach each other; one dies, or stands still and wakes up",
        "69 and which host holds the run; a dead one is followed after 45 s",
        STEPS,
        r"test_two_hosts::",
    ),
    Row(
        "the same on a real network file system (SFTP): each host has its own mount, caches and locks",
        "69 and which host holds the run; a dead one is followed after 45 s",
        STEPS,
        r"test_network_file_system::.*(host|died)",
    ),
    Row("master killed again while it recovers", "the next start goes on", STEPS, r"test_recovery::"),
    Row(
        "worker killed, hung, deaf, stopped or replaced", "the attempt's end, the next attempt", STEPS, r"test_worker::"
    ),
    Row(
        "power cut: only what was synced is on the disk",
        "the next start goes on",
        "steps since the last checkpoint that was reported",
        r"test_replay::test_power_fails_after_a_sync",
    ),
    Row(
        "power cut: any part of what was not synced is there",
        "the next start goes on",
        "steps since the last checkpoint that was reported",
        r"test_replay::test_power_fails_(at_any_call|after_every_call|after_some_calls)",
    ),
    Row(
        "power cut within the recovery from a power cut",
        "the next start goes on",
        "steps since the last checkpoint that was reported",
        r"test_replay::test_power_fails_again|test_power::",
    ),
    Row(
        "power cut in walk-back, migration, recover, backup, restore, prune, and with large checkpoints",
        "the command is typed again, or the next start goes on",
        "steps since the last checkpoint that was reported",
        r"test_replay_commands::",
    ),
    Row(
        "power cut while a real model is trained, evaluated or exported",
        "the same command goes on, or begins anew",
        "steps since the last checkpoint that was reported; for an export, all of it",
        r"test_replay_models::",
    ),
    Row(
        "power cut below ext4, xfs, btrfs: blocks missing, torn, out of order",
        "the next start goes on",
        "steps since the last checkpoint that was reported",
        r"test_blocks::.*fails",
    ),
    Row(
        "any of these and more, in simulated schedules",
        "as in the other rows",
        STEPS,
        r"test_simulation::.*defect",
    ),
    Row(
        "one call of the system fails (EIO, ENOSPC)", "three lines and 73 or 74, or nothing", STEPS, r"test_io_errors::"
    ),
    Row(
        "one call of `backup`, `archive` or `restore` fails",
        "three lines and a code; the command typed again completes",
        NOTHING,
        r"test_io_errors_of_commands::.*\[(backup|archive|restore)",
    ),
    Row(
        "one call of `export` or `evaluate` fails",
        "three lines and a code; the command typed again completes",
        NOTHING,
        r"test_io_errors_of_commands::.*\[(export|evaluate)",
    ),
    Row(
        "one call of another command fails (EIO, ENOSPC)",
        "three lines and a code; the command typed again completes",
        NOTHING,
        r"test_io_errors_of_commands::.*\[(?!backup|archive|restore|export|evaluate)",
    ),
    Row(
        "full disk", '`paused` with what is needed; 73 with `on_full_disk = "stop"`', STEPS, r"full_disk::|::test_D10_"
    ),
    Row("read-only file system, missing permission", "73 or 77 before any change", NOTHING, r"::test_D1[12]_"),
    Row("torn or doubled line of events", "the line, as unparsed", "that line", r"::test_D[123]_"),
    Row(
        "checkpoint rots, before or after it became the head",
        "`DAMAGED`, and from where the run goes on",
        "steps since the newest whole checkpoint",
        r"::test_D[45]_|test_large_checkpoints::.*damaged|test_scrub::.*rot",
    ),
    Row("large checkpoint: killed or stuck while it is hashed", "the next start hashes it", STEPS, r"hashe"),
    Row(
        "store lost, torn, overwritten or older than its run",
        "74 and `recover`",
        "times of attempts",
        r"test_store::.*_D[678]_|::test_D[67]_",
    ),
    Row("files of old cycles gone and the store lost", "`began from the back-up`", NOTHING, r"although_files_of_old"),
    Row(
        "everything checked and repaired by command",
        "`doctor --run NAME --repair`",
        NOTHING,
        r"test_scrub::test_doctor",
    ),
    Row("copy, move or link of a run directory", "that it is a copy", NOTHING, r"test_(copies|paths)::|::test_D1[34]_"),
    Row("second master", "69 and who holds the run", NOTHING, r"::test_E1_"),
    Row("another program locks the store", "who, and for how long the run waits", NOTHING, r"test_locks::"),
    Row("TERM to every process (a shutdown)", "the step ends, a checkpoint is saved", NOTHING, r"test_groups::"),
    Row("signals at any moment, bursts of them", "one checkpoint, one stop", NOTHING, r"test_requests::"),
    Row("terminal lost", "the log goes on", NOTHING, r"test_terminal::"),
    Row("wall clock set", "an event", NOTHING, r"test_clock::"),
    Row("bad numbers, crash loop, exhausted data", "76, 70, a verdict", "the steps named", r"test_numbers::"),
    Row("profile or model changed between starts", "66 with the line", NOTHING, r"::test_E[78]_"),
    Row(
        "real models: worker and master killed",
        "the digest of an unbroken run",
        STEPS,
        r"test_pocket(_grpo)?::|test_episodes::",
    ),
    Row("a rank of two lost", "the attempt's end, the next attempt", STEPS, r"test_ranks::"),
)

HEAD = """\
# Reliability

Written by `make reliability` from the results of runs of the tests; what is promised stands in
[operations](operations.md#what-is-promised). *Tried*: faults that were made, each followed by a start. *Survived*:
those after which the run ended with the digest, the steps and the scores of an undisturbed one, or refused as the table
says, with nothing touched. No traceback is allowed in any of them. *When*: the date of the run of the tests that a row
shows. `make faults` tries many times as many.

| fault | tried | survived | what the user sees | most that is lost | tests | when |
| --- | --- | --- | --- | --- | --- | --- |
"""
TAIL = """
## How it is tested

- **Kills** happen at named points of the code (`state/crash.py`), which a sweep reaches one after the other, in the
  master, in the worker and in a recovery.
- **Power cuts** are rebuilt from recorded system calls (`tests/faults/replay.py`): `kill -9` keeps what the kernel has
  not written yet. After some, real processes go on; after each, masters and workers of the simulator do, on the real
  files. What a command reported must be there if power fails right after.
- **Blocks** that a disk has not flushed are dropped, torn (at 4 KiB) and put out of order, below a real file system
  (`tests/faults/block_disk.py`).
- **The simulator** (`tests/faults/simulation`) runs master and workers in one process under a clock, a disk and
  processes that obey a seed. `python -m tests.faults.simulation SEED` plays one schedule again.
- **Failing calls** are made by strace (`tests/faults/test_io_errors.py` for a run, `test_io_errors_of_commands.py` for
  each command).
- After each, invariants are checked (`tests/faults/invariants.py`): one line of checkpoints from the head, every byte
  as hashed, nothing twice, nothing missing, no process left, a sound store.
- **Very long runs**: `python -m benchmarks soak` watches what grows. In 20,000 cycles of the fake trainer (two busy
  cores, 1.9 hours, 2026-11-26) entries of directories stayed at 1,148 to 1,157, descriptors at 12 to 15 and the threads
  at 1; the master took 46 to 64 ms of a core for each cycle, as many at the end as at the begin, and its memory rose
  ever more slowly, from 51 MiB to 62 MiB. The store grows by 5.4 kB a cycle.
- **Mutants**: with one sync, order or check taken out of the code, a test must fail (`tests/faults/test_mutants.py`).

Not tried: a disk that lies about fsync; NFS, SMB and Lustre themselves.
"""


@dataclass(frozen=True)
class Case:
    """name: `file::test`. tried: faults that it made."""

    name: str
    tried: int
    is_good: bool


def cases_of(junit: Path) -> list[Case]:
    """The tests in a file of pytest's `--junitxml`, without those that were skipped."""
    found = []
    for case in ElementTree.parse(junit).iter("testcase"):
        folder, _, file = case.get("classname", "").rpartition(".")
        if case.find("skipped") is not None or folder != "tests.faults":
            continue
        tried = {one.get("name"): one.get("value") for one in case.iter("property")}.get(TRIED) or "1"
        is_good = case.find("failure") is None and case.find("error") is None
        found.append(Case(f"{file}::{case.get('name')}", int(tried), is_good))
    return found


def page(cases: Sequence[Case], date: str, before: str = "") -> str:
    """The page. before: the page as it was, whose rows stay where they tell of more. (pure)"""
    known = {fault: text for text in before.splitlines() if (fault := text.partition(" | ")[0][2:])}
    rows = (newer(line(row, cases, date), known.get(row.fault, "")) for row in ROWS)
    return HEAD + "".join(f"{row}\n" for row in rows) + TAIL


def line(row: Row, cases: Iterable[Case], date: str) -> str:
    mine = [case for case in cases if re.search(row.tests, case.name)]
    tried, survived = sum(case.tried for case in mine), sum(case.tried for case in mine if case.is_good)
    files = ", ".join(sorted({f"`{case.name.split('::')[0]}`" for case in mine}))
    return f"| {row.fault} | {tried:,} | {survived:,} | {row.sees} | {row.lost} | {files} | {date} |"


def newer(now: str, before: str) -> str:
    """Of two lines for one row, the one that the page is to show. (pure)"""
    (tried, survived), (tried_before, _) = _counts(now), _counts(before)
    return before if before and tried == survived and tried < tried_before else now


def _counts(text: str) -> tuple[int, int]:
    cells = text.split(" | ")
    return (int(cells[1].replace(",", "")), int(cells[2].replace(",", ""))) if len(cells) > 2 else (0, 0)


def main(*results: Path, out: Path) -> None:
    """results: of one run, or of its parts; of a test that ran twice the last one counts."""
    before = out.read_text() if out.exists() else ""
    cases = {case.name: case for path in results for case in cases_of(path)}
    out.write_text(page(list(cases.values()), time.strftime("%Y-%m-%d", time.gmtime()), before))


if __name__ == "__main__":
    *found, last = map(Path, sys.argv[1:])
    main(*found, out=last)
