"""What kind of failure an exception is, and the exit code that says so. (pure)

Nothing here imports torch: its exceptions are known by name and text.
"""

from __future__ import annotations

import errno

from profiles.errors import ExitCode, LonghaulError

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
PERMISSION_ERRORS = frozenset({errno.EACCES, errno.EPERM})
LIMIT_ERRORS = {errno.EMFILE: "open files (ulimit -n)", errno.ENFILE: "open files of the machine (fs.file-max)"}


def exit_code_of(error: BaseException) -> int:
    """The class of a failure. (pure)"""
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
    """CUDA ran out of memory. By name, so that nothing here imports torch. (pure)"""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    told = str(error).lower().replace("_", " ")  # the driver and cuBLAS name a constant
    return isinstance(error, RuntimeError) and ("out of memory" in told or "cublas status alloc failed" in told)


def mark_phase(error: BaseException, phase: str) -> None:
    """Note on an error in which phase it came up; the innermost one holds."""
    if not phase_of(error):
        error.__dict__["longhaul_phase"] = phase


def phase_of(error: BaseException) -> str:
    """The phase that `mark_phase` noted; empty: none. (pure)"""
    return str(error.__dict__.get("longhaul_phase", ""))


def is_gpu_lost(error: BaseException) -> bool:
    """The device or its context is broken: nothing in this process can use it again. (pure)"""
    lost = type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)
    return lost and isinstance(error, RuntimeError)


def is_unordered(error: BaseException) -> bool:
    """torch has no deterministic form of an operation that the model asks for. (pure)"""
    return isinstance(error, RuntimeError) and "does not have a deterministic implementation" in str(error)
