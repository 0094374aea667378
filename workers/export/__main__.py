"""Entry point of the export worker: reads its spec from standard input, and writes the files that it names."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every slow import: their default action kills the process
from workers import process

process.ignore_signals()

from workers.line_contract import ExportSpec
from workers.lines import Say, serve


def work(spec: ExportSpec, say: Say) -> None:
    with process.importing():
        from workers.export.job import export

    export(spec, say)


if __name__ == "__main__":
    serve(ExportSpec, work)
