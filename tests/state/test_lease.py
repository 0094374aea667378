"""The lease of a run on a network file system: hosts whose flock does not reach each other."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from state import lease
from state.lease import Holder, Lease, LeaseLostError, newest
from tests import REPOSITORY

TIMES = {"RENEW_S": 0.05, "STALE_S": 0.4, "PATIENCE_S": 1.2, "LOOK_S": 0.05}
HOST_CODE = """
import sys
from pathlib import Path
from profiles.errors import LonghaulError
from state import lease
root, host, times = Path(sys.argv[1]), sys.argv[2], eval(sys.argv[3])
vars(lease).update(times)
def refuse(holder):
    return LonghaulError(f"held by {holder.host}", kept="", next_command="", exit_code=69)
try:
    held = lease.Lease.take(root, host, f"boot-of-{host}", refuse)
except LonghaulError as error:
    print("refused:", error.what, flush=True)
    sys.exit(69)
print("held", flush=True)
for line in sys.stdin:
    if line == "guard\\n":
        try:
            held.guard()
            print("mine", flush=True)
        except lease.LeaseLostError as error:
            print("lost:", error.what, flush=True)
    else:
        held.release()
        print("released", flush=True)
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in TIMES.items():
        monkeypatch.setattr(lease, name, seconds)


class Host:
    """A process that believes to be a host of its own."""

    def __init__(self, root: Path, name: str) -> None:
        command = [sys.executable, "-c", HOST_CODE, str(root), name, str(TIMES)]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.hear()


@contextmanager
def host(root: Path, name: str) -> Iterator[Host]:
    made = Host(root, name)
    try:
        yield made
    finally:
        made.process.send_signal(signal.SIGCONT)
        made.process.kill()
        made.process.communicate()


def refuse(holder: Holder) -> LonghaulError:
    return LonghaulError(f"held by {holder.host}", kept="", next_command="", exit_code=ExitCode.LOCKED)


def test_a_host_that_renews_keeps_all_others_out(tmp_path: Path) -> None:
    with host(tmp_path, "a") as first, host(tmp_path, "b") as second:
        heard = {first.hear(), second.hear()}
        assert heard in ({"held", "refused: held by a"}, {"held", "refused: held by b"})
        time.sleep(2 * TIMES["PATIENCE_S"])
        with host(tmp_path, "c") as third:
            assert third.hear().startswith("refused: held by ")


def test_the_lease_of_a_host_that_died_is_taken_once_it_stood_still(tmp_path: Path) -> None:
    with host(tmp_path, "a") as first, host(tmp_path, "b") as second:
        heard = first.hear(), second.hear()
        (first if heard[0] == "held" else second).process.kill()
        began = time.monotonic()
        with host(tmp_path, "c") as third:
            assert third.hear() == "held"
        assert time.monotonic() - began >= TIMES["PATIENCE_S"], "not before"


def test_of_many_hosts_at_once_one_takes_it(tmp_path: Path) -> None:
    for number in range(3):
        root = tmp_path / str(number)
        root.mkdir()
        (root / "lease.4").write_bytes(b'{"host":"dead","boot_id":"x","pid":7,"beats":9}')
        with ExitStack() as stack:
            hosts = [stack.enter_context(host(root, f"h{one}")) for one in range(6)]
            heard = [one.hear() for one in hosts]
            assert heard.count("held") == 1, heard
            assert [one.ask("guard") for one, said in zip(hosts, heard, strict=True) if said == "held"] == ["mine"]
        assert [path.name for path in root.glob("lease.*")] == ["lease.5"]


def test_a_holder_that_was_stopped_learns_that_another_took_over(tmp_path: Path) -> None:
    with host(tmp_path, "a") as first:
        assert first.hear() == "held"
        first.process.send_signal(signal.SIGSTOP)
        with host(tmp_path, "b") as second:
            assert second.hear() == "held"
            first.process.send_signal(signal.SIGCONT)
            assert first.ask("guard").startswith("lost: run ")
            before = newest(tmp_path)[0]
            assert first.ask("release") == "released"
            assert newest(tmp_path)[0] == before and newest(tmp_path)[1].host == "b"  # type: ignore[union-attr]
            assert second.ask("guard") == "mine"


def test_a_holder_whose_follower_has_already_gone_has_lost_it_all_the_same(tmp_path: Path) -> None:
    with host(tmp_path, "a") as first:
        assert first.hear() == "held"
        first.process.send_signal(signal.SIGSTOP)
        with host(tmp_path, "b") as second:
            assert second.hear() == "held"
            assert second.ask("release") == "released"
        first.process.send_signal(signal.SIGCONT)
        assert first.ask("guard").startswith("lost: run ")


def test_a_holder_that_was_away_goes_on_if_nobody_took_over(tmp_path: Path) -> None:
    with host(tmp_path, "a") as first:
        assert first.hear() == "held"
        first.process.send_signal(signal.SIGSTOP)
        time.sleep(2 * TIMES["STALE_S"])
        first.process.send_signal(signal.SIGCONT)
        assert first.ask("guard") == "mine"


def test_a_released_lease_and_one_of_a_process_of_this_boot_are_taken_at_once(tmp_path: Path) -> None:
    """The caller has the flock, which reaches every process of this boot."""
    first = Lease.take(tmp_path, "a", "boot", refuse)
    first.release()
    began = time.monotonic()
    second = Lease.take(tmp_path, "b", "boot", refuse)
    third = Lease.take(tmp_path, "b", "boot", refuse)
    assert time.monotonic() - began < TIMES["PATIENCE_S"]
    with pytest.raises(LeaseLostError):
        time.sleep(3 * TIMES["RENEW_S"])
        second.guard()
    third.guard()
    third.release()


def test_a_holder_that_looks_anew_learns_at_once_that_it_was_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 60.0)
    first = Lease.take(tmp_path, "a", "boot", refuse)
    second = Lease.take(tmp_path, "a", "boot", refuse)
    first.guard()  # it renewed a moment ago
    with pytest.raises(LeaseLostError, match="another host took it over"):
        first.guard(anew=True)
    second.guard(anew=True)


def test_releasing_tells_whether_the_run_was_still_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 60.0)
    first = Lease.take(tmp_path, "a", "boot", refuse)
    second = Lease.take(tmp_path, "a", "boot", refuse)
    assert not first.release()
    assert newest(tmp_path)[1] == Holder("a", "boot", os.getpid())
    assert second.release()
    assert second.release()
    assert newest(tmp_path)[1] == Holder()


def test_a_host_of_the_same_name_that_booted_otherwise_is_another(tmp_path: Path) -> None:
    """Two machines may both be called `localhost`."""
    first = Lease.take(tmp_path, "localhost", "one", refuse)
    with pytest.raises(LonghaulError) as told:
        Lease.take(tmp_path, "localhost", "two", refuse)
    assert told.value.exit_code == ExitCode.LOCKED
    first.release()


def test_a_lease_that_cannot_be_renewed_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Lease.take(tmp_path, "a", "boot", refuse)
    held.guard()

    def refused(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(lease, "_write", refused)
    time.sleep(2 * TIMES["STALE_S"])
    with pytest.raises(LeaseLostError, match=r"could not be renewed for .*Input/output error"):
        held.guard()


@pytest.mark.parametrize("text", [b"", b"\xff not json", b'{"host": 3}'])
def test_an_unreadable_lease_is_watched_like_any_other(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "lease.3").write_bytes(text)
    began = time.monotonic()
    held = Lease.take(tmp_path, "a", "boot", refuse)
    assert time.monotonic() - began >= TIMES["PATIENCE_S"]
    held.release()


def test_a_file_system_that_makes_files_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open
    monkeypatch.setattr(lease.os, "open", lambda path, flags, *mode: real(path, flags & ~os.O_EXCL, *mode))
    with pytest.raises(LonghaulError) as told:
        Lease.take(tmp_path, "a", "boot", refuse)
    assert told.value.exit_code == ExitCode.DISK


def test_a_host_that_loses_the_race_over_sftp_is_refused_as_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SFTP has no word for a file that another host makes at that moment: sshfs says EPERM."""
    real, others = os.open, ExitStack()

    def opened(path: Path, flags: int, *mode: int) -> int:
        if flags & os.O_EXCL and not (tmp_path / "lease.1").exists():
            assert others.enter_context(host(tmp_path, "b")).hear() == "held"
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return real(path, flags, *mode)

    monkeypatch.setattr(lease.os, "open", opened)
    with others, pytest.raises(LonghaulError, match="held by b"):
        Lease.take(tmp_path, "a", "boot", refuse)


def test_a_directory_in_which_no_lease_can_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path, flags: int, *mode: int) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(lease.os, "open", opened)
    with pytest.raises(PermissionError):
        Lease.take(tmp_path, "a", "boot", refuse)
