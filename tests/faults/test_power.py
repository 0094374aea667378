"""Row D9: power fails, and with it goes what was committed without a sync.

kill -9 keeps the page cache, so it cannot show this. A run is recorded instead: at each durable commit, before it
happens, the whole directory as it is, and the store as each commit since the last durable one had left it. Any of these
stores may be what the disk holds beside those files.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.conftest import Clean
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants

RECORDED = """
import os, subprocess, sys
from contextlib import contextmanager
from pathlib import Path
import psutil
from state import database

folder = Path(os.environ["RECORD_INTO"])
commits, durable_at, taken = 0, 0, 0

def stopped():
    workers = psutil.Process().children(recursive=True)
    for worker in workers:
        worker.suspend()
    while any(worker.status() not in ("stopped", "zombie", "dead") for worker in workers):
        pass
    return workers

def copy_files(run):
    # cp, not shutil: closing a file of the store in this process would drop SQLite's locks.
    global taken
    taken += 1
    target = folder / f"cut-{taken:03d}-{durable_at:03d}-{commits:03d}"
    workers = stopped()
    subprocess.run(["cp", "-a", str(run.root), str(target)], check=True)
    for worker in workers:
        if worker.is_running():
            worker.resume()

def copy_store(run):
    target = folder / f"store-{commits:03d}"
    target.mkdir()
    files = [str(path) for path in (run.store, Path(f"{run.store}-wal")) if path.exists()]
    subprocess.run(["cp", *files, str(target)], check=True)

real = database.WritingConnection.transaction

@contextmanager
def transaction(self, *, durable_commit=True):
    global commits, durable_at
    if not self.run.store.exists():  # it is made under another name, and is whole when it gets its own
        with real(self, durable_commit=durable_commit):
            yield
        return
    if not commits:
        copy_store(self.run)
    if durable_commit and commits > durable_at:
        copy_files(self.run)
    with real(self, durable_commit=durable_commit):
        yield
    commits += 1
    durable_at = commits if durable_commit else durable_at
    copy_store(self.run)

database.WritingConnection.transaction = transaction
from orchestrator.signals import SIGNALS
SIGNALS.install()
from orchestrator.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Cut:
    """One moment, and one store that a disk without power may hold at it."""

    files: Path
    store: Path

    def put(self, run: Scene) -> None:
        shutil.copytree(self.files, run.run.root, ignore=shutil.ignore_patterns("*.sock"))
        for part in ("", "-wal", "-shm"):
            Path(f"{run.run.store}{part}").unlink(missing_ok=True)
        for path in self.store.iterdir():
            shutil.copyfile(path, run.run.root / path.name)


def recorded(folder: Path, run: Scene, *arguments: str) -> list[Cut]:
    """Run it to its end; every cut in which something is lost."""
    into = folder / "record"
    into.mkdir()
    master = run.launch([sys.executable, "-c", RECORDED, *run.command("--plain", *arguments)[3:]],
                        env={"RECORD_INTO": str(into)})  # fmt: skip
    assert master.end() == 0, master.text()
    cuts = []
    for files in sorted(into.glob("cut-*")):
        (files / "ballast").unlink(missing_ok=True)
        _, _, durable_at, commits = files.name.split("-")
        cuts += [Cut(files, into / f"store-{number:03d}") for number in range(int(durable_at), int(commits))]
    return cuts


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> list[Cut]:
    folder = tmp_path_factory.mktemp("power")
    with scene(folder / "run") as run:
        return recorded(folder, run)


PARTS = 4


def test_D9_the_record_shows_commits_that_power_takes(cuts: list[Cut]) -> None:
    lost = {int(cut.files.name.split("-")[3]) - int(cut.store.name.split("-")[1]) for cut in cuts}
    assert len(cuts) > 10 and max(lost) >= 3


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, PARTS))])
def test_D9_power_fails_before_any_durable_commit_and_the_run_ends_as_if_it_had_not(
    part: int, cuts: list[Cut], clean: Clean, tmp_path: Path
) -> None:
    for number, cut in enumerate(cuts[part::PARTS]):
        with scene(tmp_path / str(number)) as run:
            cut.put(run)
            run.finish()
            check_invariants(run, clean.ending)
