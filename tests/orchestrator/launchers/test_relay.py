"""Files that look like a socket: what a master hears and says through them."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from orchestrator.launchers.changes import watch
from orchestrator.launchers.relay import Relay
from state.layout import AttemptDir
from state.line_file import append
from tests import REPOSITORY
from workers.contract import Message

PATIENCE_S = 30.0


def line(type_: str, **fields: object) -> bytes:
    return msgspec.json.encode(Message(type=type_, attempt="t", **fields))  # type: ignore[arg-type]


@pytest.fixture
def directory(tmp_path: Path) -> AttemptDir:
    return AttemptDir(tmp_path)


@pytest.fixture
def relays() -> Iterator[Callable[..., Relay]]:
    made: list[Relay] = []

    def make(directory: AttemptDir, on_turn: Callable[[], None] = lambda: None, *, is_new: bool = True) -> Relay:
        made.append(Relay(directory, on_turn, is_new=is_new))
        return made[-1]

    yield make
    for relay in made:
        relay.control.close()


def heard(relay: Relay, count: int) -> list[str]:
    """Types of the next messages."""
    relay.control.setblocking(True)
    relay.control.settimeout(PATIENCE_S)
    with relay.control.makefile("rb") as lines:
        return [msgspec.json.decode(lines.readline(), type=Message).type for _ in range(count)]


def until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_worker_writes_comes_out_of_the_socket(directory: AttemptDir, relays: Callable[..., Relay]) -> None:
    relay = relays(directory)
    append(directory.replies, line("ready"))
    append(directory.replies, line("heartbeat", step=2))
    assert heard(relay, 2) == ["ready", "heartbeat"]


def test_what_the_master_sends_stands_in_the_file(directory: AttemptDir, relays: Callable[..., Relay]) -> None:
    relay = relays(directory)
    relay.control.send(line("checkpoint", id=1)[:10])
    relay.control.send(line("checkpoint", id=1)[10:] + b"\n")
    until(directory.requests.exists)
    assert directory.requests.read_bytes() == line("checkpoint", id=1) + b"\n"


def test_a_new_master_hears_the_last_of_what_it_needs_and_not_all_of_it_again(
    directory: AttemptDir, relays: Callable[..., Relay]
) -> None:
    for told in ("ready", "started", "heartbeat", "checkpointed", "event_hint", "checkpointed", "heartbeat"):
        append(directory.replies, line(told))
    relay = relays(directory, is_new=False)
    assert heard(relay, 4) == ["ready", "started", "checkpointed", "heartbeat"]
    append(directory.replies, line("done"))
    assert heard(relay, 1) == ["done"]


def test_the_master_counts_as_long_as_it_looks_after_the_job(
    directory: AttemptDir, relays: Callable[..., Relay]
) -> None:
    relay = relays(directory)
    until(directory.master.exists)
    before = directory.master.read_text()
    until(lambda: directory.master.read_text() not in ("", before))
    relay.control.close()
    until(lambda: not any(thread.name == f"relay {directory.path.name}" for thread in threading.enumerate()))
    last = directory.master.read_text()
    time.sleep(2.5)
    assert directory.master.read_text() == last


def test_a_full_disk_under_the_counter_ends_no_relay(directory: AttemptDir, relays: Callable[..., Relay]) -> None:
    directory.master.symlink_to("/dev/full")
    relay = relays(directory)
    append(directory.replies, line("ready"))
    assert heard(relay, 1) == ["ready"]
    directory.master.unlink()
    until(directory.master.exists)
    append(directory.replies, line("heartbeat"))
    assert heard(relay, 1) == ["heartbeat"]


def test_requests_that_meet_a_full_disk_stand_in_the_file_once_there_is_space(
    directory: AttemptDir, relays: Callable[..., Relay]
) -> None:
    directory.requests.symlink_to("/dev/full")
    relay = relays(directory)
    for number in (1, 2):
        relay.control.send(line("checkpoint", id=number) + b"\n")
    append(directory.replies, line("ready"))
    assert heard(relay, 1) == ["ready"]
    directory.requests.unlink()
    relay.control.send(line("stop", id=3) + b"\n")
    wanted = [line("checkpoint", id=1), line("checkpoint", id=2), line("stop", id=3)]
    until(lambda: directory.requests.exists() and directory.requests.read_bytes().splitlines() == wanted)


def test_a_folder_that_cannot_be_watched_is_looked_at_all_the_same(
    directory: AttemptDir, relays: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("orchestrator.launchers.relay.watch", stale)
    append(directory.replies, line("ready"))
    assert heard(relays(directory), 1) == ["ready"]


@pytest.mark.parametrize("sign", ["ready", "done", "exit"])
def test_the_launcher_is_woken_where_a_job_begins_or_ends(
    sign: str, directory: AttemptDir, relays: Callable[..., Relay]
) -> None:
    woken = threading.Event()
    relays(directory, woken.set)
    until(directory.master.exists)
    if sign == "exit":
        directory.job_end.write_text("0\n")
    else:
        append(directory.replies, line(sign))
    assert woken.wait(PATIENCE_S)


@pytest.mark.parametrize("tells", [True, False], ids=["told by the file system", "by looking"])
def test_a_change_is_noticed(tells: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.launchers.changes.tells_of_changes", lambda path: tells)
    noticed = threading.Event()
    observer = watch(tmp_path, ["lines"], noticed.set)
    try:
        (tmp_path / "other").write_text("x")
        (tmp_path / "lines").write_text("x")
        assert noticed.wait(PATIENCE_S)
    finally:
        observer.stop()
        observer.join()


NOTICED = """
import sys, threading
from pathlib import Path
from orchestrator.launchers.changes import watch
noticed = threading.Event()
observer = watch(Path(sys.argv[1]), ["lines"], noticed.set)
(Path(sys.argv[1]) / "lines").write_text("x")
sys.exit(0 if noticed.wait(30) else "nothing was noticed")
"""


@pytest.mark.parametrize("limit", ["instances", "watches"])
def test_a_change_is_noticed_where_inotify_has_nothing_left(limit: str, tmp_path: Path) -> None:
    set_limit = f"echo 0 > /proc/sys/user/max_inotify_{limit}"
    in_namespace = [shutil.which("unshare") or "false", "-Ur", "sh", "-c"]
    if subprocess.run([*in_namespace, set_limit], capture_output=True, check=False).returncode:
        pytest.skip("this host does not allow user namespaces")
    command = [*in_namespace, f'{set_limit}; exec "$@"', "-", sys.executable, "-c", NOTICED, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
