"""How a job of another program ended, read from the end of its log.

Such a program ends with 1 whatever went wrong; Ray's errors and the library's own words say more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import ExitCode
from profiles.harmless import harmless


@dataclass(frozen=True)
class Ending:
    """pattern: what the log says then. advice: the next command."""

    code: ExitCode
    pattern: re.Pattern[str]
    advice: str


LOG_END = 200_000
"""Bytes at the end of a log that are read."""
RUN = "python -m orchestrator run"
OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|NCCL.*out of memory|Failed to CUDA calloc")
OF_THE_CLUSTER = (
    Ending(
        ExitCode.NODE,
        re.compile(
            r"NodeDiedError|because its node has died"
            r"|[Nn]ode .{0,200}(marked dead|missed too many heartbeats|has died)"
        ),
        f"{RUN}   (goes on from the last checkpoint)",
    ),
    Ending(
        ExitCode.GPU,
        re.compile(
            r"CUDA error|AcceleratorError|uncorrectable ECC|Xid|NCCL error|ncclUnhandledCudaError|unhandled cuda error"
        ),
        "nvidia-smi   (on every node), then the same command",
    ),
    Ending(
        ExitCode.DISK,
        re.compile(r"No space left on device|Disk quota exceeded|Read-only file system"),
        "df -h .",
    ),
)
"""Ends that have nothing to do with the program. A lost node also breaks NCCL, so it is looked for before that."""
_ERROR = re.compile(r"^(?:.*\s)?((?:\w+\.)*\w*(?:Error|Exception|Mismatch)\b: .+)$", re.MULTILINE)
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)[\w.]*'")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|^\([^)\n]* pid=\d+[^)\n]*\) ", re.MULTILINE)


@dataclass(frozen=True)
class End:
    code: ExitCode
    what: str
    """The line of the log that says most."""
    advice: str


def end_of_log(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_END))
        return file.read().decode(errors="replace")


def end_of(exit_code: int, log: str, endings: Sequence[Ending], advice: str) -> End:
    """What became of a driver that ended with `exit_code`, not as asked: the first of `endings` that fits. (pure)

    log: its last part. advice: the next command where none fits.
    """
    text = _COLOUR.sub("", log)
    for ending in endings:
        if found := ending.pattern.search(text):
            begin, stop = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
            line = text[begin : stop if stop >= 0 else None]
            return End(ending.code, harmless(line.strip())[:300], ending.advice)
    errors = _ERROR.findall(text)
    how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    last = harmless(errors[-1].strip())[:300] if errors else "its log names no error"
    if missing := _MISSING.fullmatch(last):
        return End(ExitCode.INPUT, last, f"pip install {missing[1]}   (or the package that has this module)")
    return End(ExitCode.ENGINE, f"{how}; {last}", advice)
