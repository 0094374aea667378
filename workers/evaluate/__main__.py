"""Entry of the evaluation worker: its spec comes on standard input, what it finds goes back in lines."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

import logging

from workers.line_contract import EvaluationSpec
from workers.lines import Say, serve


def work(spec: EvaluationSpec, say: Say) -> None:
    with process.importing():
        from workers.evaluate.job import evaluate

    evaluate(spec, say)


if __name__ == "__main__":
    serve(EvaluationSpec, work, level=logging.INFO)
