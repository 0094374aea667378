"""Entry point of a follower, `python -m workers.follower`: a rank that carries out its leader's calls until it is gone.

On every host but the leader's, the launcher starts one such process, which starts that host's ranks.
"""

from __future__ import annotations

# ruff: noqa: E402 - ignore signals before any slow import: their default action ends the process
from workers import process

process.ignore_signals()

import logging
import os
import socket
import sys
import traceback
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from workers import kinds
from workers.contract import HOST_VARIABLE, LIFELINE_FD_VARIABLE
from workers.failures import exit_code_of
from workers.rank_group import host as ranks
from workers.rank_group.meeting import RANK_WAIT_S, Hello, Host, Purpose, leader, reach, this_host
from workers.rank_group.spawn import RANK_VARIABLE
from workers.rank_group.wire import CHANNEL_FD_VARIABLE, Begin, Gone, Ranks, RayNode, receive
from workers.runtime import read_spec


def main() -> int:
    process.set_up(logging.INFO, lifeline_variable=LIFELINE_FD_VARIABLE)
    try:
        if os.environ.get(HOST_VARIABLE):
            return attend(this_host(os.environ))
        channel = channel_to_the_leader()
        if channel is None:
            sys.stderr.write("error: workers.follower is started by a worker or by a launcher, not by hand\n")
            return ExitCode.USAGE
        begin = receive(channel, Begin)
        spec = read_spec(Path(begin.spec), begin.token)
        with process.importing():
            from workers.rank_group.follower import follow

            kind = kinds.worker_kind_named(begin.kind).replica()
        follow(channel, begin, spec, kind)
    except Gone:
        return ExitCode.STORE
    except LonghaulError as error:
        logging.getLogger("worker").error("%s", error.render())
        return error.exit_code
    except Exception as error:
        logging.getLogger("worker").error("%s\n%s", error, traceback.format_exc())
        return exit_code_of(error)
    return ExitCode.OK


def attend(host: Host) -> int:
    """Do on a further host what its leader asks for. Raises LonghaulError."""
    line = ranks.reach_leader(host)
    if line is None:
        return ExitCode.OK
    try:
        asked: Ranks | RayNode = receive(line, Ranks | RayNode)  # type: ignore[arg-type]
    except Gone:
        return ExitCode.RANK
    if isinstance(asked, Ranks):
        return ranks.attend(line, asked, host)
    from workers.verl import cluster

    return cluster.attend(line, asked, host)


def channel_to_the_leader() -> socket.socket | None:
    """A socket pair on the leader's host, TCP on others; None if started by hand. Raises LonghaulError (RANK)."""
    fd = process.inherited_fd(CHANNEL_FD_VARIABLE)
    if fd is not None:
        return socket.socket(fileno=fd)
    if rank := os.environ.get(RANK_VARIABLE):
        return reach(leader(), Hello(Purpose.CALLS, int(rank)), RANK_WAIT_S)
    return None


if __name__ == "__main__":
    process.leave(main())
