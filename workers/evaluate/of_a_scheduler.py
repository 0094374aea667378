"""A shard of an evaluation as a job of a scheduler: claims its directory, asks its share, reports in files there.

Only one copy of a job may work. A copy that sees the claim of a later start ends after the batch that it is asking.
"""

from __future__ import annotations

import logging
import time

import msgspec

from profiles.errors import ExitCode
from state.evaluation_array import ShardDir
from workers.line_contract import EvaluationSpec, Said
from workers.lines import reported
from workers.mailbox import FENCE_S, Mailbox, claim
from workers.process import importing

log = logging.getLogger("worker")


def work(directory: ShardDir, token: str, restart: int) -> int:
    """Returns the exit code of the process. restart: how often the scheduler has restarted the job."""
    if not claim(directory, token, restart):
        log.info("another copy of this job has the shard; this one touches nothing")
        return ExitCode.OK
    if restart:
        time.sleep(FENCE_S)
    mailbox = Mailbox(directory, token, restart)

    def say(message: Said) -> None:
        mailbox.fence()
        mailbox.send(msgspec.json.encode(message))

    def ask() -> None:
        with importing():
            from workers.evaluate.job import ask_share
        spec = msgspec.json.decode(directory.array.spec.read_bytes(), type=EvaluationSpec)
        ask_share(spec, directory, restart, say)

    return reported(ask, say)
