"""A command and its worker, over a real pipe: what is heard, how a worker may end, and what a person is told of it."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from orchestrator.line_worker import started
from profiles.errors import ExitCode, LonghaulError
from workers.line_contract import Note, Said

CHILD = "tests.orchestrator.line_child"


def heard(what: str) -> list[Said]:
    with started(CHILD, Note(what), name="test", kept="all", next_command="again") as worker:
        return list(worker.hear())


def refused(what: str) -> LonghaulError:
    with pytest.raises(LonghaulError) as caught:
        heard(what)
    return caught.value


def test_what_a_worker_says_is_heard_until_it_is_done() -> None:
    assert heard("nothing more") == [Note("begun")]


def test_what_libraries_print_is_not_taken_for_a_message() -> None:
    assert heard("print") == [Note("begun")]


def test_a_refusal_is_told_in_the_worker_s_own_words() -> None:
    error = refused("refuse")
    assert (error.what, error.kept, error.next_command) == ("bad input", "mine", "look")
    assert error.exit_code == ExitCode.INPUT


def test_of_an_error_that_nobody_foresaw_the_command_knows_what_is_kept() -> None:
    error = refused("fail")
    assert (error.what, error.kept, error.next_command) == ("ValueError: nobody foresaw this", "all", "again")
    assert error.exit_code == ExitCode.INTERNAL


def test_a_worker_that_is_killed_is_named_with_its_signal() -> None:
    error = refused("die")
    assert (error.what, error.kept) == ("the test worker was killed by signal 9 without a message", "all")


def test_a_message_that_is_not_in_the_contract_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHAUL_CHILD", "gossip")
    error = refused("")
    assert error.what.startswith("the test worker sent an unknown message (Invalid value 'gossip'")


def test_a_worker_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    with started(CHILD, Note(f"wait {tmp_path / 'pid'}"), name="test", kept="all") as worker:
        assert next(worker.hear()) == Note("begun")
        deadline = time.monotonic() + 20
        while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_its_log_is_kept_where_one_is_named(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with (
        started(CHILD, Note("fail"), name="test", kept="all", log=log) as worker,
        pytest.raises(LonghaulError),
    ):
        list(worker.hear())
    assert "nobody foresaw this" in log.read_text()
