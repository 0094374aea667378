"""Entry of the evaluation worker: reads its spec, tells in JSON lines on standard output how it goes."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

from profiles.errors import ExitCode, LonghaulError
from workers.contract import LIFELINE_FD_VARIABLE, EvaluationSpec
from workers.failures import exit_code_of


def main(arguments: list[str]) -> int:
    lifeline = process.inherited_fd(LIFELINE_FD_VARIABLE)
    if lifeline is not None:
        process.watch_lifeline(lifeline)
        process.die_with_parent()
    process.dump_on_usr2()
    process.offer_to_oom_killer()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    # Libraries print: what they say goes to the log, and only our lines to the one who reads them.
    lines = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def say(type_: str, /, **data: Any) -> None:
        lines.write(msgspec.json.encode({"type": type_, **data}) + b"\n")

    try:
        spec = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=EvaluationSpec)
        with process.importing():
            from workers.evaluate.job import evaluate

        evaluate(spec, say)
    except BrokenPipeError:
        return int(ExitCode.STORE)
    except LonghaulError as error:
        say("error", what=error.what, kept=error.kept, next_command=error.next_command, exit_code=int(error.exit_code))
        return int(error.exit_code)
    except Exception as error:
        logging.error("evaluation failed: %s", traceback.format_exc())
        code = exit_code_of(error)
        say("error", what=f"{type(error).__name__}: {error}"[:2000], kept="every answer so far",
            next_command=f"tail {Path(arguments[0]).parent / 'worker.log'}", exit_code=code)  # fmt: skip
        return code
    say("done")
    return int(ExitCode.OK)


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    logging.shutdown()
    sys.stderr.flush()
    os._exit(exit_code)  # the teardown of a tensor library takes long
