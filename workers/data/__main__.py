"""Entry of the data worker: its spec comes on standard input, what it does goes to standard output as JSON lines."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

import logging
import os
import sys
import traceback
from typing import Any

import msgspec

from profiles.errors import ExitCode, LonghaulError
from workers.contract import DataSpec
from workers.failures import exit_code_of

KEPT = "the data set as it was, and all sources"


def main() -> int:
    process.die_with_parent()
    process.dump_on_usr2()
    process.offer_to_oom_killer()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    # What libraries print goes to the log, and only our lines to the one who reads them.
    lines = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    text = sys.stdin.buffer.readline()
    # Whoever asked holds the other end: when it closes, nobody waits for us any more.
    lifeline = os.dup(0)
    os.set_inheritable(lifeline, False)
    process.watch_lifeline(lifeline)

    def say(type_: str, /, **data: Any) -> None:
        lines.write(msgspec.json.encode({"type": type_, **data}) + b"\n")

    try:
        spec = msgspec.json.decode(text, type=DataSpec)
        from workers.data.job import carry_out

        carry_out(spec, say)
    except BrokenPipeError:
        return int(ExitCode.STORE)
    except LonghaulError as error:
        say("error", what=error.what, kept=error.kept, next_command=error.next_command, exit_code=int(error.exit_code))
        return int(error.exit_code)
    except Exception as error:
        logging.error("the data worker failed: %s", traceback.format_exc())
        code = exit_code_of(error)
        say("error", what=f"{type(error).__name__}: {error}"[:2000], kept=KEPT,
            next_command="python -m orchestrator doctor", exit_code=code)  # fmt: skip
        return code
    say("done")
    return int(ExitCode.OK)


if __name__ == "__main__":
    exit_code = main()
    sys.stderr.flush()
    os._exit(exit_code)
