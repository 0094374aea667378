"""Entry of the tracker process: its spec comes on standard input, then a byte whenever there may be something new."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

import os
import signal

from workers.line_contract import TrackSpec
from workers.lines import Say, serve

LAST_WORDS_S = 60
"""Once nobody waits any more, a tracker that hangs in a network is ended by the kernel after this."""


def work(spec: TrackSpec, say: Say) -> None:
    from workers.track.job import Tracking

    tracking = Tracking(spec, say)
    while True:
        tracking.catch_up()
        if not os.read(0, 4096):
            break
    signal.alarm(LAST_WORDS_S)
    tracking.catch_up()
    tracking.close()


if __name__ == "__main__":
    serve(TrackSpec, work, reads_input=True, outlives_parent=True)
