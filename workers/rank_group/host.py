"""Runs on each host other than the leader's: starts the ranks there, watches them, and ends with the leader."""

from __future__ import annotations

import logging
import os
import select
import socket
import time

from profiles.errors import ExitCode
from state.layout import AttemptDir
from workers.rank_group.meeting import Hello, Host, Purpose, find, reach
from workers.rank_group.spawn import GRACE_S, RANK_VARIABLE, RankProcess, end_all, spawn, tail_of
from workers.rank_group.wire import Farewell, Gone, RankEnded, Ranks, receive, send

log = logging.getLogger("worker")

BLAME_MS = 5000.0
"""How long the leader has to end the attempt after a report of a lost rank."""


def reach_leader(host: Host) -> socket.socket | None:
    """The proved connection to the leader; None if the attempt ended without this host. Raises LonghaulError."""
    attempt = AttemptDir(host.meeting.parent)
    place = find(host, attempt.result.exists)
    if place is None:
        log.info("host %d was not needed", host.number)
        return None
    return reach(place, Hello(Purpose.HOST, host.number), host.wait_s)


def attend(line: socket.socket, asked: Ranks, host: Host) -> int:
    """Start the ranks, and watch them. Returns the exit code: 0 if the leader sent Farewell. Raises LonghaulError."""
    attempt = AttemptDir(host.meeting.parent)
    processes = {
        rank: spawn(attempt.rank_log(rank), rank - asked.first, {RANK_VARIABLE: str(rank)})
        for rank in range(asked.first, asked.first + asked.count)
    }
    log.info("host %d of %d: ranks %s started", host.number, host.hosts, _pids(processes))
    try:
        return watch(line, processes)
    finally:
        end_all(list(processes.values()))


def _pids(processes: dict[int, RankProcess]) -> str:
    return ", ".join(f"{rank} (pid {one.process.pid})" for rank, one in processes.items())


def watch(line: socket.socket, processes: dict[int, RankProcess]) -> int:
    """Wait until the leader is gone or sends Farewell, or a rank ends. Reports an ended rank to the leader. Returns the
    exit code."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    for one in processes.values():
        poll.register(os.pidfd_open(one.process.pid), select.POLLIN)
    if any(fd == line.fileno() for fd, _ in poll.poll()):
        return _heard(line)
    time.sleep(GRACE_S)
    if _is_readable(line, 0):  # the ranks end with the leader, perhaps before this process notices
        return _heard(line)
    ended = {rank: code for rank, one in processes.items() if (code := one.process.poll()) is not None}
    # A rank killed by a signal is the cause; the others then fail because it is gone.
    rank, code = min(ended.items(), key=lambda pair: pair[1] >= 0)
    log.error("rank %d ended with %d", rank, code)
    try:
        send(line, RankEnded(rank, code, tail_of(processes[rank].log)))
    except Gone:
        return ExitCode.RANK
    return _heard(line) if _is_readable(line, BLAME_MS) else ExitCode.RANK


def _is_readable(line: socket.socket, milliseconds: float) -> bool:
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return bool(poll.poll(milliseconds))


def _heard(line: socket.socket) -> int:
    try:
        receive(line, Farewell)
    except Gone:
        log.error("the leader is gone")
        return ExitCode.RANK
    return ExitCode.OK
