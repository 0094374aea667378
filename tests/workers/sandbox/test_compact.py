"""Memory of a zygote: what it allocates after its start lies side by side, whatever loading its modules has left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SANDBOX = Path(__file__).parents[3] / "workers" / "sandbox"

SCATTER = """
import sys
sys.path.insert(0, sys.argv[1])
from inside import compact
size = int(sys.argv[2])
blocks = [bytes(size) for _ in range((8 << 20) // (size + 64))]
hole = set(range(0, len(blocks), 100))
blocks = [block for place, block in enumerate(blocks) if place not in hole]
if sys.argv[3] == "filled":
    compact.fill_holes()
fresh = [bytes(size) for _ in range(20)]
print(len({page for block in fresh for page in (id(block) >> 12, id(block) + size >> 12)}))
"""


def pages(size: int, how: str) -> int:
    """Pages in which twenty blocks lie that are allocated where a hundredth of 8 MiB is free."""
    command = [sys.executable, "-S", "-c", SCATTER, str(SANDBOX), str(size), how]
    return int(subprocess.run(command, capture_output=True, check=True, env={}).stdout)


@pytest.mark.parametrize("size", [20, 100, 400, 1000, 5000])
def test_what_comes_after_holes_are_filled_lies_in_few_pages(size: int) -> None:
    assert pages(size, "filled") <= 20 * (size + 64) // 4096 + 3


@pytest.mark.parametrize("size", [20, 100, 400, 1000, 5000])
def test_without_that_it_lies_all_over_the_place(size: int) -> None:
    assert pages(size, "as it is") > 10
