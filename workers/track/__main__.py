"""Entry point of the tracker process: reads its spec from standard input, then one byte whenever there may be news."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every slow import: their default action kills the process
from workers import process

process.ignore_signals()

import os
import signal

from workers.line_contract import TrackSpec
from workers.lines import Say, serve

LAST_WORDS_S = 60
"""Seconds after which the kernel ends a tracker that hangs in a network call when nobody waits for it any more."""


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
