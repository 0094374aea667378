"""The request for a checkpoint: who asked, how far it has come, and since when its deadline counts.

It reads no clock and no store. What it does is send one message to the worker, say one line, and answer clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orchestrator.control import Client
from state.history import CheckpointFacts
from workers.contract import Message


@dataclass(frozen=True)
class Idle:
    """Nobody has asked since the last answer."""


@dataclass(frozen=True)
class Owed:
    """There was nothing to save yet, or the worker that was asked died: the next train worker is asked at once."""


@dataclass(frozen=True)
class Sent:
    """A train worker was asked."""

    worker: str
    """Its token."""
    at: float
    """Monotonic. The deadline counts from here."""


class TrainWorker(Protocol):
    """What the request needs of a `supervise.Worker`."""

    token: str

    def send(self, message: Message) -> None: ...


class CheckpointRequest:
    """One request, however many ask before it is answered.

    ```
    idle, owed --ask, a train worker runs--> sent        the worker gets one message
    idle       --ask, there is no head-----> owed
    idle, owed --ask, there is a head------> unchanged   answered: nothing is newer than the head
    owed       --a train worker started----> sent
    sent       --committed, or it ended----> idle        answered: durable
    sent       --its worker failed---------> owed
    any        --the run ended-------------> idle        answered: the run ended first
    ```
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.state: Idle | Owed | Sent = Idle()
        self._say = say
        self._clients: list[Client] = []

    def join(self, client: Client) -> None:
        """Have `client` answered with the others. It does not ask."""
        self._clients.append(client)

    def ask(self, worker: TrainWorker | None, head: CheckpointFacts | None, now: float) -> None:
        """Ask for a checkpoint. worker: the active train worker, if there is one."""
        if worker is not None:
            self._send(worker, now)
        elif head is None:
            self._say("there is nothing to save yet; the first checkpoint will answer this request")
            self.state = Owed()
        else:
            self._say(f"nothing is newer than the checkpoint of step {head.step}")
            self._answer(head, "nothing is newer than the head")

    def worker_started(self, worker: TrainWorker, now: float) -> None:
        """A train worker is active: pass on a request that is owed."""
        if isinstance(self.state, Owed):
            self._send(worker, now)

    def committed(self, head: CheckpointFacts) -> None:
        """The checkpoint that the worker made for it is the head."""
        if isinstance(self.state, Sent):
            self.state = Idle()
            self._answer(head, "durable")

    def worker_ended(self, token: str, head: CheckpointFacts | None, *, has_failed: bool) -> None:
        """A worker ended without an answer. If it did not fail, the head holds all its work."""
        if not (isinstance(self.state, Sent) and self.state.worker == token):
            return
        if has_failed:
            self.state = Owed()
        else:
            self.state = Idle()
            self._answer(head, "durable")

    def run_ended(self, head: CheckpointFacts | None) -> None:
        """No worker follows: tell everybody who waits."""
        self.state = Idle()
        self._answer(head, "the run ended first", ok=False)

    @property
    def is_sent(self) -> bool:
        return isinstance(self.state, Sent)

    def sent_at(self, token: str) -> float | None:
        """When the worker of that token was asked (monotonic); None: it was not."""
        return self.state.at if isinstance(self.state, Sent) and self.state.worker == token else None

    def later_by(self, token: str, seconds: float) -> None:
        """As if that worker had been asked so much later: time in which it, or the master, did not run."""
        if (at := self.sent_at(token)) is not None:
            self.state = Sent(token, at + seconds)

    def _send(self, worker: TrainWorker, now: float) -> None:
        """Once, however often it is asked for before the end of the step."""
        if not isinstance(self.state, Sent):
            self.state = Sent(worker.token, now)
            worker.send(Message(type="checkpoint", id=1))
            self._say("checkpoint at the end of the current step")

    def _answer(self, head: CheckpointFacts | None, note: str, *, ok: bool = True) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            if head is None:
                client.answer(ok=False, error="there is no checkpoint yet")
            elif not ok:
                client.answer(ok=False, error=f"{note}; the head is still step {head.step} ({head.path})")
            else:
                client.answer(ok=True, step=head.step, digest=head.digest, path=head.path, note=note)
