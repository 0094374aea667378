"""The leader's side: starts the followers of one attempt, lets all ranks do the same, watches, and ends them.

One rank that is lost ends the attempt at once, whatever the others are doing: a collective never returns where a peer
is gone, so a thread waits for the processes themselves.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from profiles.errors import ExitCode, LonghaulError
from state import python
from workers.contract import CONTROL_FD_VARIABLE, LIFELINE_FD_VARIABLE
from workers.failures import is_out_of_memory, mark_phase
from workers.memory.cards import card_of
from workers.models.torch_setup import device_of
from workers.rank_group.replica import Replica, Setting
from workers.rank_group.shared import RankFile, SharedEngine
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
from workers.ranks.group import ALONE, Group, join
from workers.rollout.select import Portions
from workers.runtime import Attempt

log = logging.getLogger("worker")

GRACE_S = 0.5
"""After the first lost rank: others that it takes along end too, and the first cause is what shall be told."""
BLAME_S = 3.0
"""How long an error of the leader waits for the news that a follower is gone, which would explain it."""
CLOSE_S = 5.0
TAIL_LINES = 3
OWN_CODES = frozenset({ExitCode.CUDA_OOM, ExitCode.GPU, ExitCode.INPUT, ExitCode.SPEC, ExitCode.VERSION})
"""Exit codes of a follower that say what is the matter; any other means that it was lost."""


Own = TypeVar("Own", bound=Replica)


@dataclass
class Follower:
    """A process of ours. lifeline: our end; where it closes, the process leaves."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: socket.socket
    lifeline: int
    log: Path


class RankGroup:
    """All ranks of an attempt, this process being rank 0. With one GPU it is that alone, and starts nothing."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.size = attempt.profile.run.gpus
        self.store = attempt.dir.ranks_store
        self._followers: list[Follower] = []
        self._watch: threading.Thread | None = None
        self._is_closing = False
        self.replica: Replica
        """Rank 0's own, once `lead` has built it."""

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self, head: Path | None) -> None:
        """Start the followers, which load their models while this one does. Call from the main thread, which lives as
        long as the process: what kills a follower with its parent is tied to the thread that forked."""
        if self.size == 1:
            return
        self._look_for_cards()
        self.store.unlink(missing_ok=True)
        for rank in range(1, self.size):
            follower = self._spawn(rank)
            self._followers.append(follower)
            spec = self._attempt.spec
            begin = Begin(
                spec=str(self._attempt.dir.spec),
                token=spec.token,
                rank=rank,
                size=self.size,
                store=str(self.store),
                head=str(head or ""),
            )
            with suppress(Gone):  # the watch says why
                send(follower.channel, begin)
        log.info("ranks 1 to %d started: pids %s", self.size - 1, [one.process.pid for one in self._followers])
        self._watch = threading.Thread(target=self._watch_followers, name="ranks", daemon=True)
        self._watch.start()

    def _look_for_cards(self) -> None:
        """Raises LonghaulError (GPU) where there are fewer than ranks."""
        there = torch.cuda.device_count()
        if device_of(self._attempt.profile).type == "cuda" and there < self.size:
            raise LonghaulError(
                f"run.gpus = {self.size}, and {there} usable GPUs were found",
                kept="the run, unchanged",
                next_command=f"python -m orchestrator run --set run.gpus={max(1, there)}",
                exit_code=ExitCode.GPU,
            )

    def _spawn(self, rank: int) -> Follower:
        ours, theirs = socket.socketpair()
        reader, lifeline = os.pipe2(os.O_CLOEXEC)
        path = self._attempt.dir.rank_log(rank)
        environment = {name: value for name, value in os.environ.items() if name != CONTROL_FD_VARIABLE}
        environment |= {
            CHANNEL_FD_VARIABLE: str(theirs.fileno()),
            LIFELINE_FD_VARIABLE: str(reader),
            "CUDA_VISIBLE_DEVICES": card_of(rank, os.environ),
            "LONGHAUL_WARM": self._attempt.profile.run.worker,
        }
        with path.open("ab") as output:
            process = subprocess.Popen(
                python.command("workers.follower"),
                env=python.finding_us(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(), reader),
            )
        theirs.close()
        os.close(reader)
        return Follower(rank, process, ours, lifeline, path)

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """End all followers. Where one of them is the cause of the error, the watch ends this process and says so."""
        if error is not None and self._watch is not None and not isinstance(error, LonghaulError):
            self._watch.join(BLAME_S)
        self._is_closing = True
        for follower in self._followers:
            os.close(follower.lifeline)
            follower.channel.close()
        patience = time.monotonic() + CLOSE_S
        for follower in self._followers:
            try:
                follower.process.wait(max(0.0, patience - time.monotonic()))
            except subprocess.TimeoutExpired:
                follower.process.kill()
                follower.process.wait()

    def lead(self, kind: type[Own], head: Path | None) -> Own:
        """Build rank 0's own, and meet the others."""
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
        return ALONE if self.size == 1 else join(self.store, 0, self.size, device)

    @property
    def engine(self) -> Portions | SharedEngine:
        """Draws rollouts, with several ranks each its part."""
        return self.replica.engine if self.size == 1 else SharedEngine(self)

    @property
    def state(self) -> list[RankFile]:
        """What to register of the model and its optimiser."""
        return [RankFile(self, name) for name in self.replica.state_files]

    # --- work ----------------------------------------------------------------------------------------------------

    def call(self, asked: Call[Found]) -> list[Found]:
        """Let every rank do the same; what each found, rank 0's first. Raises as `call_each`."""
        return self.call_each([asked] * self.size)

    def call_each(self, asked: Sequence[Call[Found]]) -> list[Found]:
        """The same call of each rank, with arguments of its own; what each found.

        Where one ran out of memory and no other had to wait for it, raises out-of-memory with its phase: all may do it
        again with less.
        """
        for follower, one in zip(self._followers, asked[1:], strict=True):
            self._send(follower, one)
        try:
            mine = self.replica.do(asked[0])
        except Exception as error:
            if is_out_of_memory(error):  # the others have done their part, or have agreed; what they say is dropped
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
            raise lost(follower, None) from gone

    def _receive(self, follower: Follower) -> Reply:
        try:
            return receive(follower.channel, Reply)
        except Gone as gone:
            if self._watch is not None:
                self._watch.join(BLAME_S)  # it knows how the follower ended, and ends this process
            raise lost(follower, None) from gone

    # --- watch ---------------------------------------------------------------------------------------------------

    def _watch_followers(self) -> None:
        poll = select.poll()
        for follower in self._followers:
            poll.register(os.pidfd_open(follower.process.pid), select.POLLIN)
        poll.poll()
        if self._is_closing:
            return
        time.sleep(GRACE_S)
        ended = [(one, code) for one in self._followers if (code := one.process.poll()) is not None]
        if self._is_closing or not ended:
            return
        # A rank that a signal ended is the cause; others then fail because it is gone.
        first, code = min(ended, key=lambda pair: (pair[1] >= 0, pair[1] not in OWN_CODES))
        self._attempt.abandon(lost(first, code))


def lost(follower: Follower, code: int | None) -> LonghaulError:
    """A rank that ended. code: as Popen gives it; None: not known."""
    how = (
        "is gone"
        if code is None
        else f"was ended by {signal.Signals(-code).name}"
        if code < 0
        else f"ended with {code}"
    )
    with suppress(OSError):
        lines = [line.strip() for line in follower.log.read_text(errors="replace").splitlines() if line.strip()]
        how += "".join(f"\n  {line[:300]}" for line in lines[-TAIL_LINES:])
    return LonghaulError(
        f"rank {follower.rank} {how}",
        kept="the head; what this attempt did after it is repeated",
        next_command=f"read {follower.log.name} in the attempt's directory",
        exit_code=ExitCode(code) if code in OWN_CODES else ExitCode.RANK,
    )
