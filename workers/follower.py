"""Entry of a follower, `python -m workers.follower`: started by rank 0, it does what that says until it is gone."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

import logging
import socket
import sys
import traceback
from pathlib import Path

from profiles.errors import ExitCode
from workers import kinds
from workers.contract import LIFELINE_FD_VARIABLE
from workers.failures import exit_code_of
from workers.rank_group.wire import CHANNEL_FD_VARIABLE, Begin, Gone, receive
from workers.runtime import read_spec


def main() -> int:
    process.set_up(logging.INFO, lifeline_variable=LIFELINE_FD_VARIABLE)
    fd = process.inherited_fd(CHANNEL_FD_VARIABLE)
    if fd is None:
        sys.stderr.write("error: workers.follower is started by a worker that uses several GPUs, not by hand\n")
        return ExitCode.USAGE
    channel = socket.socket(fileno=fd)
    try:
        begin = receive(channel, Begin)
        spec = read_spec(Path(begin.spec), begin.token)
        with process.importing():
            from workers.rank_group.follower import follow

            kind = kinds.worker_kind_named(spec.profile.run.worker).replica()
        follow(channel, begin, spec, kind)
    except Gone:
        return ExitCode.STORE
    except Exception as error:
        logging.getLogger("worker").error("%s\n%s", error, traceback.format_exc())
        return exit_code_of(error)
    return ExitCode.OK


if __name__ == "__main__":
    process.leave(main())
