"""Entry of the data worker: its spec comes on standard input, what it does is told in lines."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

from workers.line_contract import DataSpec
from workers.lines import Say, serve


def work(spec: DataSpec, say: Say) -> None:
    from workers.data.job import carry_out

    carry_out(spec, say)


if __name__ == "__main__":
    serve(DataSpec, work)
