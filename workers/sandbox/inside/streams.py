"""The zygote's ends of a script's standard input, output and error.

Output goes to a memory mapping that is wiped before each job and that children do not inherit, as in `inbox.py`.
"""

from __future__ import annotations

import mmap
import os
from select import POLLIN, POLLOUT, poll
from time import clock_gettime, monotonic

from .frames import HEADER, write_parts
from .watch import CPUCLOCK_SCHED

MAX_STDOUT = 8 << 20
"""Bytes. A script that writes this much is killed."""
MAX_STDERR = 1 << 16
"""Bytes of standard error to keep, from its start."""
MOST_READ = 1 << 16


class Streams:
    """Three pipes to one child at a time; also enforces its limits."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._buffer = mmap.mmap(-1, MAX_STDOUT + MAX_STDERR + MOST_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer.madvise(mmap.MADV_DONTFORK)
        self._whole = memoryview(self._buffer)
        self._out = self._err = 0

    def open(self, stdin: memoryview) -> tuple[tuple[int, int], ...]:
        """Open pipes for a script that reads `stdin`. Returns (descriptor, number in the child) of the child's ends."""
        if self._out or self._err:
            self._buffer.madvise(mmap.MADV_DONTNEED)  # drops the pages with the previous script's output
        self._out = self._err = 0
        in_r, self._in_w = os.pipe()
        self._out_r, out_w = os.pipe()
        self._err_r, err_w = os.pipe()
        self._ends = (in_r, out_w, err_w)
        os.set_blocking(self._in_w, False)
        self._unsent = stdin
        self._send()  # usually sends everything: a pipe holds 64 KiB
        return tuple(zip(self._ends, range(3), strict=True))

    def close_ends(self) -> None:
        """Close the child's ends after the fork, so that its end of stream can be seen."""
        for fd in self._ends:
            os.close(fd)

    def close(self) -> None:
        """Close the pipes and drop the input."""
        for fd in (self._in_w, self._out_r, self._err_r):
            if fd >= 0:
                os.close(fd)
        self._unsent = memoryview(b"")

    def _send(self) -> None:
        """Write as much input as the pipe accepts; close it when done or when the reader is gone."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._in_w, self._unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass
        os.close(self._in_w)
        self._in_w = -1

    def _read(self, fd: int) -> bool:
        """Read once; False at end of stream."""
        if fd == self._out_r:
            end = min(self._out + MOST_READ, MAX_STDOUT)
            count = os.readv(fd, [self._whole[self._out : end]])
            self._out += count
        else:
            start = MAX_STDOUT + self._err
            room = MAX_STDERR - self._err
            count = os.readv(fd, [self._whole[start : start + room + MOST_READ]])
            self._err += min(count, room)
        return count > 0

    def run(self, pid: int, cpu_s: float, wall_s: float) -> str | None:
        """Serve the pipes until the child has closed its outputs (returns None) or must be killed (returns why)."""
        clock, began = (~pid << 3) | CPUCLOCK_SCHED, monotonic()
        waiting, cpu = poll(), 0.0
        waiting.register(self._parent, 0)  # hang-up is always reported
        unfinished = {self._out_r, self._err_r}
        for fd in unfinished:
            waiting.register(fd, POLLIN)
        if (in_w := self._in_w) >= 0:
            waiting.register(in_w, POLLOUT)
        while unfinished:
            left = min(cpu_s - cpu, wall_s - (monotonic() - began))
            for fd, _ in waiting.poll(max(1.0, left * 1000)):
                if fd == self._parent:
                    return "parent gone"
                if fd == in_w:
                    self._send()
                    if self._in_w < 0:
                        waiting.unregister(fd)
                elif not self._read(fd):
                    waiting.unregister(fd)
                    unfinished.discard(fd)
                elif self._out == MAX_STDOUT:
                    return "flood"
            try:
                cpu = clock_gettime(clock)
            except OSError:
                continue  # the child just ended
            if cpu >= cpu_s:
                return "cpu"
            if monotonic() - began >= wall_s:
                return "wall"
        return None

    def reply(self, fd: int, number: int, ending: str, cpu_s: float) -> None:
        """Send the ending and the output as one frame. Exits the process if the reader is gone."""
        head = b'{"number": %d, "ended": "%s", "cpu_s": %a, "stdout": %d}\n'
        line = head % (number, ending.encode(), cpu_s, self._out)
        out, err = self._whole[: self._out], self._whole[MAX_STDOUT : MAX_STDOUT + self._err]
        write_parts(fd, (HEADER.pack(len(line) + len(out) + len(err)) + line, out, err))
