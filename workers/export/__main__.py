"""Entry of the export worker: its spec comes on standard input, files go where it says."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
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
