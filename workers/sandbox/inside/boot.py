"""The start of a zygote: first what programs may import, then, side by side in memory, what runs them."""

from __future__ import annotations

import _signal  # the C part alone: the module around it would lie in front of those that programs import
import gc
import importlib
import os

from . import compact, modules
from .frames import JOBS_FD, REPLIES_FD, read_frame, write_frame

_BEFORE = ("dataclasses", "marshal", "mmap", "resource", "select", "signal", "warnings")
"""What the zygote itself needs of the library. Only its own modules are to come last."""


def main() -> None:
    """Serve until the parent goes away. Standard input carries jobs, standard output replies."""
    # A shutdown sends TERM to every process: the zygote ends with its parent, and no program may be judged by a signal
    # that had nothing to do with it. Children inherit this.
    _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    _move_descriptors()
    settings = read_frame(JOBS_FD)
    if settings is None:
        return
    # Hooks after fork re-seed generators and repair locks that a process of one thread cannot have broken.
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
    """Jobs and replies leave 0 and 1 to /dev/null, so that a child's `print` cannot reach the parent."""
    os.dup2(0, JOBS_FD)
    os.dup2(1, REPLIES_FD)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(REPLIES_FD + 1, 1 << 16)
