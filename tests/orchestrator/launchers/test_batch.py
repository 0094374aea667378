"""What `Batch` does with any scheduler: one that falls silent, one that hears nothing, and copies that come late."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from orchestrator.launchers import batch
from orchestrator.launchers.batch import Batch, Refused, Unanswered, fence, submitted
from orchestrator.launchers.job_end import Seen
from orchestrator.launchers.launcher import Handle, Order, Started
from profiles.errors import LonghaulError
from state.layout import AttemptDir


class Desk:
    """A scheduler in memory with one job."""

    name = "Desk"
    check = "ring"

    def __init__(self) -> None:
        self.state = "RUNNING"
        self.is_silent = False
        self.lost_calls = 0
        """How many of the next signals are not heard."""
        self.submitted: list[str] = []

    def prepare(self, order: Order, directory: AttemptDir) -> Callable[[], str]:
        def submit() -> str:
            self.submitted.append(order.handle.token)
            return order.handle.token

        return submit

    def find(self, token: str) -> str:
        return token if token in self.submitted else ""

    def listed(self, jobs: Sequence[str]) -> Mapping[str, Seen]:
        if self.is_silent:
            raise Unanswered("nobody is at the desk")
        return {}

    def final(self, job: str) -> Seen:
        self.listed([])
        return Seen(self.state)

    def signal(self, job: str, number: int) -> None:
        if self.is_silent:
            raise Unanswered("nobody is at the desk")
        if self.lost_calls:
            self.lost_calls -= 1
        else:
            self.state = "CANCELLED"

    def never_starts(self, job: str, seen: Seen) -> bool:
        return False

    def failed(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return ()

    def silent(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return ()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(batch, "SOON_S", 0.02)
    monkeypatch.setattr(batch, "PATIENCE_S", 0.3)
    monkeypatch.setattr(batch, "END_S", 1.0)
    return Desk()


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    (tmp_path / "spec.json").write_text("{}")
    (tmp_path / "claim.0").touch()
    return AttemptDir(tmp_path)


@pytest.fixture
def job(desk: Desk, attempt: AttemptDir) -> Iterator[tuple[Batch, Started]]:
    launcher = Batch(desk, 0.02)
    handle = Handle(launcher="desk", owner="o", token="t")
    started = launcher.start(Order(handle, ("/bin/true",), {}, attempt.log, attempt))
    yield launcher, started
    started.control.close()
    os.close(started.ended)


def wait_for(fact: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_silent_scheduler_means_unknown_never_dead(desk: Desk, job: tuple[Batch, Started]) -> None:
    launcher, started = job
    desk.is_silent = True
    wait_for(lambda: launcher.poll(started.handle).text == "Desk does not answer: nobody is at the desk")
    time.sleep(0.5)
    assert launcher.poll(started.handle).exit_code is None


def test_a_job_that_waited_when_the_scheduler_fell_silent_still_waits(desk: Desk, job: tuple[Batch, Started]) -> None:
    launcher, started = job
    desk.state = "PENDING"
    wait_for(lambda: launcher.poll(started.handle).waits == "pending")
    desk.is_silent = True
    wait_for(lambda: launcher.poll(started.handle).waits == "Desk does not answer: nobody is at the desk")


def test_a_job_that_is_ended_while_the_scheduler_is_silent_is_given_up_and_fenced(
    desk: Desk, attempt: AttemptDir, job: tuple[Batch, Started]
) -> None:
    launcher, started = job
    desk.is_silent = True
    launcher.signal(started.handle, signal.SIGKILL)
    assert launcher.wait(started.handle, 30).exit_code == -signal.SIGKILL
    assert attempt.claim(1).exists(), "its worker, which may live, sees that and ends"


def test_a_cancellation_that_was_not_heard_is_repeated(desk: Desk, job: tuple[Batch, Started]) -> None:
    launcher, started = job
    desk.lost_calls = 2
    launcher.signal(started.handle, signal.SIGKILL)
    assert launcher.wait(started.handle, 30).exit_code == -signal.SIGKILL
    assert desk.state == "CANCELLED"


def test_an_errand_that_fails_unexpectedly_does_not_end_the_thread(
    desk: Desk, job: tuple[Batch, Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, started = job
    heard = threading.Event()

    def fail(job: str, number: int) -> None:
        heard.set()
        raise UnicodeDecodeError("utf-8", b"\xfc", 0, 1, "invalid start byte")

    with monkeypatch.context() as patch:
        patch.setattr(desk, "signal", fail)
        launcher.signal(started.handle, signal.SIGUSR1)
        assert heard.wait(30)
    launcher.signal(started.handle, signal.SIGKILL)
    assert launcher.wait(started.handle, 30).exit_code == -signal.SIGKILL


def test_a_job_whose_last_submission_was_not_answered_is_found(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.launchers.batch.random.uniform", lambda low, high: 0.0)
    tries = 0

    def submit() -> str:
        nonlocal tries
        tries += 1
        if tries == batch.TRIES:
            desk.submitted.append("t")
        raise Unanswered("no answer within 20 s")

    assert submitted(desk, submit, "t") == "t"


@pytest.mark.parametrize(
    ("error", "kept"),
    [(Unanswered("timed out"), "the next command takes it up"), (Refused("bad partition"), "no job was submitted")],
)
def test_whether_a_job_may_have_been_submitted_is_said(
    error: Unanswered, kept: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.launchers.batch.random.uniform", lambda low, high: 0.0)

    def submit() -> str:
        raise error

    with pytest.raises(LonghaulError) as caught:
        submitted(desk, submit, "t")
    assert kept in caught.value.kept


def test_an_attempt_whose_job_is_not_found_is_fenced_against_one_that_comes_late(
    desk: Desk, attempt: AttemptDir
) -> None:
    handle = Handle(launcher="desk", owner="o", token="t")
    assert Batch(desk, 0.02).attach(handle, attempt) is None
    assert attempt.claim(1).exists()


def test_a_fence_stands_above_the_newest_claim(attempt: AttemptDir) -> None:
    attempt.claim(3).touch()
    fence(attempt)
    assert attempt.claim(4).exists() and not attempt.claim(5).exists()
