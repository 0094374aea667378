"""Decodes more rollouts side by side while nothing trains: in validation, evaluation and difficulty measurements."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import torch

from profiles.decode_rows import decode_rows
from profiles.schema import Profile
from profiles.shapes import shape_of
from workers.memory.cap import usable_bytes
from workers.rollout.select import Portions

log = logging.getLogger("worker")


def widen(
    engine: Portions, model: Any, profile: Profile, *, prompt_tokens: int = 0, answers: int = 1, reserved_bytes: int = 0
) -> int:
    """Raise the rows of the engine to what the GPU has room for now, never lower it. Returns the rows.

    prompt_tokens, answers: as for `decode_rows`. reserved_bytes: memory that the caller needs besides. On a CPU, and
    for models of unknown sizes, the rows stay as they are.
    """
    if model.device.type != "cuda":
        return engine.max_rows
    with suppress(KeyError, AttributeError):  # an architecture that names its sizes differently
        free = free_bytes(model.device) + engine.cache_bytes - reserved_bytes
        rows = decode_rows(
            profile, shape_of(model.config.to_dict()), free, prompt_tokens=prompt_tokens, answers=answers
        )
        if rows > engine.max_rows:
            log.info("%d rollouts side by side instead of %d while nothing trains", rows, engine.max_rows)
            engine.set_rows(rows)
    return engine.max_rows


def free_bytes(device: torch.device) -> int:
    """Bytes that PyTorch's allocator can still hand out on `device`, within the process's cap."""
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    free_on_card = torch.cuda.mem_get_info(device)[0]
    return max(0, min(usable_bytes(device), reserved + free_on_card) - allocated)
