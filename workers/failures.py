"""Classifies exceptions and maps them to exit codes. (pure)

Does not import torch: its exceptions are recognised by name and message.
"""

from __future__ import annotations

import errno

from profiles.errors import ExitCode, LonghaulError

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
PERMISSION_ERRORS = frozenset({errno.EACCES, errno.EPERM})
LIMIT_ERRORS = {errno.EMFILE: "open files (ulimit -n)", errno.ENFILE: "open files of the machine (fs.file-max)"}


def exit_code_of(error: BaseException) -> int:
    """The exit code for an exception. (pure)"""
    if isinstance(error, LonghaulError):
        return int(error.exit_code)
    if is_out_of_memory(error):
        return int(ExitCode.CUDA_OOM)
    if is_gpu_lost(error):
        return int(ExitCode.GPU)
    if is_unordered(error):
        return int(ExitCode.INPUT)
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return int(ExitCode.DISK)
    if isinstance(error, OSError) and error.errno in PERMISSION_ERRORS:
        return int(ExitCode.PERMISSION)
    return int(ExitCode.INTERNAL)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether CUDA ran out of memory. (pure)"""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    message = str(error).lower().replace("_", " ")  # the driver and cuBLAS name a constant
    return isinstance(error, RuntimeError) and ("out of memory" in message or "cublas status alloc failed" in message)


def mark_phase(error: BaseException, phase: str) -> None:
    """Record the phase in which an error was raised; the innermost phase wins."""
    if not phase_of(error):
        error.__dict__["longhaul_phase"] = phase


def phase_of(error: BaseException) -> str:
    """The phase that `mark_phase` recorded; empty: none. (pure)"""
    return str(error.__dict__.get("longhaul_phase", ""))


def is_gpu_lost(error: BaseException) -> bool:
    """Whether the device or its context is broken, so that this process cannot use it again. (pure)"""
    lost = type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)
    return lost and isinstance(error, RuntimeError)


def is_unordered(error: BaseException) -> bool:
    """Whether torch lacks a deterministic implementation of an operation in the model. (pure)"""
    return isinstance(error, RuntimeError) and "does not have a deterministic implementation" in str(error)
