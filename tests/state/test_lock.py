import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.alive import lock_text
from profiles.errors import ExitCode, LonghaulError
from state import lock
from state.layout import RunDir
from state.lock import RunLock, age_text, is_network
from tests import REPOSITORY

HOLD_CODE = """
import sys
from pathlib import Path
from state.layout import RunDir
from state.lock import RunLock
lock = RunLock.acquire(RunDir(Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def holder_process(run: RunDir) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD_CODE, str(run.root)],
        cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    return child


def test_e1_a_second_master_is_refused_and_told_who_holds_the_run(run: RunDir) -> None:
    with holder_process(run) as child:
        started_at = float(lock_text(run)["started_at"])
        with pytest.raises(LonghaulError) as error:
            RunLock.acquire(run, now=started_at + 300)
        child.kill()
    assert error.value.exit_code == ExitCode.LOCKED
    assert f"pid {child.pid}" in error.value.what and "for 5 min" in error.value.what
    assert error.value.next_command == f"python -m orchestrator status --run {run.name}"


def test_a_lock_ends_with_its_holder_however_that_dies(run: RunDir) -> None:
    with holder_process(run) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    RunLock.acquire(run).release()


FORK_CODE = HOLD_CODE.replace(
    "sys.stdin.read()",
    """
import os
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(reader)
    os.write(writer, b"!")  # it runs, so it has let go
    sys.stdin.read()  # and lives until the test has tried
    os._exit(0)
os.read(reader, 1)
print("forked", flush=True)
os.kill(os.getpid(), 9)
""",
)


def test_a_forked_child_that_outlives_the_master_does_not_hold_the_run(run: RunDir) -> None:
    command = [sys.executable, "-c", FORK_CODE, str(run.root)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as master:
        assert master.stdout is not None and master.stdin is not None
        assert [master.stdout.readline() for _ in range(2)] == ["held\n", "forked\n"]
        assert master.wait() == -signal.SIGKILL
        RunLock.acquire(run).release()
        master.stdin.close()  # lets the child go


def test_letting_go_is_at_once_even_if_a_child_is_just_being_forked(run: RunDir) -> None:
    lock = RunLock.acquire(run)
    copy = os.dup(lock._fd)
    lock.release()
    RunLock.acquire(run).release()
    os.close(copy)


def test_a_started_program_does_not_inherit_the_lock(run: RunDir) -> None:
    lock = RunLock.acquire(run)
    listed = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False, check=True)
    lock.release()
    assert str(run.lock) not in listed.stdout


def test_the_file_names_the_holder_and_is_private(run: RunDir) -> None:
    lock = RunLock.acquire(run, now=5.0)
    said = {"pid": os.getpid(), "started_at": 5.0, "host": socket.gethostname(), "inode": run.lock.stat().st_ino}
    assert lock_text(run).items() >= said.items()
    assert run.lock.stat().st_mode & 0o777 == 0o600
    lock.release()
    assert lock_text(run) == {}


def test_a_lock_file_that_is_a_symbolic_link_is_refused(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    run.lock.symlink_to(tmp_path / "victim")
    with pytest.raises(LonghaulError) as error:
        RunLock.acquire(run)
    assert error.value.exit_code == ExitCode.PERMISSION
    assert (tmp_path / "victim").read_text() == "precious"


def test_on_a_network_disk_another_host_that_renews_its_lease_keeps_the_run(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_boot_id", lambda: "there")
    holder = RunLock.acquire(run, on_network=lambda path: True)
    holder.guard()
    monkeypatch.setattr(lock, "_boot_id", lambda: "here")
    monkeypatch.setattr(lock, "_flock", lambda *_, **__: None)  # as where it does not reach other hosts
    with pytest.raises(LonghaulError) as error:
        RunLock.acquire(run, on_network=lambda path: True)
    assert error.value.exit_code == ExitCode.LOCKED
    assert f"is held by pid {os.getpid()} on {socket.gethostname()}" in error.value.what
    holder.release()
    RunLock.acquire(run, on_network=lambda path: True).release()


def test_a_holder_that_was_followed_leaves_the_text_of_the_one_after_it(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_flock", lambda *_, **__: None)  # as where it does not reach other hosts
    first = RunLock.acquire(run, on_network=lambda path: True)
    second = RunLock.acquire(run, on_network=lambda path: True)
    first.release()
    assert lock_text(run)["incarnation"] == second.incarnation
    second.release()
    assert lock_text(run) == {}


def test_a_network_disk_without_flock_is_held_by_its_lease_and_a_local_one_is_refused(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refused)
    with pytest.raises(LonghaulError) as error:
        RunLock.acquire(run, on_network=lambda path: False)
    assert error.value.exit_code == ExitCode.DISK
    held = RunLock.acquire(run, on_network=lambda path: True)
    held.guard()
    monkeypatch.undo()
    held.release()


def test_garbage_in_the_lock_file_keeps_nobody_out(run: RunDir) -> None:
    run.lock.write_bytes(b"\xff\x00 not json")
    RunLock.acquire(run).release()


@pytest.mark.parametrize(("path", "expected"), [("/mnt/share/runs", True), ("/mnt/shared", False), ("/tmp", False)])
def test_the_longest_mount_point_decides(path: str, expected: bool) -> None:
    mounts = "dev / ext4 rw 0 0\nhost:/x /mnt/share nfs4 rw 0 0\n"
    assert is_network(Path(path), mounts) is expected


@pytest.mark.parametrize(
    ("seconds", "text"), [(-9, "0 s"), (59, "59 s"), (720, "12 min"), (11100, "3 h 5 min"), (187200, "2 d 4 h")]
)
def test_ages_are_for_people(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
