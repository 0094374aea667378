"""How many rollouts decode side by side in memory that no trainer needs at the time. (pure)"""

from __future__ import annotations

from dataclasses import replace

from profiles.footprint import FRAGMENTATION, rollout, work_of
from profiles.schema import Profile
from profiles.shapes import Shape

MOST_ROWS = 256
"""More rows hardly decode more tokens per second: 64 to 256 rows gain less than 10 to 64 do."""
ROUND_ROWS = 16
"""Row counts are multiples of this where there are as many: kernels work on tiles of rows."""


def decode_rows(profile: Profile, shape: Shape, free_bytes: int, *, prompt_tokens: int = 0, answers: int = 1) -> int:
    """Rows whose cache, logits and prompts fit into `free_bytes` of the allocator; 0: not even one.

    prompt_tokens: of the longest prompt; 0: the profile's limit. answers: rollouts that share a prompt.
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
