"""Runs Python in a process whose Triton kernels are interpreted, which takes no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def interpreted(*arguments: str, timeout: float, with_gpu: bool = False) -> subprocess.CompletedProcess[str]:
    """`python` with these arguments. with_gpu: the kernels are compiled for the GPU instead. Skips the test where
    Triton's interpreter cannot run."""
    changes = {} if with_gpu else {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=os.environ | changes, capture_output=True, text=True, timeout=timeout)
    if "only 0-dimensional arrays can be converted" in done.stderr and "interpreter.py" in done.stderr:
        pytest.skip("the interpreter of this Triton does not know this numpy: since 2.4 an array of one is no scalar")
    return done
