"""What draws rollouts beside no trainer lives through memory that ends: with fewer of them side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from workers.rollout.select import Portions
from workers.runtime import is_out_of_memory

T = TypeVar("T")


def with_fewer_rows(engine: object, work: Callable[[], T], warn: Callable[[str], None]) -> T:
    """What `work` gives. Where the GPU's memory ends in it, it is done again with half the rollouts side by side.

    Raises the error itself where one rollout does not fit, and where the engine is none of `Portions`.
    """
    while True:
        try:
            return work()
        except RuntimeError as error:
            if not is_out_of_memory(error) or not isinstance(engine, Portions) or engine.max_rows == 1:
                raise
            reason = str(error).splitlines()[0]
        # Outside the handler: its traceback holds what the next try needs the room of.
        engine.max_rows = -(-engine.max_rows // 2)
        engine.forget_cache()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warn(f"memory ended: {engine.max_rows} rollouts at one time from here on: {reason}")
