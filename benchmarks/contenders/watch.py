"""Samples the memory in use on a whole GPU from its driver, outside the measured process."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from workers.memory.cards import card_of

PERIOD_S = 0.05


class Memory(ctypes.Structure):
    """`nvmlMemory_v2_t`. The first version counts the driver's own reserve as used, .6 GiB on an idle H200."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


VERSION_2 = ctypes.sizeof(Memory) | 2 << 24


class Peak:
    """bytes: highest use by programs in any sample; None without an NVIDIA driver."""

    bytes: int | None = None


@contextmanager
def device_peak() -> Iterator[Peak]:
    """Sample the memory of the first visible GPU while the block runs."""
    peak, ended = Peak(), threading.Event()
    try:
        driver = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        yield peak
        return
    card, handle = card_of(0, os.environ), ctypes.c_void_p()
    failed = driver.nvmlInit_v2() or (
        driver.nvmlDeviceGetHandleByIndex_v2(int(card), ctypes.byref(handle))
        if card.isdigit()
        else driver.nvmlDeviceGetHandleByUUID(card.encode(), ctypes.byref(handle))
    )
    if failed:
        yield peak
        return

    def sample() -> None:
        memory = Memory(version=VERSION_2)
        while not ended.is_set():
            if driver.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)) == 0:
                peak.bytes = max(peak.bytes or 0, memory.used)
            time.sleep(PERIOD_S)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
        driver.nvmlShutdown()
