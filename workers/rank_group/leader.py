"""The leader's side of a rank group: starts the followers of its host, makes calls to all ranks, watches and ends them.

Each other host starts its own followers (`host.py`), and `hosts.py` admits them.

A single lost rank ends the attempt at once, whatever the others are doing. A collective never returns if a peer is
gone, so a thread watches the processes themselves.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from profiles.errors import ExitCode, LonghaulError
from workers.failures import is_out_of_memory, mark_phase
from workers.models.torch_setup import device_of
from workers.rank_group.calls import TakeFigures
from workers.rank_group.hosts import Hosts, Loss
from workers.rank_group.meeting import this_host
from workers.rank_group.replica import Replica, Setting, highest
from workers.rank_group.shared import RankFile, SharedEngine
from workers.rank_group.spawn import GRACE_S, RankProcess, end_all, spawn, tail_of
from workers.rank_group.wire import (
    CHANNEL_FD_VARIABLE,
    Begin,
    Call,
    Found,
    Gone,
    Reply,
    found_of,
    receive,
    send,
    unpacked,
)
from workers.ranks.group import ALONE, Group, by_file, join
from workers.ranks.own_work import node_metrics
from workers.rollout.select import Portions
from workers.runtime import Attempt

log = logging.getLogger("worker")

BLAME_S = 3.0
"""Seconds that the leader waits after its own error for news of a lost follower, which may be the cause."""
OWN_CODES = frozenset({ExitCode.CUDA_OOM, ExitCode.GPU, ExitCode.INPUT, ExitCode.SPEC, ExitCode.VERSION})
"""Exit codes by which a follower reports its own failure. Any other code means that the rank was lost."""


Own = TypeVar("Own", bound=Replica)


@dataclass
class Follower:
    """A rank other than the leader. process: None if another host started it."""

    rank: int
    channel: socket.socket
    process: RankProcess | None
    log: str

    def loss(self, code: int | None) -> Loss:
        return Loss(f"rank {self.rank}", code, tuple(tail_of(self.process.log)) if self.process else (), self.log)


class RankGroup:
    """All ranks of an attempt; this process is rank 0. With one rank it starts no processes."""

    def __init__(self, attempt: Attempt, kind: str = "") -> None:
        """kind: package of `workers` whose replica the ranks build; empty: that of `run.worker`."""
        self._attempt = attempt
        self._kind = kind or attempt.profile.run.worker
        self.size = attempt.profile.run.ranks
        self.store = attempt.dir.ranks_store
        self._followers: list[Follower] = []
        self._hosts: Hosts | None = None
        self._losses: list[Loss] = []
        """Losses on other hosts. `_judge` finds those on this host by polling the processes."""
        self._is_judged = threading.Lock()
        self._watch: threading.Thread | None = None
        self._is_closing = False
        self.replica: Replica
        """Rank 0's replica, set by `lead`."""

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self, head: Path | None) -> None:
        """Start the followers, which load their models in parallel with the leader. Call from the main thread, which
        lives as long as the process: the parent-death signal of a follower is tied to the thread that forked it."""
        if self.size == 1:
            return
        self._look_for_cards()
        run, begin = self._attempt.profile.run, partial(self._begin, head=head)
        if run.hosts > 1:
            self._hosts = self._open_to_hosts(begin)
        else:
            self.store.unlink(missing_ok=True)
        for rank in range(1, run.gpus):
            follower = self._spawn(rank)
            self._followers.append(follower)
            with suppress(Gone):  # the watch thread reports the cause
                send(follower.channel, begin(rank))
        mine = [one.process for one in self._followers if one.process]
        if mine:
            log.info("ranks 1 to %d started: pids %s", run.gpus - 1, [one.process.pid for one in mine])
        self._watch = threading.Thread(target=self._watch_followers, args=(mine,), name="ranks", daemon=True)
        self._watch.start()

    def _begin(self, rank: int, head: Path | None) -> Begin:
        return Begin(
            spec=str(self._attempt.dir.spec),
            token=self._attempt.spec.token,
            rank=rank,
            size=self.size,
            store="" if self._attempt.profile.run.hosts > 1 else str(self.store),
            head=str(head or ""),
            kind=self._kind,
        )

    def _open_to_hosts(self, begin: Callable[[int], Begin]) -> Hosts:
        """Raises LonghaulError (INPUT) if the launcher's hosts do not match the profile's."""
        run, host = self._attempt.profile.run, this_host(os.environ)
        if (host.number, host.hosts) != (0, run.hosts):
            raise LonghaulError(
                f"run.hosts = {run.hosts}, and the launcher started this worker as host {host.number} of {host.hosts}",
                kept="the head",
                next_command=f"python -m orchestrator run --set run.hosts={host.hosts}",
                exit_code=ExitCode.INPUT,
            )
        return Hosts(
            host,
            run.gpus,
            self._attempt.spec.token,
            begin,
            on_loss=self._lose,
            on_failure=self._attempt.abandon,
        )

    def _look_for_cards(self) -> None:
        """Raises LonghaulError (GPU) if this host has fewer GPUs than ranks."""
        there = torch.cuda.device_count()
        gpus = self._attempt.profile.run.gpus
        if device_of(self._attempt.profile).type == "cuda" and there < gpus:
            raise LonghaulError(
                f"run.gpus = {gpus}, and {there} usable GPUs were found",
                kept="the run, unchanged",
                next_command=f"python -m orchestrator run --set run.gpus={max(1, there)}",
                exit_code=ExitCode.GPU,
            )

    def _spawn(self, rank: int) -> Follower:
        ours, theirs = socket.socketpair()
        path = self._attempt.dir.rank_log(rank)
        process = spawn(path, rank, {CHANNEL_FD_VARIABLE: str(theirs.fileno())}, pass_fds=[theirs.fileno()])
        theirs.close()
        return Follower(rank, ours, process, path.name)

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """End all followers. If one of them caused the error, the watch thread reports it and ends this process."""
        if error is not None and self._watch is not None and not isinstance(error, LonghaulError):
            self._watch.join(BLAME_S)
        self._is_closing = True
        if self._hosts is not None:
            self._hosts.close()
        for follower in self._followers:
            follower.channel.close()
        end_all([one.process for one in self._followers if one.process])

    def lead(self, kind: type[Own], head: Path | None) -> Own:
        """Build rank 0's replica and join the other ranks."""
        attempt = self._attempt
        setting = Setting(
            profile=attempt.profile,
            head=head,
            isolate=attempt.spec.isolate,
            reductions=attempt.spec.reductions,
            warn=attempt.warn,
            join=self._join,
        )
        self.replica = replica = kind(setting)
        return replica

    def _join(self, device: torch.device) -> Group:
        if self.size == 1:
            return ALONE
        if self._hosts is None:
            return join(by_file(self.store, self.size), 0, self.size, device)
        logs = self._attempt.dir.rank_log
        for rank, channel in self._hosts.channels().items():
            self._followers.append(Follower(rank, channel, None, logs(rank).name))
        return join(self._hosts.way, 0, self.size, device)

    @property
    def engine(self) -> Portions | SharedEngine:
        """The rollout engine. With several ranks, each rank draws its part."""
        return self.replica.engine if self.size == 1 else SharedEngine(self)

    @property
    def state(self) -> list[RankFile]:
        """The checkpoint files of the model and its optimiser, to register."""
        return [RankFile(self, name) for name in self.replica.state_files]

    # --- work ----------------------------------------------------------------------------------------------------

    def take_figures(self) -> dict[str, float]:
        """Metrics of the step that the ranks measured: memory, and over several hosts how long each node computed."""
        figures = self.call(TakeFigures())
        nodes = node_metrics([one.own for one in figures]) if self._attempt.profile.run.hosts > 1 else {}
        return {**highest([one.metrics for one in figures]), **nodes}

    def call(self, asked: Call[Found]) -> list[Found]:
        """Make the same call on every rank; returns the results, rank 0's first. Raises like `call_each`."""
        return self.call_each([asked] * self.size)

    def call_each(self, asked: Sequence[Call[Found]]) -> list[Found]:
        """Make one call per rank, each with its own arguments; returns the results, rank 0's first.

        If a rank ran out of memory while no other rank had to wait for it, raises out-of-memory with its phase. All
        ranks can then retry the call with smaller sizes.
        """
        for follower, one in zip(self._followers, asked[1:], strict=True):
            self._send(follower, one)
        try:
            mine = self.replica.do(asked[0])
        except Exception as error:
            if is_out_of_memory(error):  # the others have finished or agreed to stop: drop their replies
                for follower in self._followers:
                    self._receive(follower)
            raise
        replies = [self._receive(follower) for follower in self._followers]
        for follower, reply in zip(self._followers, replies, strict=True):
            if reply.out_of_memory:
                elsewhere = RuntimeError(f"out of memory on rank {follower.rank}: {reply.out_of_memory}")
                mark_phase(elsewhere, reply.phase)
                raise elsewhere
        kind = found_of(type(asked[0]))
        return [mine, *(unpacked(reply.body, kind) for reply in replies)]

    def _send(self, follower: Follower, asked: Call[Any]) -> None:
        try:
            send(follower.channel, asked)
        except Gone as gone:
            raise self._blamed(follower) from gone

    def _receive(self, follower: Follower) -> Reply:
        try:
            return receive(follower.channel, Reply)
        except Gone as gone:
            raise self._blamed(follower) from gone

    def _blamed(self, follower: Follower) -> LonghaulError:
        """The error for a follower whose channel is closed. On this host the watch thread is sooner: it reports how the
        follower ended, and ends this process."""
        if self._watch is not None:
            self._watch.join(BLAME_S)
        return lost(follower.loss(None))

    # --- watch ---------------------------------------------------------------------------------------------------

    def _watch_followers(self, mine: list[RankProcess]) -> None:
        poll = select.poll()
        for one in mine:
            poll.register(os.pidfd_open(one.process.pid), select.POLLIN)
        poll.poll()
        self._judge()

    def _lose(self, loss: Loss) -> None:
        """Record a loss on another host. Called by the thread of `Hosts`, so it must not block."""
        self._losses.append(loss)
        threading.Thread(target=self._judge, name="judge", daemon=True).start()

    def _judge(self) -> None:
        """End this process and report the likeliest cause. The first caller waits for further losses; others return."""
        if self._is_closing or not self._is_judged.acquire(blocking=False):
            return
        time.sleep(GRACE_S)
        losses = [*self._losses]
        for one in self._followers:
            if one.process and (code := one.process.process.poll()) is not None:
                losses.append(one.loss(code))
        if not self._is_closing:
            self._attempt.abandon(lost(min(losses, key=rank_of_cause)))


def rank_of_cause(loss: Loss) -> int:
    """Sort key of losses, likeliest cause first: a rank killed by a signal, then a host or rank that is gone. (pure)"""
    if loss.code is None:
        return 1
    return 0 if loss.code < 0 else 2 if loss.code in OWN_CODES else 3


def lost(loss: Loss) -> LonghaulError:
    """The error message for a loss."""
    code = loss.code
    how = (
        "is gone"
        if code is None
        else f"was ended by {signal.Signals(-code).name}"
        if code < 0
        else f"ended with {code}"
    )
    return LonghaulError(
        "\n  ".join([f"{loss.who} {how}", *loss.tail]),
        kept="the head; what this attempt did after it is repeated",
        next_command=f"read {loss.log} in the attempt's directory",
        exit_code=ExitCode(code) if code in OWN_CODES else ExitCode.RANK,
    )
