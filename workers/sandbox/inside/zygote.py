"""The zygote: a small Python process with all modules loaded, which forks one child for each job and watches it.

Single-threaded, one child at a time. Jobs come in over fd 3 as framed JSON, replies leave over fd 4; either end closed
ends the process and its child at once. A child is judged from outside, by its CPU clock and by the wall clock.
"""

from __future__ import annotations

import builtins
import gc
import json
import os
import select
import signal
import struct
import sys
import time
import warnings
from contextlib import suppress
from typing import Any

from . import child, modules
from .seal import Seal, seal_child, seal_zygote

JOBS_FD, REPLIES_FD, RESULT_FD = 3, 4, 3
NONCE_BYTES = 32
HEADER = struct.Struct("!I")
MAX_PENDING = NONCE_BYTES + HEADER.size + child.MAX_BODY
CPUCLOCK_SCHED = 2
"""Kind of clock in `clock_gettime` of another process: its scheduled time, exact to the nanosecond."""

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
    settings = _read_frame(JOBS_FD)
    if settings is None:
        return
    seal = Seal(tuple(settings["without"]), settings["memory_bytes"], settings["deny_clock"])
    try:
        program_builtins, failed = _prepare(settings)
        seal_zygote(seal)
    except BaseException as error:
        _write_frame(REPLIES_FD, json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        return
    _write_frame(
        REPLIES_FD, json.dumps({"modules_failed": failed, "layers": seal.layers, "uid": os.geteuid()}).encode()
    )
    while (job := _read_frame(JOBS_FD)) is not None:
        _write_frame(REPLIES_FD, _serve(job, program_builtins, seal, settings["wall_s"]))


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


def _serve(job: dict[str, Any], program_builtins: dict[str, Any], seal: Seal, wall_s: float) -> bytes:
    """Fork, watch, reap; the reply is a header line followed by the bodies of the frames that came."""
    nonce = os.urandom(NONCE_BYTES)
    result_r, result_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            seal_child(seal, result_w, RESULT_FD, int(job["cpu_s"] * len(job["inputs"]) * job["repeat"]) + 2)
            child.run(job, program_builtins, nonce, RESULT_FD)
            code = 0
        finally:
            os._exit(code)
    os.close(result_w)
    try:
        frames, ending = Watch(pid, result_r, nonce, job, wall_s).run()
    finally:
        os.close(result_r)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        _kill_strays(pid, seal)
    ended = ending or (f"signal {-code}" if (code := os.waitstatus_to_exitcode(status)) < 0 else f"exit {code}")
    head = {
        "id": job["id"],
        "frames": [[len(body), round(cpu, 6)] for body, cpu in frames],
        "ended": ended,
        "cpu_s": usage.ru_utime + usage.ru_stime,
    }
    return json.dumps(head).encode() + b"\n" + b"".join(body for body, _ in frames)


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


class Watch:
    """One child, from its fork to the moment when nothing more is wanted from it."""

    def __init__(self, pid: int, pipe: int, nonce: bytes, job: dict[str, Any], wall_s: float) -> None:
        self.pipe, self.nonce = pipe, nonce
        self.clock = (~pid << 3) | CPUCLOCK_SCHED
        self.cpu_s, self.wall_s = job["cpu_s"], wall_s
        self.expected = len(job["inputs"]) * job["repeat"]
        self.pending = bytearray()
        self.frames: list[tuple[bytes, float]] = []
        self.cpu_mark, self.wall_mark = 0.0, time.monotonic()

    def run(self) -> tuple[list[tuple[bytes, float]], str | None]:
        """The frames in order, and why the child must die (None: it left by itself)."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        poll.register(JOBS_FD, 0)  # hang-up is always reported
        while True:
            cpu_left = self.cpu_s - (self._cpu() - self.cpu_mark)
            wall_left = self.wall_s - (time.monotonic() - self.wall_mark)
            if cpu_left <= 0:
                return self.frames, "cpu"
            if wall_left <= 0:
                return self.frames, "wall"
            ready = dict(poll.poll(max(1, min(cpu_left, wall_left) * 1000)))
            if JOBS_FD in ready:
                return self.frames, "parent gone"
            if self.pipe in ready:
                chunk = os.read(self.pipe, 1 << 16)
                if not chunk:
                    return self.frames, None
                self.pending += chunk
                if (wrong := self._take_frames()) is not None:
                    return self.frames, wrong

    def _take_frames(self) -> str | None:
        """Cut whole frames off what has come; the answer says what is wrong with it."""
        start = NONCE_BYTES + HEADER.size
        while len(self.pending) >= start:
            if self.pending[:NONCE_BYTES] != self.nonce:
                return "bad nonce"
            (size,) = HEADER.unpack_from(self.pending, NONCE_BYTES)
            if size > child.MAX_BODY:
                return "frame too large"
            if len(self.pending) < start + size:
                return None
            now = self._cpu()
            self.frames.append((bytes(self.pending[start : start + size]), now - self.cpu_mark))
            self.cpu_mark, self.wall_mark = now, time.monotonic()
            del self.pending[: start + size]
            if len(self.frames) > self.expected:
                return "too many frames"
        return None

    def _cpu(self) -> float:
        """CPU seconds of the child so far; of a child that just ended, the last known."""
        try:
            return time.clock_gettime(self.clock)
        except OSError:
            return self.cpu_mark


def _read_frame(fd: int) -> dict[str, Any] | None:
    head = _read_exactly(fd, HEADER.size)
    if head is None:
        return None
    body = _read_exactly(fd, HEADER.unpack(head)[0])
    return None if body is None else json.loads(body)


def _read_exactly(fd: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        chunk = os.read(fd, size - len(parts))
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)


def _write_frame(fd: int, body: bytes) -> None:
    left = memoryview(HEADER.pack(len(body)) + body)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except BrokenPipeError:
        os._exit(0)
