"""Runs a follower: builds this rank's replica, joins the group, then serves one call after another."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any, NoReturn, Union

import msgspec

from profiles.errors import ExitCode, LonghaulError
from workers.contract import INTERFACE_VARIABLE, WorkerSpec
from workers.failures import is_out_of_memory, phase_of
from workers.rank_group.meeting import RANK_WAIT_S, Hello, Purpose, leader, reach
from workers.rank_group.replica import Replica, Setting
from workers.rank_group.store import LeadersStore
from workers.rank_group.wire import Begin, Call, Reply, packed, receive, send
from workers.ranks.group import PATIENCE, Way, by_file, join

log = logging.getLogger("worker")


def follow(channel: socket.socket, begin: Begin, spec: WorkerSpec, kind: type[Replica]) -> NoReturn:
    """Serve the leader's calls. kind: the replica class.

    Raises Gone if the leader closed the channel, and any error other than out-of-memory. This rank is then lost,
    because it cannot know what the other ranks wait for.
    """
    way = by_file(Path(begin.store), begin.size) if begin.store else over_hosts(begin.rank)
    setting = Setting(
        profile=spec.profile,
        head=Path(begin.head) if begin.head else None,
        isolate=spec.isolate,
        reductions=spec.reductions,
        join=lambda device: join(way, begin.rank, begin.size, device),
    )
    replica = kind(setting)
    log.info("rank %d of %d is ready", begin.rank, begin.size)
    while True:
        asked = next_call(channel, replica, begin.rank)
        found: object = None
        failed: Reply | None = None
        try:
            found = replica.do(asked)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.warning("%s: %s", type(asked).__name__, error)
            failed = Reply(out_of_memory=str(error)[:500] or "out of memory", phase=phase_of(error))
        # Outside the `except` block: its traceback keeps alive the memory that the retry needs.
        send(channel, failed or Reply(body=packed(found)))


def next_call(channel: socket.socket, replica: Replica, rank: int) -> Call[Any]:
    """The leader's next call. Raises Gone, and LonghaulError (VERSION) for a call without a handler here."""
    known: Any = Union[tuple(replica.handlers)]  # noqa: UP007 - the types are known only at run time
    try:
        asked: Call[Any] = receive(channel, known)
    except msgspec.ValidationError as error:
        raise LonghaulError(
            f"rank {rank} was asked for what it does not know ({error}): is it of another version than its leader?",
            kept="the head; what this attempt did after it is repeated",
            next_command="python -m orchestrator run",
            exit_code=ExitCode.VERSION,
        ) from error
    return asked


def over_hosts(rank: int) -> Way:
    """The way for ranks of several hosts: through the leader's store. Raises LonghaulError (RANK)."""
    place = leader()
    channel = reach(place, Hello(Purpose.STORE, rank), RANK_WAIT_S)
    return Way(LeadersStore(channel, PATIENCE), os.environ[INTERFACE_VARIABLE], place.key)
