"""A follower's life: build what each rank has, meet the others, then one command after the other."""

from __future__ import annotations

import logging
import socket
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch

from workers.contract import WorkerSpec
from workers.failures import is_out_of_memory, phase_of
from workers.rank_group.replica import Replica, Setting
from workers.rank_group.wire import Begin, Command, Reply, packed, receive, send, unpacked
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
        command = receive(channel, Command)
        type_ = replica.commands[command.name]
        found: object = None
        failed: Reply | None = None
        try:
            found = getattr(replica, command.name)(unpacked(command.body, type_) if type_ else None)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.warning("%s: %s", command.name, error)
            failed = Reply(out_of_memory=str(error)[:500] or "out of memory", phase=phase_of(error))
        # Outside the handler: the exception's traceback held the tensors that the retry needs the room of.
        send(channel, failed or Reply(body=packed(found if command.name in replica.answers else None)))


def _join(begin: Begin, device: torch.device) -> Group:
    return join(Path(begin.store), begin.rank, begin.size, device)
