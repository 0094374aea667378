"""The zygote: a small Python process with all modules loaded that forks and watches one child per job.

Single-threaded, one child at a time. Jobs arrive on fd 3 and replies leave on fd 4; closing either one ends the zygote
and its child. The cost of a job is measured in pages: each page written between two forks causes a fault. The code path
of a job therefore makes few calls, reuses objects and formats its header by hand.
"""

from __future__ import annotations

import builtins
import gc
import marshal
import os
import sys
import warnings
from typing import Any

from . import child, compact, kernel, modules, script
from .frames import HEADER, JOB_HEAD, JOBS_FD, NONCE_BYTES, REPLIES_FD, RESULT_FD, read_exactly
from .inbox import Inbox
from .seal import Seal, seal_child, seal_zygote
from .streams import Streams
from .watch import Watch

WARM_UP = """
def f(items, text):
    found = {}
    for place, item in enumerate(sorted(items)):
        found[place] = [item, text * 2, (item > 1, None)]
    return found
"""


class Zygote:
    """State shared by all jobs. The constructor seals the process and may return in a new process (pid 1)."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.seal = Seal(tuple(settings["without"]), settings["memory_bytes"], settings["deny_clock"])
        self._builtins = _prepare(settings["modules"])
        self._surroundings = script.Surroundings(self._builtins) if settings["scripts"] else None
        self._ambient = self._surroundings.ambient if self._surroundings is not None else None
        seal_zygote(self.seal)
        gc.collect()
        compact.fill_holes()  # again: fill the holes left by sealing and warming up
        self._inbox = Inbox()
        self._watch = Watch(self._inbox, JOBS_FD)
        self._streams = Streams(JOBS_FD)
        self._alone, self._filtered = self.seal.holds("pidns"), self.seal.holds("seccomp")
        gc.freeze()

    def run(self) -> None:
        """Serve until the job stream ends."""
        while (head := read_exactly(JOBS_FD, JOB_HEAD.size)) is not None:
            number, size, calls, cpu_s, wall_s, memory = JOB_HEAD.unpack(head)
            packed = read_exactly(JOBS_FD, size)
            if packed is None:
                return
            if calls:
                self._serve(number, packed, calls, cpu_s, wall_s, memory)
            else:
                self._serve_script(number, packed, cpu_s, wall_s, memory)

    def _serve(self, number: int, packed: bytes, calls: int, cpu_s: float, wall_s: float, memory: int) -> None:
        """Fork, watch, reap, reply."""
        inbox, watch = self._inbox, self._watch
        nonce = os.urandom(NONCE_BYTES)
        inbox.open(nonce)
        result_r, result_w = os.pipe()
        watch.open(result_r, calls, cpu_s, wall_s)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                seal_child(self.seal, ((result_w, RESULT_FD),), int(cpu_s * calls) + 2, memory)
                child.run(packed, self._builtins, nonce, RESULT_FD, self._ambient)
                code = 0
            finally:
                os._exit(code)
        os.close(result_w)
        try:
            ending = watch.run(pid)
        finally:
            os.close(result_r)
            status, spent = kernel.end(pid, alone=self._alone, filtered=self._filtered)
        ending = ending or _ending(status)
        # Python formats lists of numbers as valid JSON. `json.dumps` would touch twenty more pages.
        line = b'{"id": %d, "sizes": %a, "cpu_spent": %a, "ended": "%s", "cpu_s": %a}\n'
        inbox.reply(REPLIES_FD, line % (number, inbox.sizes, watch.cpu_spent, ending.encode(), spent))

    def _serve_script(self, number: int, message: bytes, cpu_s: float, wall_s: float, memory: int) -> None:
        """Like `_serve`, for a script: its input precedes it in the message, and its process sends no frames."""
        streams, surroundings = self._streams, self._surroundings
        assert surroundings is not None
        start = HEADER.size + HEADER.unpack_from(message)[0]
        view = memoryview(message)
        ends = streams.open(view[HEADER.size : start])
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                seal_child(self.seal, ends, int(cpu_s) + 2, memory)
                code = script.run(view[start:], surroundings)
            finally:
                os._exit(code)
        streams.close_ends()
        try:
            ending = streams.run(pid, cpu_s, wall_s)
        finally:
            streams.close()
            status, spent = kernel.end(pid, alone=self._alone, filtered=self._filtered)
        streams.reply(REPLIES_FD, number, ending or _ending(status), spent)


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit {code}"


def _prepare(extra: list[str]) -> dict[str, Any]:
    """Remove import paths, arguments and environment; returns the builtins for programs."""
    warnings.simplefilter("ignore")
    program_builtins = dict(vars(builtins))
    program_builtins["__import__"] = modules.gatekeeper(extra)
    sys.path[:] = []
    sys.meta_path[:] = []
    sys.path_hooks[:] = []
    sys.argv[:] = [""]
    os.environ.clear()
    _warm_up(program_builtins)
    return program_builtins


def _warm_up(program_builtins: dict[str, Any]) -> None:
    """Run a harmless job in this process, so that children share what a first run builds or specialises."""
    packed = marshal.dumps((WARM_UP, "f", 8, (marshal.dumps((([1, 1.0], "a"), {})),), False))
    null = os.open(os.devnull, os.O_WRONLY)
    child.run(packed, program_builtins, bytes(NONCE_BYTES), null)
    os.close(null)
    sys.modules.pop("program")
