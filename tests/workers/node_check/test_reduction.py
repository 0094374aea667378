"""The all-reduce of a check: three ranks of this host, of which one sums wrongly or is slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests import REPOSITORY
from workers.node_contract import RankFacts

CHILD = """
import sys, time
from pathlib import Path
import msgspec
import torch.distributed as dist
from profiles.load import load_profile
from workers.node_check import reduction
from workers.rank_group.replica import Setting
from workers.ranks.group import by_file, join
{change}
way, rank = by_file(Path(sys.argv[1]), 3), int(sys.argv[2])
profile = load_profile("pocket-debug", ["run.gpus=3", "run.device=cpu", "run.threads=1"]).profile
mine = reduction.Reduction(Setting(profile, None, join=lambda device: join(way, rank, 3, device)))
print(msgspec.json.encode(mine.reduce(reduction.Reduce())).decode())
"""
WRONG = """
right = dist.all_reduce
def all_reduce(values, *rest):
    right(values, *rest)
    if values.numel() > 1000:
        values[5:7] += 1
dist.all_reduce = all_reduce
"""
SLOW = """
fast = reduction._swap
def _swap(*arguments):
    time.sleep(1)
    fast(*arguments)
reduction._swap = _swap
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def reduced(folder: Path, *changes: str) -> list[RankFacts]:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD.format(change=change), str(folder / "store"), str(rank)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
        )
        for rank, change in enumerate(changes)
    ]
    said = [child.communicate(timeout=280)[0].splitlines()[-1] for child in children]
    return [msgspec.json.decode(line, type=RankFacts) for line in said]


def test_a_rank_with_a_wrong_sum_and_a_slow_one_are_told_apart(tmp_path: Path) -> None:
    good, wrong, slow = reduced(tmp_path, "", WRONG, SLOW)
    assert [one.wrong for one in (good, wrong, slow)] == [0, 2, 0]
    assert all(one.reduce > 0 and one.between == 0 for one in (good, wrong, slow)), "there is one host"
    assert slow.inside < 0.5 * min(good.inside, wrong.inside)
