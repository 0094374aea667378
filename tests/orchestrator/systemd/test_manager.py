"""sd_notify over a real socket: ready, signs of life from the loop alone, status, stopping."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from orchestrator.systemd.manager import Manager
from tests import REPOSITORY

PATIENCE_S = 60.0


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[socket.socket]:
    """The manager's socket, which a unit's processes write to."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(tmp_path / "notify"))
        one.settimeout(PATIENCE_S)
        yield one


def variables(inbox: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": inbox.getsockname(), **more}


def read_all(inbox: socket.socket) -> list[str]:
    """What lies in the socket now."""
    found = []
    inbox.setblocking(False)
    try:
        while True:
            found.append(inbox.recv(4096).decode())
    except BlockingIOError:
        inbox.settimeout(PATIENCE_S)
        return found


def test_the_first_turn_says_ready_and_later_ones_say_alive_at_a_quarter_of_the_watchdog(inbox: socket.socket) -> None:
    manager = Manager(variables(inbox, WATCHDOG_USEC="8000000"), pid=7)
    for now in (0.0, 0.5, 1.9, 2.0, 2.1, 4.5):
        manager.alive(now, "step 1")
    assert read_all(inbox) == ["READY=1\nWATCHDOG=1\nSTATUS=step 1", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_status_goes_out_when_it_is_new_and_the_last_one_is_old(inbox: socket.socket) -> None:
    manager = Manager(variables(inbox), pid=7)
    for now, status in ((0.0, "step 1"), (1.0, "step 2"), (6.0, "step 3\n"), (20.0, "step 3\n")):
        manager.alive(now, status)
    assert read_all(inbox) == ["READY=1\nSTATUS=step 1", "STATUS=step 3"]


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "8000000", "WATCHDOG_PID": "8"}],
    ids=["none", "off", "no number", "another process"],
)
def test_without_a_watchdog_of_ours_nothing_says_alive(inbox: socket.socket, watchdog: Mapping[str, str]) -> None:
    manager = Manager(variables(inbox, **watchdog), pid=7)
    manager.alive(0.0, "step 1")
    manager.alive(100.0, "step 1")
    assert read_all(inbox) == ["READY=1\nSTATUS=step 1"]


def test_an_abstract_socket_is_reached(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        name = f"longhaul-{os.getpid()}-{tmp_path.name}"
        inbox.bind("\0" + name)
        Manager({"NOTIFY_SOCKET": f"@{name}"}, pid=7).stopping("asked")
        assert read_all(inbox) == ["STOPPING=1\nSTATUS=asked"]


def test_a_manager_that_does_not_read_holds_nothing_up_and_hears_us_once_it_reads(inbox: socket.socket) -> None:
    manager = Manager(variables(inbox, WATCHDOG_USEC="4000000"), pid=7)
    turns = 5000  # more than any socket's queue holds
    for now in range(turns):
        manager.alive(float(now), f"step {now}")
    assert 0 < len(read_all(inbox)) < turns
    manager.alive(turns + 10.0, "step of now")
    assert read_all(inbox) == ["WATCHDOG=1\nSTATUS=step of now"]


def test_a_manager_that_is_gone_and_none_at_all_are_the_same(inbox: socket.socket, tmp_path: Path) -> None:
    given = variables(inbox)
    (tmp_path / "notify").unlink()
    for environment in (given, {}):
        manager = Manager(environment, pid=7)
        manager.alive(0.0, "step 1")
        manager.stopping("asked")
        assert environment == {}  # no child can speak for us


def start(tmp_path: Path, inbox: socket.socket, *words: str, **variables: str) -> subprocess.Popen[bytes]:
    """A run, as a unit of `Type=notify` starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", "fake", "--run", "night", *words],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "NOTIFY_SOCKET": inbox.getsockname(), **variables},
    )  # fmt: skip


def wait_for(inbox: socket.socket, text: str) -> list[str]:
    """All that came, up to a message with `text`."""
    found = [inbox.recv(4096).decode()]
    while text not in found[-1]:
        found.append(inbox.recv(4096).decode())
    return found


def test_a_run_is_ready_alive_and_stopping_and_a_master_that_stands_still_is_not_alive(
    tmp_path: Path, inbox: socket.socket
) -> None:
    process = start(tmp_path, inbox, "--set", "fake.step_s=0.05", "--set", "run.max_cycles=0", WATCHDOG_USEC="1000000")
    try:
        first = wait_for(inbox, "READY=1")
        assert len(first) == 1 and "WATCHDOG=1" in first[0] and "STATUS=step 0, saved up to 0" in first[0]
        wait_for(inbox, "STATUS=step")
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # now it stands still
        read_all(inbox)
        inbox.settimeout(1.5)  # six times as long as it is ever silent
        with pytest.raises(TimeoutError):
            inbox.recv(4096)
        inbox.settimeout(PATIENCE_S)
        os.kill(process.pid, signal.SIGCONT)
        wait_for(inbox, "WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        stopping = wait_for(inbox, "STOPPING=1")[-1]
        assert "STATUS=stopping after this step" in stopping
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "runs/night/latest.json").exists()


def test_workers_do_not_get_the_socket(tmp_path: Path, inbox: socket.socket) -> None:
    process = start(tmp_path, inbox, "--set", "fake.step_s=0.05", "--set", "run.max_cycles=0", WATCHDOG_USEC="1000000")
    try:
        wait_for(inbox, "STATUS=step 1")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        environments = [Path(f"/proc/{child}/environ").read_bytes() for child in children]
        assert environments and not any(b"NOTIFY_SOCKET" in one or b"WATCHDOG" in one for one in environments)
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
