"""The request for a checkpoint: every state, what can happen in it, and what its clients are told."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.checkpoint_request import CheckpointRequest, Idle, Owed, Sent
from orchestrator.control import Client
from tests.builders import a_history
from workers.contract import Message

NOW = 1000.0
HEAD = a_history().head
IDLE, OWED, SENT = Idle(), Owed(), Sent("w1", 990.0)


@dataclass
class Worker:
    """What the request knows of a worker."""

    token: str = "w1"
    heard: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.heard.append(message)


class Scene:
    """A request in some state, a worker, and a client that waits for its answer."""

    def __init__(self, state: Idle | Owed | Sent, ours: socket.socket, theirs: socket.socket) -> None:
        self.said: list[str] = []
        self.request = CheckpointRequest(self.said.append)
        self.request.state = state
        self.worker = Worker()
        self.theirs = theirs
        self.request.join(Client(ours, since=NOW))

    def answer(self) -> dict[str, Any] | None:
        """What the client was told; None: it still waits."""
        try:
            return json.loads(self.theirs.recv(4096))
        except BlockingIOError:
            return None


@pytest.fixture
def begin() -> Iterator[Callable[[Idle | Owed | Sent], Scene]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        yield lambda state: Scene(state, ours, theirs)


def ask(scene: Scene) -> None:
    scene.request.ask(scene.worker, HEAD, NOW)


def ask_without_a_worker(scene: Scene) -> None:
    scene.request.ask(None, HEAD, NOW)


def ask_before_the_first_checkpoint(scene: Scene) -> None:
    scene.request.ask(None, None, NOW)


def start(scene: Scene) -> None:
    scene.request.worker_started(scene.worker, NOW)


def commit(scene: Scene) -> None:
    scene.request.committed(HEAD)


def end_well(scene: Scene) -> None:
    scene.request.worker_ended("w1", HEAD, has_failed=False)


def fail(scene: Scene) -> None:
    scene.request.worker_ended("w1", HEAD, has_failed=True)


def another_fails(scene: Scene) -> None:
    scene.request.worker_ended("w2", HEAD, has_failed=True)


def end_the_run(scene: Scene) -> None:
    scene.request.run_ended(HEAD)


WAITS, DURABLE, NOTHING_NEWER, RUN_ENDED = "", "durable", "nothing is newer than the head", "the run ended first"


@pytest.mark.parametrize(
    ("before", "happens", "after", "told"),
    [
        (IDLE, ask, Sent("w1", NOW), WAITS),
        (IDLE, ask_without_a_worker, IDLE, NOTHING_NEWER),
        (IDLE, ask_before_the_first_checkpoint, OWED, WAITS),
        (IDLE, start, IDLE, WAITS),
        (IDLE, commit, IDLE, WAITS),
        (IDLE, end_well, IDLE, WAITS),
        (IDLE, fail, IDLE, WAITS),
        (IDLE, end_the_run, IDLE, RUN_ENDED),
        (OWED, ask, Sent("w1", NOW), WAITS),
        (OWED, ask_without_a_worker, OWED, NOTHING_NEWER),
        (OWED, ask_before_the_first_checkpoint, OWED, WAITS),
        (OWED, start, Sent("w1", NOW), WAITS),
        (OWED, commit, OWED, WAITS),
        (OWED, end_well, OWED, WAITS),
        (OWED, fail, OWED, WAITS),
        (OWED, end_the_run, IDLE, RUN_ENDED),
        (SENT, ask, SENT, WAITS),
        (SENT, commit, IDLE, DURABLE),
        (SENT, end_well, IDLE, DURABLE),
        (SENT, fail, OWED, WAITS),
        (SENT, another_fails, SENT, WAITS),
        (SENT, end_the_run, IDLE, RUN_ENDED),
    ],
    ids=lambda value: value.__name__ if callable(value) else value if isinstance(value, str) else type(value).__name__,
)
def test_what_follows_from_each_event_in_each_state(begin, before, happens, after, told) -> None:
    scene = begin(before)
    happens(scene)
    assert scene.request.state == after
    answer = scene.answer()
    assert told in (answer.get("note") or answer["error"]) if told else answer is None
    was_sent_now = isinstance(after, Sent) and before != after
    assert [message.type for message in scene.worker.heard] == ["checkpoint"] * was_sent_now


def test_an_answer_names_the_checkpoint_that_is_durable(begin) -> None:
    scene = begin(SENT)
    commit(scene)
    assert scene.answer() == {
        "ok": True, "step": HEAD.step, "digest": HEAD.digest, "path": HEAD.path, "note": "durable"
    }  # fmt: skip


def test_whoever_waits_when_the_run_ends_is_told_where_the_head_is(begin) -> None:
    scene = begin(SENT)
    end_the_run(scene)
    assert scene.answer() == {
        "ok": False, "error": f"the run ended first; the head is still step {HEAD.step} ({HEAD.path})"
    }  # fmt: skip


def test_without_any_checkpoint_the_end_of_the_run_says_so(begin) -> None:
    scene = begin(OWED)
    scene.request.run_ended(None)
    assert scene.answer() == {"ok": False, "error": "there is no checkpoint yet"}


def test_a_client_is_answered_once(begin) -> None:
    scene = begin(SENT)
    commit(scene)
    assert scene.answer() is not None
    ask(scene)
    commit(scene)
    assert scene.theirs.recv(1) == b"", "closed, and nothing follows"


def test_a_hundred_requests_are_one_message_and_one_line(begin) -> None:
    scene = begin(IDLE)
    for _ in range(100):
        ask(scene)
    assert (len(scene.worker.heard), scene.said) == (1, ["checkpoint at the end of the current step"])


def test_a_person_is_told_why_no_checkpoint_is_made(begin) -> None:
    scene = begin(IDLE)
    ask_before_the_first_checkpoint(scene)
    ask_without_a_worker(scene)
    assert scene.said == [
        "there is nothing to save yet; the first checkpoint answers this request",
        f"nothing is newer than the checkpoint of step {HEAD.step}",
    ]


def test_the_deadline_counts_from_the_asking_and_for_the_worker_that_was_asked(begin) -> None:
    scene = begin(SENT)
    assert (scene.request.sent_at("w1"), scene.request.sent_at("w2")) == (990.0, None)
    ask(scene)  # again, ten seconds later
    assert scene.request.sent_at("w1") == 990.0


def test_time_in_which_its_worker_did_not_run_does_not_count(begin) -> None:
    scene = begin(SENT)
    scene.request.later_by("w2", 50.0)
    assert scene.request.sent_at("w1") == 990.0
    scene.request.later_by("w1", 50.0)
    assert scene.request.sent_at("w1") == 1040.0


@pytest.mark.parametrize("state", [IDLE, OWED])
def test_what_was_not_sent_has_no_deadline(begin, state) -> None:
    scene = begin(state)
    scene.request.later_by("w1", 50.0)
    assert scene.request.sent_at("w1") is None and scene.request.state == state


def test_a_worker_that_saves_by_itself_is_not_asked_and_whoever_waits_learns_when_it_will(
    begin: Callable[[Idle | Owed | Sent], Scene],
) -> None:
    scene = begin(IDLE)
    scene.request.decline("the next checkpoint is that of step 40", HEAD)
    told = scene.answer()
    assert told is not None and not told["ok"] and "that of step 40; the head is still step" in told["error"]
    assert scene.worker.heard == [] and scene.request.state == IDLE
