"""Entry point of the worker that completes prompts: reads spec and prompts from standard input, streams text back."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every slow import: their default action kills the process
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
