"""Starts a zygote: loads the modules that programs may import, then, contiguously in memory, its own."""

from __future__ import annotations

import _signal  # the C module only: `signal` itself must not be loaded before the programs' modules
import gc
import importlib
import os

from . import compact, modules
from .frames import JOBS_FD, REPLIES_FD, read_frame, write_frame

_BEFORE = ("dataclasses", "marshal", "mmap", "resource", "select", "signal", "warnings")
"""Standard library modules that the zygote needs, loaded before its own modules, which must come last."""


def main() -> None:
    """Serve until the parent goes away. Jobs arrive on standard input; replies leave on standard output."""
    # A shutdown sends TERM to every process. The zygote ends with its parent, and a program must not be judged by a
    # signal that has nothing to do with it. Children inherit this setting.
    _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    _move_descriptors()
    settings = read_frame(JOBS_FD)
    if settings is None:
        return
    # Disable fork hooks: they reseed generators and repair locks, which a single-threaded process cannot break.
    os.register_at_fork = lambda **_: None
    try:
        failed = modules.load(settings["modules"])
        for name in _BEFORE:
            importlib.import_module(name)
        gc.collect()
        compact.fill_holes()
        from .zygote import Zygote

        zygote = Zygote(settings)
    except BaseException as error:
        write_frame(REPLIES_FD, {"failed": f"{type(error).__name__}: {error}"})
        return
    write_frame(REPLIES_FD, {"modules_failed": failed, "layers": zygote.seal.layers, "uid": os.geteuid()})
    zygote.run()


def _move_descriptors() -> None:
    """Move jobs and replies off descriptors 0 and 1 and point 0, 1, 2 at /dev/null: `print` cannot reach the parent."""
    os.dup2(0, JOBS_FD)
    os.dup2(1, REPLIES_FD)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(REPLIES_FD + 1, 1 << 16)
