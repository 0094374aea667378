"""Entry point of the data worker: reads its spec from standard input, and reports in lines."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every slow import: their default action kills the process
from workers import process

process.ignore_signals()

from workers.line_contract import DataSpec
from workers.lines import Say, serve


def work(spec: DataSpec, say: Say) -> None:
    from workers.data.job import carry_out

    carry_out(spec, say)


if __name__ == "__main__":
    serve(DataSpec, work)
