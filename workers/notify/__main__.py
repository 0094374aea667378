"""Entry point of the process that sends messages: reads its spec from standard input, and a byte when the run ends."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every slow import: their default action kills the process
from workers import process

process.ignore_signals()

import os
import signal
import time

from workers.line_contract import Delivered, NotifySpec
from workers.lines import Say, serve


def work(spec: NotifySpec, say: Say) -> None:
    from workers.notify.job import Notifier, serve_run

    if spec.is_test:
        try_all(spec, say)
        return
    notifier = Notifier(spec, say, os.environ)
    serve_run(notifier, 0)
    notifier.close()


def try_all(spec: NotifySpec, say: Say) -> None:
    """Send a test to each target, once."""
    from workers.line_contract import Note
    from workers.notify.events import trial
    from workers.notify.targets import targets_of

    targets, problems = targets_of(spec.notify, os.environ)
    for problem in problems:
        say(Note(problem))
    environment = {name: value for name, value in os.environ.items() if name != spec.notify.urls_env}
    for target in targets:
        began = time.monotonic()
        error = target.send(trial(spec.name, spec.run_id), spec.notify.timeout_s, environment)
        say(Delivered(target.name, error, round(time.monotonic() - began, 2)))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    serve(NotifySpec, work, reads_input=True, outlives_parent=True)
