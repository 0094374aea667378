"""The request for a checkpoint: who waits for it, its state, and when its deadline started.

Reads no clock and no store. Only sends one message to the worker, prints one line, and answers clients.
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
    """No request is pending."""


@dataclass(frozen=True)
class Owed:
    """There was nothing to save yet, or the worker died before saving. The next train worker is asked at once."""


@dataclass(frozen=True)
class Sent:
    """A train worker was asked."""

    worker: str
    """The worker's token."""
    at: float
    """Monotonic time at which the deadline starts."""


class TrainWorker(Protocol):
    """The part of `supervise.Worker` that the request needs."""

    token: str

    def send(self, message: Message) -> None: ...


class CheckpointRequest:
    """One request, shared by everyone who asks before it is answered.

    ```
    idle, owed --ask, a train worker runs--> sent        the worker gets one message
    idle       --ask, there is no head-----> owed
    idle, owed --ask, there is a head------> unchanged   answered: nothing is newer than the head
    owed       --a train worker started----> sent
    sent       --committed, or it ended----> idle        answered: durable
    sent       --its worker failed---------> owed
    any        --the run ended-------------> idle        answered: the run ended first
    ```

    A worker that writes checkpoints at steps of its own is not asked: `decline` answers when the next one is due.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.state: Idle | Owed | Sent = Idle()
        self._say = say
        self._clients: list[Client] = []

    def join(self, client: Client) -> None:
        """Answer `client` when the request is answered. Does not make a request."""
        self._clients.append(client)

    def ask(self, worker: TrainWorker | None, head: CheckpointFacts | None, now: float) -> None:
        """Request a checkpoint. worker: the active train worker, if any."""
        if worker is not None:
            self._send(worker, now)
        elif head is None:
            self._say("there is nothing to save yet; the first checkpoint answers this request")
            self.state = Owed()
        else:
            self._say(f"nothing is newer than the checkpoint of step {head.step}")
            self._answer(head, "nothing is newer than the head")

    def decline(self, why: str, head: CheckpointFacts | None) -> None:
        """The worker cannot be asked: say so, and answer whoever waits."""
        self._say(why)
        self._answer(head, why, ok=False)

    def worker_started(self, worker: TrainWorker, now: float) -> None:
        """A train worker became active: send it an owed request."""
        if isinstance(self.state, Owed):
            self._send(worker, now)

    def committed(self, head: CheckpointFacts) -> None:
        """The requested checkpoint is now the head."""
        if isinstance(self.state, Sent):
            self.state = Idle()
            self._answer(head, "durable")

    def worker_ended(self, token: str, head: CheckpointFacts | None, *, has_failed: bool) -> None:
        """A worker ended without answering. If it did not fail, the head holds all its work."""
        if not (isinstance(self.state, Sent) and self.state.worker == token):
            return
        if has_failed:
            self.state = Owed()
        else:
            self.state = Idle()
            self._answer(head, "durable")

    def run_ended(self, head: CheckpointFacts | None) -> None:
        """No worker follows: answer every waiting client."""
        self.state = Idle()
        self._answer(head, "the run ended first", ok=False)

    @property
    def is_sent(self) -> bool:
        return isinstance(self.state, Sent)

    def sent_at(self, token: str) -> float | None:
        """Monotonic time at which the worker with this token was asked; None if it was not."""
        return self.state.at if isinstance(self.state, Sent) and self.state.worker == token else None

    def later_by(self, token: str, seconds: float) -> None:
        """Postpone that worker's deadline, because it or the master did not run for that long."""
        if (at := self.sent_at(token)) is not None:
            self.state = Sent(token, at + seconds)

    def _send(self, worker: TrainWorker, now: float) -> None:
        """Send the message, unless it was already sent in this step."""
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
