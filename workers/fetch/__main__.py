"""Entry point of the worker that fetches a model: reads a spec from standard input, reports progress and the folder."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every slow import: their default action kills the process
from workers import process

process.ignore_signals()

from workers.line_contract import FetchSpec
from workers.lines import Say, serve


def work(spec: FetchSpec, say: Say) -> None:
    with process.importing():
        from workers.fetch.job import fetch

    fetch(spec, say)


if __name__ == "__main__":
    serve(FetchSpec, work)
