"""Entry point of the worker of `rewards test`: reads its spec from standard input, and reports in lines."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every slow import: their default action kills the process
from workers import process

process.ignore_signals()

from workers.line_contract import RewardsSpec
from workers.lines import Say, serve


def work(spec: RewardsSpec, say: Say) -> None:
    from workers.reward_test.job import carry_out

    carry_out(spec, say)


if __name__ == "__main__":
    serve(RewardsSpec, work)
