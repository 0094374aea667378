"""Two hosts on one directory of a real network file system: each has a mount of its own (SFTP, by sshfs)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from state.lock import is_network
from tests.faults.conftest import Clean
from tests.faults.harness import PATIENCE_S, Master, Scene, faults
from tests.faults.invariants import check_invariants
from tests.faults.test_bad_input import told

SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")
ON_HOST = """
import socket, sys
name = sys.argv[1]
socket.gethostname = lambda: name
from state import lease, lock
lock._boot_id = lambda: f"boot-of-{name}"
lease.RENEW_S, lease.STALE_S, lease.PATIENCE_S, lease.LOOK_S = 0.5, 4.0, 8.0, 0.2
from orchestrator.signals import SIGNALS
SIGNALS.install()
from orchestrator.cli import main
raise SystemExit(main(sys.argv[2:]))
"""
"""A program on a host of that name. File system and locks are as they are."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def mounted(directory: Path, at: Path) -> Iterator[Path]:
    """`directory` as another host sees it: a mount of its own, with its own cache and its own locks."""
    server = next(filter(os.path.exists, SERVERS), None)
    if shutil.which("sshfs") is None or server is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs sshfs, an SFTP server and /dev/fuse")
    at.mkdir(parents=True)
    ours, theirs = socket.socketpair()
    serving = subprocess.Popen([server], stdin=theirs, stdout=theirs)
    client = subprocess.Popen(["sshfs", "-f", "-o", "passive", f":{directory}", at], stdin=ours, stdout=ours)
    ours.close()
    theirs.close()
    try:
        until = time.monotonic() + PATIENCE_S
        while not os.path.ismount(at):
            if client.poll() is not None:
                pytest.skip("this kernel or container refuses the mount")
            assert time.monotonic() < until
            time.sleep(0.02)
        yield at
    finally:
        subprocess.run(["fusermount3", "-u", "-z", at], check=False)
        client.wait(PATIENCE_S)
        serving.wait(PATIENCE_S)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Scene, Scene, Scene]]:
    """The run as two hosts see it, and as its disk does."""
    (tmp_path / "disk").mkdir()
    with ExitStack() as stack:
        seen = [Scene(stack.enter_context(mounted(tmp_path / "disk", tmp_path / name))) for name in ("one", "two")]
        try:
            yield seen[0], seen[1], Scene(tmp_path / "disk")
        finally:
            for one in seen:
                one.clean_up()


def on(run: Scene, **knobs: object) -> Master:
    return run.launch([sys.executable, "-c", ON_HOST, run.root.name, *run.command("--plain", **knobs)[3:]])


def test_it_is_seen_as_a_network_file_system_and_locks_of_one_mount_do_not_reach_the_other(
    hosts: tuple[Scene, Scene, Scene],
) -> None:
    one, two, disk = hosts
    assert is_network(one.root) and is_network(two.root) and not is_network(disk.root)
    (disk.root / "lock").touch()
    # Without a fork: a killed `flock` would leave its child with the open file, and so the mount busy.
    held = subprocess.Popen(["flock", "--no-fork", one.root / "lock", "sleep", "60"])
    try:
        until = time.monotonic() + PATIENCE_S
        while subprocess.run(["flock", "-n", one.root / "lock", "true"], check=False).returncode == 0:
            assert time.monotonic() < until
        assert subprocess.run(["flock", "-n", two.root / "lock", "true"], check=False).returncode == 0
    finally:
        held.kill()
        held.wait()


def test_a_second_host_is_refused_while_the_first_trains(hosts: tuple[Scene, Scene, Scene], clean: Clean) -> None:
    one, two, disk = hosts
    first = on(one, fake__step_s=0.5)
    first.wait_for_line("checkpoint of step 2 is durable")
    second = on(two)
    assert second.end() == 69, second.text()
    told(second, f"run 'fake' is held by pid {first.pid} on one", "status")
    assert first.end() == 0, first.text()
    check_invariants(disk, clean.ending)


def test_a_host_that_died_is_followed_by_the_other(hosts: tuple[Scene, Scene, Scene], clean: Clean) -> None:
    one, two, disk = hosts
    first = on(one, fake__step_s=0.3)
    first.wait_for_line("checkpoint of step 2 is durable")
    first.kill()
    faults.append("host lost: kill -9 of its master")
    second = on(two, fake__step_s=0.3)
    second.wait_for_line("resumes from step")
    assert second.end() == 0, second.text()
    check_invariants(disk, clean.ending)


def test_a_host_that_stood_still_and_wakes_up_writes_nothing_more(
    hosts: tuple[Scene, Scene, Scene], clean: Clean
) -> None:
    one, two, disk = hosts
    first = on(one, fake__step_s=0.3)
    first.wait_for_line("checkpoint of step 2 is durable")
    first.signal(signal.SIGSTOP)
    faults.append("host stopped, another takes over, the first wakes up")
    second = on(two, fake__step_s=0.3)
    second.wait_for_line("resumes from step")
    first.signal(signal.SIGCONT)
    assert first.end() == 69, first.text()
    assert second.end() == 0, second.text()
    check_invariants(disk, clean.ending)


def test_commands_reach_a_master_although_the_file_system_holds_no_sockets(hosts: tuple[Scene, Scene, Scene]) -> None:
    one, two, disk = hosts
    master = on(one, fake__step_s=0.5)
    master.wait_for_line("checkpoint of step 2 is durable")
    assert not disk.run.control_socket.exists()
    assert one.ask("checkpoint").returncode == 0
    elsewhere = two.ask("stop")
    assert elsewhere.returncode == 66 and "no master is running" in elsewhere.stderr
    assert one.ask("stop").returncode == 0
    assert master.end() == 0, master.text()


def test_two_hosts_that_start_at_once_make_one_run(hosts: tuple[Scene, Scene, Scene], clean: Clean) -> None:
    one, two, disk = hosts
    # Slow steps: a second host that came to the lease after the end would find nothing left to do.
    masters = [on(one, fake__step_s=1.0), on(two, fake__step_s=1.0)]
    codes = sorted(master.end() for master in masters)
    assert codes == [0, 69], "\n".join(master.text() for master in masters)
    check_invariants(disk, clean.ending)
