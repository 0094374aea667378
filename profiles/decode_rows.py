"""Computes how many rollouts can decode in parallel in memory that the trainer does not need meanwhile. (pure)"""

from __future__ import annotations

from dataclasses import replace

from profiles.footprint import FRAGMENTATION, rollout, work_of
from profiles.schema import Profile
from profiles.shapes import Shape

MOST_ROWS = 256
"""Beyond this, throughput hardly grows: going from 64 to 256 rows gains less than from 10 to 64."""
ROUND_ROWS = 16
"""Larger row counts are rounded down to a multiple of this, because kernels work on tiles of rows."""


def decode_rows(profile: Profile, shape: Shape, free_bytes: int, *, prompt_tokens: int = 0, answers: int = 1) -> int:
    """Rows whose cache, logits and prompts fit into `free_bytes` of the allocator; 0 if not even one fits.

    prompt_tokens: length of the longest prompt; 0 means the profile's limit. answers: rollouts per prompt.
    """

    def fits(rows: int) -> bool:
        prompts = -(-rows // answers)
        longest = prompt_tokens or work.prompt_tokens
        asked = replace(work, rollout_rows=rows, prompts=prompts, prompt_tokens=longest)
        return FRAGMENTATION * sum(rollout(profile, shape, asked).values()) <= free_bytes

    work = work_of(profile, shape)
    low, high = 0, MOST_ROWS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low - low % ROUND_ROWS if low > ROUND_ROWS else low
