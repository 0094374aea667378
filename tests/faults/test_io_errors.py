"""Any call of the system may fail: a run or a command ends with three lines and a code of its own, or goes on.

strace makes the nth call of a kind fail in each process. Only failures of calls on the run's files count.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.faults.conftest import Clean
from tests.faults.harness import faults, scene
from tests.faults.invariants import check_invariants

WRITING = ("write", "pwrite64", "ftruncate", "fallocate", "fsync", "fdatasync", "rename", "unlink", "rmdir", "mkdir")
READING = ("openat", "read", "pread64", "newfstatat", "getdents64")
SHARED = frozenset({*READING, "write", "fcntl"})
"""Calls that processes also make on other files than the run's."""
FULL = frozenset({"write", "pwrite64", "ftruncate", "fallocate", "mkdir", "rename", "openat"})
"""Calls that a full disk refuses."""
ENDINGS = frozenset({ExitCode.OK, ExitCode.DISK, ExitCode.STORE, ExitCode.INPUT, ExitCode.INTERNAL})
_BEGUN = re.compile(r"^(\d+) +(\w+)\((.*)")
_TRIES = 6
"""Places drawn until one hits a file of the run."""


def seen(log: Path) -> Iterator[tuple[int, str, str]]:
    """(process, call, the whole line) of each call in a trace, in the order of their beginnings."""
    for line in log.read_text(errors="replace").splitlines():
        if found := _BEGUN.match(line):
            yield int(found[1]), found[2], line


def places(log: Path, root: Path) -> Mapping[str, list[int]]:
    """Call -> its numbers, counted for each process, at which it touched a file below `root`."""
    count: Counter[tuple[int, str]] = Counter()
    found: dict[str, set[int]] = defaultdict(set)
    for process, call, line in seen(log):
        count[process, call] += 1
        if str(root) in line:
            found[call].add(count[process, call])
    return {call: sorted(numbers) for call, numbers in found.items()}


def failed_on(log: Path) -> list[str]:
    """What each injected failure hit: the line on which the call began."""
    begun: dict[str, str] = {}
    hit = []
    for line in log.read_text(errors="replace").splitlines():
        process = line.split(" ", 1)[0]
        if _BEGUN.match(line):
            begun[process] = line
        if "(INJECTED)" in line:
            hit.append(begun.get(process, ""))
    return hit


def strace(log: Path, *options: str) -> list[str]:
    if shutil.which("strace") is None:
        pytest.skip("failing calls need strace")
    return ["strace", "-f", "-y", "-o", str(log), *(part for option in options for part in ("-e", option))]


def injecting(log: Path, call: str, error: str, number: int) -> list[str]:
    return strace(log, f"trace={call}", f"inject={call}:error={error}:when={number}")


def is_judged(call: str, hit: list[str], root: Path) -> bool:
    """Whether a failure hit a file of the run and none another file, such as one of Python's."""
    return bool(hit) and (call not in SHARED or all(str(root) in line for line in hit))


def check_words(code: int, out: str, err: str, what: str) -> None:
    """It ended well, or with three lines and a code of its own."""
    text = f"{what}\nexit {code}\n{out[-2000:]}\n{err[-4000:]}"
    assert "Traceback" not in out + err, text
    assert code in ENDINGS, text
    if code not in (ExitCode.OK,) and "error:" in err:
        starts = [line.split(":")[0] for line in err.splitlines()]
        assert {"error", "kept", "next"} <= set(starts), text


@dataclass(frozen=True)
class Recorded:
    places: Mapping[str, list[int]]


# --- a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("places")
    with scene(folder / "run") as run:
        calls = ",".join((*WRITING, *READING))
        master = run.launch([*strace(folder / "trace", f"trace={calls}"), *run.command("--plain")])
        assert master.end() == 0, master.text()
        return Recorded(places(folder / "trace", run.root / "runs"))


def try_run(call: str, error: str, number: int, clean: Clean, folder: Path) -> bool:
    """One run with one failing call, then one without. Whether the failure hit a file of the run."""
    with scene(folder / f"{call}-{number}") as run:
        log = run.root / "trace"
        run.root.mkdir(parents=True)
        master = run.launch([*injecting(log, call, error, number), *run.command("--plain")])
        code, hit = master.end(), failed_on(log)
        if not is_judged(call, hit, run.root):
            return False
        what = f"{call} {error} {number}: {hit}"
        faults.append(what)
        check_words(code, master.out.read_text(), master.err.read_text(), what)
        if code == ExitCode.STORE:
            mended = run.ask("recover")
            assert mended.returncode == 0, f"{what}\n{mended.stderr}"
        again = run.start()
        assert again.end() == 0, f"{what}\n{again.text()}"
        check_invariants(run, clean.ending)
    return True


FAILURES = [(call, error) for call in (*WRITING, *READING) for error in ("EIO", *(["ENOSPC"] if call in FULL else []))]
QUICK = {("fsync", "EIO"), ("rename", "EIO"), ("pwrite64", "ENOSPC"), ("read", "EIO"), ("mkdir", "EIO")}


@pytest.mark.parametrize(
    ("call", "error"),
    [pytest.param(*one, marks=[] if one in QUICK else pytest.mark.exhaustive) for one in FAILURES],
)
def test_a_run_survives_a_call_that_fails(
    call: str, error: str, recorded: Recorded, clean: Clean, tmp_path: Path
) -> None:
    draws = Random(f"{call} {error}")
    numbers = recorded.places.get(call, [])
    if not numbers:
        pytest.skip(f"a run makes no {call}")
    for number in draws.sample(numbers, min(_TRIES, len(numbers))):
        if try_run(call, error, number, clean, tmp_path):
            return
    pytest.skip("no failure hit a file of the run")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", range(8))
@pytest.mark.parametrize(("call", "error"), FAILURES)
def test_a_run_survives_any_call_that_fails(
    call: str, error: str, share: int, recorded: Recorded, clean: Clean, tmp_path: Path
) -> None:
    for number in recorded.places.get(call, [])[share::8]:
        try_run(call, error, number, clean, tmp_path)


@pytest.mark.timeout(120)
def test_a_store_that_cannot_enter_its_mode_is_not_said_to_have(tmp_path: Path) -> None:
    """SQLite fails at the journal's removal, after the pragma's first step; the next reader could not roll it back."""
    store, log = tmp_path / "state.db", tmp_path / "trace"
    with closing(sqlite3.connect(store)) as made:
        made.execute("CREATE TABLE one (a)")
    code = "import sys, pathlib; from state.database import enter_wal; enter_wal(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [*injecting(log, "unlink", "EIO", 1), sys.executable, "-c", code, str(store)],
        cwd=REPOSITORY, capture_output=True, text=True,
    )  # fmt: skip
    assert [f"{store}-journal" in line for line in failed_on(log)] == [True]
    assert done.returncode and "disk I/O error" in done.stderr
