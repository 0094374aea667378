"""A follower's life: build what each rank has, meet the others, then one call after the other."""

from __future__ import annotations

import logging
import socket
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Union

import msgspec
import torch

from profiles.errors import ExitCode, LonghaulError
from workers.contract import WorkerSpec
from workers.failures import is_out_of_memory, phase_of
from workers.rank_group.replica import Replica, Setting
from workers.rank_group.wire import Begin, Call, Reply, packed, receive, send
from workers.ranks.group import Group, join

log = logging.getLogger("worker")


def follow(channel: socket.socket, begin: Begin, spec: WorkerSpec, kind: type[Replica]) -> NoReturn:
    """kind: what each rank holds.

    Raises Gone where the leader closed the channel, and everything that is not out-of-memory: then this rank is
    lost, as it cannot know what the others wait for.
    """
    setting = Setting(
        profile=spec.profile,
        head=Path(begin.head) if begin.head else None,
        isolate=spec.isolate,
        reductions=spec.reductions,
        join=partial(_join, begin),
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
        # Outside the handler: the exception's traceback held the tensors that the retry needs the room of.
        send(channel, failed or Reply(body=packed(found)))


def next_call(channel: socket.socket, replica: Replica, rank: int) -> Call[Any]:
    """What the leader asks for. Raises Gone, and LonghaulError (VERSION) for a call that has no handler here."""
    known: Any = Union[tuple(replica.handlers)]  # noqa: UP007 - of types that are known only here
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


def _join(begin: Begin, device: torch.device) -> Group:
    return join(Path(begin.store), begin.rank, begin.size, device)
