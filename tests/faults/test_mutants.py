"""The replay of power cuts and the simulator fail where one sync, order or check is taken away."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import REPOSITORY

PACKAGES = ("orchestrator", "profiles", "state", "tests", "workers")


@dataclass(frozen=True)
class Mutant:
    """One change of one file: `old`, which stands there once, becomes `new`."""

    file: str
    old: str
    new: str = ""


REPLAYS = ("tests/faults/test_replay.py", "tests/faults/test_replay_commands.py")
REPLAY = ("-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", *REPLAYS)
SCHEDULES = ("-m", "tests.faults.simulation", "0", "400", "--until-wrong")


# Three syncs can be taken away without a loss that a resumed run shows: that of a directory after a file in it was
# replaced (specs and pointers, which a start writes anew), and those of file and name of a store at its birth (nothing
# was reported yet).
OF_POWER = {
    "commits of the store are not synced": Mutant(
        "state/database.py", "{'FULL' if durable_commit else 'NORMAL'}", "OFF"
    ),
    "a new folder of back-ups is not synced into its parent": Mutant(
        "orchestrator/backup.py",
        "            durable.create_dirs(half)\n        with alone_in(half):\n",
        "            half.mkdir(mode=0o700, parents=True, exist_ok=True)\n        with alone_in(half):\n",
    ),
    "the folder of a checkpoint is not synced before it gets its name": Mutant(
        "state/checkpoint.py",
        '            durable.fsync_dir(staging)\n            crash_point("ckpt.before_rename")\n',
        '            crash_point("ckpt.before_rename")\n',
    ),
    "files of a checkpoint are not synced": Mutant(
        "state/checkpoint.py", "        durable.fsync_file(path)\n        return FileEntry", "        return FileEntry"
    ),
    "the name of a checkpoint is not synced": Mutant(
        "state/durable.py",
        "        source.rename(target)\n        fsync_dir(target.parent)\n",
        "        source.rename(target)\n",
    ),
    "a new file is not synced": Mutant(
        "state/durable.py",
        "            view = view[os.write(fd, view) :]\n        os.fsync(fd)\n",
        "            view = view[os.write(fd, view) :]\n",
    ),
    "a new directory is not synced into its parent": Mutant(
        "state/durable.py",
        "                folder.mkdir(mode=0o700)\n                fsync_dir(folder.parent)\n",
        "                folder.mkdir(mode=0o700)\n",
    ),
    "a log that is appended to is not synced into its directory": Mutant(
        "state/durable.py",
        '!= b"\\n"\n            fsync_dir(path.parent)\n',
        '!= b"\\n"\n',
    ),
    "events are not synced before the checkpoint of their steps": Mutant(
        "workers/runtime.py", "        self._events.sync()\n", "        pass\n"
    ),
}

OF_ORDER = {
    "noise from a worker ends the master": Mutant(
        "orchestrator/supervise.py",
        "            except (msgspec.DecodeError, msgspec.ValidationError):\n",
        "            except ZeroDivisionError:\n",
    ),
    "workers of a dead master are left alone": Mutant(
        "orchestrator/handles.py", "        launcher.signal(handle, signal.SIGKILL)\n", "        pass\n"
    ),
    "commands to stop are not answered": Mutant(
        "orchestrator/loop.py", "        for client in self.stop_clients:\n", "        for client in ():\n"
    ),
    "commands for a checkpoint are answered again": Mutant(
        "orchestrator/checkpoint_request.py",
        "        clients, self._clients = self._clients, []\n",
        "        clients = self._clients\n",
    ),
    "how far events were read is not stored": Mutant(
        "state/store.py", "                [offset, reached, token],\n", "                [0, reached, token],\n"
    ),
    "the lock is not taken": Mutant(
        "state/lock.py", "        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", "        pass\n"
    ),
    "events are not read before a checkpoint is committed": Mutant(
        "orchestrator/attempts.py",
        "            self.take(active, ingest_all(self.store, active.worker.token, active.directory.events))\n",
        "            pass\n",
    ),
    "events are not read before a checkpoint is adopted": Mutant(
        "orchestrator/commit.py", "            self._ingest_attempt(manifest.cycle, manifest.attempt)\n"
    ),
    "a run may end before its head is hashed": Mutant(
        "orchestrator/verifying.py",
        "        return not head.verified and head.checkpoint_id not in self.unreadable\n",
        "        return False\n",
    ),
    "a worker that nobody continues is waited for": Mutant(
        "orchestrator/loop.py", "        if now - worker.held_since < STOPPED_BY_SIGNAL_S:\n", "        if True:\n"
    ),
    "deadlines are not kept": Mutant(
        "orchestrator/loop.py", "            if late and not self.is_held(worker, now):\n", "            if False:\n"
    ),
    "a file is written in place": Mutant(
        "state/durable.py",
        "            _write_new(temporary, data)\n",
        "            path.write_bytes(data[:9])\n            _write_new(temporary, data)\n",
    ),
    "a part of the state is not restored": Mutant(
        "state/registry.py",
        "        for name, item in self._items.items():\n            item.load(directory / name)\n",
        "        for name, item in list(self._items.items())[:-1]:\n            item.load(directory / name)\n",
    ),
    "the steps of a checkpoint are not marked": Mutant(
        "state/store.py",
        '                "UPDATE steps SET trained=1 WHERE cycle=? AND attempt=? AND step>? AND step<=?",\n',
        '                "UPDATE steps SET trained=0 WHERE cycle=? AND attempt=? AND step>? AND step<=?",\n',
    ),
    "attempts of a dead master stay open": Mutant(
        "orchestrator/recovery.py", "        if attempt.token == running:\n", "        if True:\n"
    ),
}
MUTANTS = {**OF_POWER, **OF_ORDER}


def test_what_a_mutant_takes_away_stands_in_its_file_once() -> None:
    found = {name: (REPOSITORY / one.file).read_text().count(one.old) for name, one in MUTANTS.items()}
    assert set(found.values()) == {1}, found


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_missing_is_found(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    file = tmp_path / mutant.file
    file.write_text(file.read_text().replace(mutant.old, mutant.new))
    tried = subprocess.run(
        [sys.executable, *(REPLAY if name in OF_POWER else SCHEDULES)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 1, f"nothing found it\n{tried.stdout[-3000:]}"
