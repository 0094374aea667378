"""A worker that does what its spec says, for the tests of the line protocol."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from workers.line_contract import Note
from workers.lines import Say, serve


def work(spec: Note, say: Say) -> None:
    say(Note("begun"))
    match spec.text.split():
        case ["refuse"]:
            raise LonghaulError("bad input", kept="mine", next_command="look", exit_code=ExitCode.INPUT)
        case ["fail"]:
            raise ValueError("nobody foresaw this")
        case ["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["print"]:
            sys.stdout.write('{"type": "a library prints"}\n')
        case ["wait", path]:
            Path(path).write_text(str(os.getpid()))
            time.sleep(60)


if __name__ == "__main__":
    if "gossip" in os.environ.get("LONGHAUL_CHILD", ""):
        sys.stdout.write('not JSON\n{"type": "gossip"}\n')
        sys.exit()
    serve(Note, work)
