"""Entry point of the evaluation worker: reads its spec from standard input, and reports results in lines.

A job of a scheduler has a directory instead of the input; see `workers/evaluate/of_a_scheduler.py`.
"""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every slow import: their default action kills the process
from workers import process

process.ignore_signals()

import logging
import os
from pathlib import Path

from state.evaluation_array import ShardDir
from workers.contract import MAILBOX_VARIABLE, RESTART_VARIABLE, TOKEN_VARIABLE
from workers.evaluate import of_a_scheduler
from workers.line_contract import EvaluationSpec
from workers.lines import Say, serve


def work(spec: EvaluationSpec, say: Say) -> None:
    with process.importing():
        from workers.evaluate.job import evaluate

    evaluate(spec, say)


if __name__ == "__main__":
    if mailbox := os.environ.get(MAILBOX_VARIABLE, ""):
        process.set_up(logging.INFO)
        restart = int(os.environ.get(RESTART_VARIABLE) or 0)
        process.leave(of_a_scheduler.work(ShardDir(Path(mailbox)), os.environ.get(TOKEN_VARIABLE, ""), restart))
    serve(EvaluationSpec, work, level=logging.INFO)
