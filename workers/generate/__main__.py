"""Entry of the worker that completes prompts: spec and prompts come on standard input, pieces of text go back."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

import msgspec

from workers.contract import GenerateSpec
from workers.lines import Say, leave, serve


def work(line: bytes, say: Say) -> None:
    spec = msgspec.json.decode(line, type=GenerateSpec)
    with process.importing():
        from workers.generate.job import answer_prompts

    answer_prompts(spec, say)


if __name__ == "__main__":
    leave(serve(work, "everything; nothing is written by this command"))
