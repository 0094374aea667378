"""The zygote: a small Python process with all modules loaded, which forks one child for each job and watches it.

Single-threaded, one child at a time. Jobs come in over fd 3, replies leave over fd 4; either end closed ends the
process and its child at once. What a job costs here is counted in pages: each that is written between two forks is a
fault. That is why the way of a job has few calls, keeps its objects and writes its header by hand.
"""

from __future__ import annotations

import builtins
import gc
import marshal
import os
import sys
import warnings
from typing import Any

from . import child, compact, kernel, modules
from .frames import JOB_HEAD, JOBS_FD, NONCE_BYTES, REPLIES_FD, RESULT_FD, read_exactly
from .inbox import Inbox
from .seal import Seal, seal_child, seal_zygote
from .watch import Watch

WARM_UP = """
def f(items, text):
    found = {}
    for place, item in enumerate(sorted(items)):
        found[place] = [item, text * 2, (item > 1, None)]
    return found
"""


class Zygote:
    """What all jobs share. Sealed when it is made; may then be another process than before."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.seal = Seal(tuple(settings["without"]), settings["memory_bytes"], settings["deny_clock"])
        self._builtins = _prepare(settings["modules"])
        seal_zygote(self.seal)
        gc.collect()
        compact.fill_holes()  # the second time: those that sealing and warming up have left
        self._inbox = Inbox()
        self._watch = Watch(self._inbox, JOBS_FD, settings["wall_s"])
        self._alone, self._filtered = self.seal.holds("pidns"), self.seal.holds("seccomp")
        gc.freeze()

    def run(self) -> None:
        """Serve until the jobs end."""
        while (head := read_exactly(JOBS_FD, JOB_HEAD.size)) is not None:
            number, size, calls, cpu_s = JOB_HEAD.unpack(head)
            packed = read_exactly(JOBS_FD, size)
            if packed is None:
                return
            self._serve(number, packed, calls, cpu_s)

    def _serve(self, number: int, packed: bytes, calls: int, cpu_s: float) -> None:
        """Fork, watch, reap, reply."""
        inbox, watch = self._inbox, self._watch
        nonce = os.urandom(NONCE_BYTES)
        inbox.open(nonce)
        result_r, result_w = os.pipe()
        watch.open(result_r, calls, cpu_s)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                seal_child(self.seal, result_w, RESULT_FD, int(cpu_s * calls) + 2)
                child.run(packed, self._builtins, nonce, RESULT_FD)
                code = 0
            finally:
                os._exit(code)
        os.close(result_w)
        try:
            ending = watch.run(pid)
        finally:
            os.close(result_r)
            status, spent = kernel.end(pid, alone=self._alone, filtered=self._filtered)
        if ending is None:
            code = os.waitstatus_to_exitcode(status)
            ending = f"signal {-code}" if code < 0 else f"exit {code}"
        # JSON: lists of numbers look the same in Python. `json.dumps` would touch twenty pages more.
        line = b'{"id": %d, "sizes": %a, "cpu_spent": %a, "ended": "%s", "cpu_s": %a}\n'
        inbox.reply(REPLIES_FD, line % (number, inbox.sizes, watch.cpu_spent, ending.encode(), spent))


def _prepare(extra: list[str]) -> dict[str, Any]:
    """Forget where the modules came from; the answer is what programs find as builtins."""
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
    """Run a harmless job in this process: what its first run builds or specialises, children then share."""
    packed = marshal.dumps((WARM_UP, "f", 8, (marshal.dumps((([1, 1.0], "a"), {})),)))
    null = os.open(os.devnull, os.O_WRONLY)
    child.run(packed, program_builtins, bytes(NONCE_BYTES), null)
    os.close(null)
    sys.modules.pop("program")
