"""Gives the memory of the devices back while the process still lives, so that another one can begin to train."""

from __future__ import annotations

import gc
import logging
import sys

from profiles.errors import ExitCode
from workers.contract import Message, WorkerSpec
from workers.control import Control

log = logging.getLogger("worker")

MOST_LEFT = 384 << 20
"""Bytes that may stay: cuBLAS keeps 32 MiB on Hopper for each stream and thread that used it. Less than a validation
takes, which the plan counts beside training and which begins only once this process has ended."""


def free_for_next(spec: WorkerSpec, control: Control, exit_code: int) -> None:
    """Once a cycle is done and its result reported: tell the master if the next one, which has loaded, may train."""
    is_followed = spec.role == "train" and bool(spec.profile.validation.overlap)
    if is_followed and exit_code == ExitCode.OK and release():
        control.send(Message(type="freed"))


def release() -> bool:
    """Free what nothing refers to any more, and let go of the caches of torch. Whether no more than MOST_LEFT stays."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    gc.collect()  # a model and what compiled parts keep of it refer to each other
    torch.cuda.empty_cache()
    left: int = sum(map(torch.cuda.memory_reserved, range(torch.cuda.device_count())))
    log.info("%d MiB of device memory stay until this process ends", left >> 20)
    return left <= MOST_LEFT
