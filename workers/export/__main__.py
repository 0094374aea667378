"""Entry of the export worker: its spec comes on standard input, files go where it says."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

import msgspec

from workers.contract import ExportSpec
from workers.lines import Say, leave, leave_when_input_ends, serve


def work(line: bytes, say: Say) -> None:
    leave_when_input_ends()
    spec = msgspec.json.decode(line, type=ExportSpec)
    with process.importing():
        from workers.export.job import export

    export(spec, say)


if __name__ == "__main__":
    leave(serve(work, "the checkpoint, as it is; nothing was exported"))
