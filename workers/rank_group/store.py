"""The store through which ranks of several hosts find each other: the leader's torch store, over authenticated sockets.

torch's own TCPStore obeys whoever connects to it. This store carries the addresses at which Gloo listens, and the
secret id without which NCCL accepts no peer.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from msgspec import Struct

from workers.rank_group.wire import receive, send

POLL_S = 0.01
Found = TypeVar("Found")


class Asked(Struct, tag=True):
    """A request to the store, named as in torch. None of them blocks."""


class Set(Asked):
    key: str
    value: bytes


class Get(Asked):
    key: str


class Add(Asked):
    key: str
    amount: int


class Check(Asked):
    keys: list[str]


class CompareSet(Asked):
    key: str
    expected: bytes
    desired: bytes


class Delete(Asked):
    key: str


class Count(Asked):
    pass


class Answer(Struct):
    """value: None if the key does not exist."""

    value: bytes | None = None
    number: int = 0


AnyAsked = Set | Get | Add | Check | CompareSet | Delete | Count


def answer(store: Any, asked: AnyAsked) -> Answer:
    """Perform a request on `store`, the leader's HashStore."""
    match asked:
        case Set():
            store.set(asked.key, asked.value)
        case Get():
            return Answer(store.get(asked.key) if store.check([asked.key]) else None)
        case Add():
            return Answer(number=store.add(asked.key, asked.amount))
        case Check():
            return Answer(number=int(store.check(asked.keys)))
        case CompareSet():
            return Answer(store.compare_set(asked.key, asked.expected, asked.desired))
        case Delete():
            return Answer(number=int(store.delete_key(asked.key)))
        case Count():
            return Answer(number=store.num_keys())
    return Answer()


class LeadersStore(dist.Store):  # type: ignore[misc, name-defined]
    """Client of the leader's store, for another rank. Raises Gone if the leader is gone. Thread-safe."""

    def __init__(self, channel: socket.socket, patience: timedelta) -> None:
        super().__init__()
        self._channel, self._patience, self._turn = channel, patience, threading.Lock()

    def _ask(self, asked: Asked) -> Answer:
        with self._turn:
            send(self._channel, asked)
            return receive(self._channel, Answer)

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(Set(key, _bytes(value)))

    def get(self, key: str) -> bytes:
        self.wait([key])
        value = self._ask(Get(key)).value
        assert value is not None  # nobody deletes a key that others wait for
        return value

    def add(self, key: str, amount: int) -> int:
        return self._ask(Add(key, amount)).number

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask(Check(list(keys))).number)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._ask(CompareSet(key, _bytes(expected), _bytes(desired))).value or b""

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(Delete(key)).number)

    def num_keys(self) -> int:
        return self._ask(Count()).number

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Raises DistStoreError if a key is still missing after the timeout, like torch's own stores."""
        until = time.monotonic() + (timeout or self._patience).total_seconds()
        while not self.check(keys):
            if time.monotonic() > until:
                raise dist.DistStoreError(f"wait timeout for {', '.join(keys)}")
            time.sleep(POLL_S)

    def clone(self) -> LeadersStore:
        return self


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
