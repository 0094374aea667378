"""A worker that a scheduler started: one of its copies works, and it hears and speaks through files."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from state.layout import AttemptDir
from state.line_file import append
from tests import REPOSITORY
from workers import mailbox
from workers.contract import Message, Outcome, Result
from workers.control import Control
from workers.mailbox import Mailbox, claim, ended_before, last_seq


@pytest.fixture
def directory(tmp_path: Path) -> AttemptDir:
    return AttemptDir(tmp_path)


def test_one_of_two_copies_gets_the_attempt(directory: AttemptDir) -> None:
    assert claim(directory, "t", 0)
    assert not claim(directory, "t", 0)


def test_a_later_start_gets_it_after_an_earlier_one(directory: AttemptDir) -> None:
    assert claim(directory, "t", 0)
    assert claim(directory, "t", 1)


def test_a_copy_that_comes_after_its_successor_gets_nothing(directory: AttemptDir) -> None:
    assert claim(directory, "t", 2)
    assert not claim(directory, "t", 1)


def test_of_many_processes_at_once_one_gets_the_attempt(directory: AttemptDir) -> None:
    code = (
        "import sys; from pathlib import Path; from state.layout import AttemptDir; from workers.mailbox import claim;"
        "print(claim(AttemptDir(Path(sys.argv[1])), 't', 0))"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, directory.path], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    assert sorted(racer.communicate()[0].strip() for racer in racers) == ["False", "False", "False", "True"]


def test_a_process_that_sees_a_later_claim_ends_and_touches_nothing(directory: AttemptDir) -> None:
    claim(directory, "t", 1)
    code = (
        "import sys; from pathlib import Path; from state.layout import AttemptDir;"
        "from workers.mailbox import Mailbox;"
        "Mailbox(AttemptDir(Path(sys.argv[1])), 't', 0).fence(); print('went on')"
    )
    command = [sys.executable, "-c", code, directory.path]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    assert [path.name for path in directory.path.iterdir()] == ["claim.1"]


def test_a_result_that_ends_the_attempt_leaves_nothing_to_do(directory: AttemptDir) -> None:
    assert ended_before(directory) is None
    for outcome, code, wanted in ((Outcome.DONE, 0, 0), (Outcome.FAILED, 71, 71), (Outcome.STOPPED, 0, None)):
        result = Result(token="t", role="train", outcome=outcome, exit_code=code, last_step=1)
        directory.result.write_bytes(msgspec.json.encode(result))
        assert ended_before(directory) == wanted


def test_events_go_on_after_the_last_whole_one(directory: AttemptDir) -> None:
    assert last_seq(directory) == 0
    directory.events.write_bytes(b'{"seq":1,"type":"a"}\n{"seq":7,"type":"b"}\n{"seq":8,"ty')
    assert last_seq(directory) == 7


# --- messages ----------------------------------------------------------------------------------------------------


@pytest.fixture
def control(directory: AttemptDir) -> Iterator[Control]:
    with closing(Control(Mailbox(directory, "t", 0), "t")) as made:
        yield made


def request(directory: AttemptDir, **fields: Any) -> None:
    append(directory.requests, msgspec.json.encode(Message(**fields)))


def test_a_request_in_the_file_reaches_the_worker(directory: AttemptDir, control: Control) -> None:
    request(directory, type="checkpoint", attempt="t", id=5)
    assert control.requests.checkpoint_ids.get(timeout=30) == 5


def test_a_request_to_another_attempt_does_not(directory: AttemptDir, control: Control) -> None:
    request(directory, type="checkpoint", attempt="other", id=4)
    request(directory, type="checkpoint", attempt="t", id=5)
    assert control.requests.checkpoint_ids.get(timeout=30) == 5
    assert control.requests.dropped == 1


def test_the_file_stop_is_a_request_to_stop(directory: AttemptDir, control: Control) -> None:
    directory.stop.touch()
    assert control.requests.stop.wait(timeout=30)


def test_a_reply_is_a_line_of_the_other_file(directory: AttemptDir) -> None:
    with closing(Control(Mailbox(directory, "t", 0), "t")) as control:
        control.send(Message(type="done", step=3))
    lines = [msgspec.json.decode(line, type=Message) for line in directory.replies.read_bytes().splitlines()]
    assert [(line.type, line.step, line.attempt) for line in lines if line.type == "done"] == [("done", 3, "t")]


def test_a_reply_that_meets_a_full_disk_arrives_once_and_those_after_it_too(
    directory: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def with_a_full_disk_at_first(path: Path, line: bytes) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(path, line)

    monkeypatch.setattr(mailbox, "append", with_a_full_disk_at_first)
    with closing(Control(Mailbox(directory, "t", 0), "t")) as control:
        control.send(Message(type="checkpointed", step=1))
        control.send(Message(type="checkpointed", step=2))
    lines = [msgspec.json.decode(line, type=Message) for line in directory.replies.read_bytes().splitlines()]
    assert [line.step for line in lines if line.type == "checkpointed"] == [1, 2]


def test_requests_are_heard_after_the_directory_could_not_be_listed(
    directory: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = threading.Event()
    names = Mailbox._names

    def once_stale(self: Mailbox) -> set[str]:
        if self._directory == directory and not has_failed.is_set():
            has_failed.set()
            raise OSError(errno.ESTALE, "Stale file handle")
        return names(self)

    monkeypatch.setattr(Mailbox, "_names", once_stale)
    with closing(Control(Mailbox(directory, "t", 0), "t")) as control:
        assert has_failed.wait(timeout=30)
        request(directory, type="checkpoint", attempt="t", id=5)
        assert control.requests.checkpoint_ids.get(timeout=30) == 5
