"""The leader's side of a run on several hosts: admits the other hosts and ranks, serves the store, detects losses.

One thread does all of it. Once everyone is there, it closes the listening socket.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import torch.distributed as dist

from profiles.errors import ExitCode, LonghaulError
from workers.contract import HOSTS_WAIT_VARIABLE
from workers.rank_group.meeting import Hello, Host, Place, Purpose, Stranger, admit, listen, publish
from workers.rank_group.store import AnyAsked, answer
from workers.rank_group.wire import Begin, Farewell, Gone, RankEnded, Ranks, receive, send
from workers.ranks.group import PATIENCE, Way

log = logging.getLogger("worker")


@dataclass(frozen=True)
class Loss:
    """A rank or host that ended. code: the return code as in Popen, None if unknown. tail: last lines of `log`."""

    who: str
    code: int | None
    tail: tuple[str, ...]
    log: str


class Hosts:
    """The leader's connections to the other hosts. begin: makes the first message to a rank."""

    def __init__(
        self,
        host: Host,
        gpus: int,
        token: str,
        begin: Callable[[int], Begin],
        *,
        on_loss: Callable[[Loss], None],
        on_failure: Callable[[LonghaulError], Any],
    ) -> None:
        """Listens when this returns. Raises LonghaulError: INPUT for a missing interface, LOCKED if another leader was
        first."""
        self._host, self._gpus, self._begin = host, gpus, begin
        self._on_loss, self._on_failure = on_loss, on_failure
        size = host.hosts * gpus
        self._missing = {Hello(Purpose.HOST, number) for number in range(1, host.hosts)}
        self._missing |= {Hello(Purpose.CALLS, rank) for rank in range(gpus, size)}
        self._missing |= {Hello(Purpose.STORE, rank) for rank in range(1, size)}
        self._listener = listen(host.interface)
        self._listener.setblocking(False)
        try:
            self.place: Place = publish(host.meeting, self._listener, token)
        except BaseException:
            self._listener.close()
            raise
        self._lead = {number: Ranks(number * gpus, gpus) for number in range(1, host.hosts)}
        self._here: dict[Hello, socket.socket] = {}
        self._refused = 0
        self._everyone = threading.Event()
        self._woken, self._wake = os.pipe()
        self._store = dist.HashStore()  # type: ignore[attr-defined]
        self._store.set_timeout(PATIENCE)
        self.way = Way(self._store, host.interface, self.place.key)
        self._thread = threading.Thread(target=self._serve, name="hosts", daemon=True)
        self._thread.start()

    def channels(self) -> dict[int, socket.socket]:
        """Rank -> its call channel, for all ranks of other hosts. Waits until everyone is there; a missing host or rank
        ends the attempt."""
        self._everyone.wait()
        return {one.number: self._here[one] for one in sorted(self._here, key=_order) if one.purpose is Purpose.CALLS}

    def close(self) -> None:
        """End the attempt normally: the hosts end their ranks and exit with code 0."""
        os.close(self._wake)
        self._thread.join()
        os.close(self._woken)
        self._listener.close()
        for hello, channel in self._here.items():
            if hello.purpose is Purpose.HOST:
                with suppress(Gone):
                    send(channel, Farewell())
        for channel in self._here.values():
            channel.close()

    def _serve(self) -> None:
        until = time.monotonic() + self._host.wait_s
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        watched: dict[int, Hello] = {}
        while True:
            left = None if self._everyone.is_set() else max(0.0, until - time.monotonic()) * 1000
            for fd, _ in poll.poll(left):
                if fd == self._woken:
                    return
                if fd == self._listener.fileno():
                    if (hello := self._admit()) and hello.purpose is not Purpose.CALLS:
                        watched[self._here[hello].fileno()] = hello
                        poll.register(self._here[hello], select.POLLIN)
                elif not self._hear(watched[fd]):
                    poll.unregister(fd)
            if self._everyone.is_set():
                continue
            if not self._missing:
                poll.unregister(self._listener)
                self._listener.close()
                log.info("%d hosts are there; strangers refused: %d", self._host.hosts, self._refused)
                self._everyone.set()
            elif time.monotonic() > until:
                self._on_failure(self._not_there())
                return

    def _admit(self) -> Hello | None:
        try:
            channel, address = self._listener.accept()
        except OSError:  # it disconnected before its turn
            return None
        try:
            hello = admit(channel, self.place.key, self._missing.__contains__)
            self._missing.remove(hello)
            self._here[hello] = channel
            if hello.purpose is Purpose.HOST:
                send(channel, self._lead[hello.number])
            elif hello.purpose is Purpose.CALLS:
                send(channel, self._begin(hello.number))
            return hello
        except (Stranger, Gone) as error:
            self._refused += 1
            log.warning("refused a connection from %s: %s", address[0], str(error) or "it does not know the key")
            channel.close()
            return None

    def _hear(self, hello: Hello) -> bool:
        """Handle one message. Returns False if no more will follow."""
        channel = self._here[hello]
        try:
            if hello.purpose is Purpose.STORE:
                send(channel, answer(self._store, receive(channel, AnyAsked)))  # type: ignore[arg-type]
                return True
            ended = receive(channel, RankEnded)
        except (Gone, msgspec.MsgspecError):
            if hello.purpose is Purpose.HOST:
                where = f"the output of its process, and rank-{hello.number * self._gpus}.log"
                self._on_loss(Loss(f"host {hello.number}", None, (), where))
            return False
        self._on_loss(Loss(f"rank {ended.rank}", ended.code, tuple(ended.tail), f"rank-{ended.rank}.log"))
        return False

    def _not_there(self) -> LonghaulError:
        first = min(self._missing, key=_order)
        hosts = sorted(one.number for one in self._missing if one.purpose is Purpose.HOST)
        named = ", ".join(map(str, hosts)) if hosts else f"{first.number // self._gpus} (its rank {first.number})"
        refused = f"; {self._refused} connections were refused" if self._refused else ""
        return LonghaulError(
            f"of {self._host.hosts} hosts, these did not come within {self._host.wait_s:g} s: {named}{refused}",
            kept="the head",
            next_command=f"see what the launcher started there; {HOSTS_WAIT_VARIABLE} sets how long hosts wait",
            exit_code=ExitCode.RANK,
        )


def _order(hello: Hello) -> tuple[int, int]:
    return hello.purpose, hello.number
