"""Entry of the worker that completes prompts: spec and prompts come on standard input, pieces of text go back."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

from workers.line_contract import GenerateSpec
from workers.lines import Say, serve


def work(spec: GenerateSpec, say: Say) -> None:
    with process.importing():
        from workers.generate.job import answer_prompts

    answer_prompts(spec, say)


if __name__ == "__main__":
    serve(GenerateSpec, work, reads_input=True)
