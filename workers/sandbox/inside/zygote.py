"""The zygote: a small Python process with all modules loaded, which forks one child for each job and watches it.

Single-threaded, one child at a time. Jobs come in over fd 3 as framed JSON, replies leave over fd 4; either end closed
ends the process and its child at once.
"""

from __future__ import annotations

import builtins
import gc
import os
import signal
import sys
import warnings
from contextlib import suppress
from typing import Any

from . import child, modules
from .frames import NONCE_BYTES, Inbox, read_frame, write_frame
from .seal import Seal, seal_child, seal_zygote
from .watch import Watch

JOBS_FD, REPLIES_FD, RESULT_FD = 3, 4, 3

WARM_UP = """
def f(items, text):
    found = {}
    for place, item in enumerate(sorted(items)):
        found[place] = [item, text * 2, (item > 1, None)]
    return found
"""


def main() -> None:
    """Serve until the parent goes away. Standard input carries jobs, standard output replies."""
    _move_descriptors()
    settings = read_frame(JOBS_FD)
    if settings is None:
        return
    seal = Seal(tuple(settings["without"]), settings["memory_bytes"], settings["deny_clock"])
    try:
        program_builtins, failed = _prepare(settings)
        seal_zygote(seal)
    except BaseException as error:
        write_frame(REPLIES_FD, {"failed": f"{type(error).__name__}: {error}"})
        return
    write_frame(REPLIES_FD, {"modules_failed": failed, "layers": seal.layers, "uid": os.geteuid()})
    inbox = Inbox()
    while (job := read_frame(JOBS_FD)) is not None:
        _serve(job, program_builtins, seal, inbox, settings["wall_s"])


def _move_descriptors() -> None:
    """Jobs and replies leave 0 and 1 to /dev/null, so that a child's `print` cannot reach the parent."""
    os.dup2(0, JOBS_FD)
    os.dup2(1, REPLIES_FD)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(REPLIES_FD + 1, 1 << 16)


def _prepare(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Load all that programs may import, then forget where it came from."""
    # Hooks after fork re-seed generators and repair locks that a process of one thread cannot have broken.
    os.register_at_fork = lambda **_: None
    failed = modules.load(settings["modules"])
    warnings.simplefilter("ignore")
    program_builtins = dict(vars(builtins))
    program_builtins["__import__"] = modules.gatekeeper(settings["modules"])
    sys.path[:] = []
    sys.meta_path[:] = []
    sys.path_hooks[:] = []
    sys.argv[:] = [""]
    os.environ.clear()
    _warm_up(program_builtins)
    gc.collect()
    gc.freeze()
    return program_builtins, failed


def _warm_up(program_builtins: dict[str, Any]) -> None:
    """Run a harmless job in this process: what its first run builds or specialises, children then share."""
    job = {"program": WARM_UP, "entry": "f", "repeat": 8, "inputs": [[[["l", 1, ["f", "0x1p0"]], "a"], {}]]}
    null = os.open(os.devnull, os.O_WRONLY)
    child.run(job, program_builtins, bytes(NONCE_BYTES), null)
    os.close(null)
    sys.modules.pop("program")


def _serve(job: dict[str, Any], program_builtins: dict[str, Any], seal: Seal, inbox: Inbox, wall_s: float) -> None:
    """Fork, watch, reap, reply."""
    nonce = os.urandom(NONCE_BYTES)
    inbox.open(nonce)
    expected = len(job["inputs"]) * job["repeat"]
    result_r, result_w = os.pipe()
    watch = Watch(inbox, result_r, JOBS_FD, expected=expected, cpu_s=job["cpu_s"], wall_s=wall_s)
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            seal_child(seal, result_w, RESULT_FD, int(job["cpu_s"] * expected) + 2)
            child.run(job, program_builtins, nonce, RESULT_FD)
            code = 0
        finally:
            os._exit(code)
    os.close(result_w)
    try:
        ending = watch.run(pid)
    finally:
        os.close(result_r)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        _kill_strays(pid, seal)
    code = os.waitstatus_to_exitcode(status)
    head = {
        "id": job["id"],
        "sizes": inbox.sizes,
        "cpu_spent": watch.cpu_spent,
        "ended": ending or (f"signal {-code}" if code < 0 else f"exit {code}"),
        "cpu_s": usage.ru_utime + usage.ru_stime,
    }
    inbox.reply(REPLIES_FD, head)


def _kill_strays(pid: int, seal: Seal) -> None:
    """End what a child without seccomp may have left. As pid 1 we can name everything but ourselves."""
    with suppress(ProcessLookupError, PermissionError):
        if seal.holds("pidns"):
            os.kill(-1, signal.SIGKILL)
        elif not seal.holds("seccomp"):
            os.killpg(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while os.waitpid(-1, 0 if seal.holds("pidns") else os.WNOHANG)[0]:
            pass
