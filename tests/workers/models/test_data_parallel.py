"""An adapter on several GPUs: gradients are summed in a fixed order, and passes stay as they are on one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests import REPOSITORY
from workers.models import fast_graphs
from workers.models.data_parallel import BUCKET, DataParallel, buckets
from workers.models.fast_stack import Plain
from workers.models.parallel import Single, parallel_of
from workers.ranks.group import ALONE, Group

RANKS, NUMBERS = 3, 1001
MEMBER = f"""
import json, sys
from pathlib import Path
import torch
from workers.models.data_parallel import sum_in_order
from workers.ranks.group import by_file, join
rank = int(sys.argv[2])
join(by_file(Path(sys.argv[1]), {RANKS}), rank, {RANKS}, torch.device("cpu"))
mine = torch.randn({NUMBERS}, generator=torch.Generator().manual_seed(rank)) * 10.0**rank
print(json.dumps(sum_in_order(mine, {RANKS}).tolist()))
"""


@pytest.mark.slow
def test_every_rank_gets_the_sum_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    words = [sys.executable, "-c", MEMBER, str(tmp_path / "store")]
    started = [
        subprocess.Popen([*words, str(rank)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        for rank in range(RANKS)
    ]
    found = [json.loads(one.communicate(timeout=110)[0]) for one in started]
    given = [torch.randn(NUMBERS, generator=torch.Generator().manual_seed(rank)) * 10.0**rank for rank in range(RANKS)]
    in_order, reversed_order = (given[0] + given[1]) + given[2], (given[2] + given[1]) + given[0]
    assert not torch.equal(in_order, reversed_order)  # so the comparison can fail
    assert found == [in_order.tolist()] * RANKS


@given(st.lists(st.sampled_from([1, 5, BUCKET // 2, BUCKET // 2 + 1, BUCKET, BUCKET + 1]), max_size=8))
def test_buckets_hold_everything_in_order_and_are_bounded(sizes: list[int]) -> None:
    tensors = [torch.empty(size, device="meta") for size in sizes]
    made = buckets(tensors)
    assert [id(one) for bucket in made for one in bucket] == [id(one) for one in tensors]
    assert all(len(bucket) == 1 or sum(one.numel() for one in bucket) <= BUCKET for bucket in made)
    assert all(made)


def tiny() -> Any:
    """A frozen layer beside a trained one, whose passes may be captured."""
    model: Any = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    stack: Any = SimpleNamespace(matrices=list)
    plain = Plain(stack)
    model.fast_runner = fast_graphs.Captured(plain, model, lambda work: lambda: None, lambda work: (True, work()))
    return model


def test_with_an_adapter_the_passes_of_several_ranks_may_be_captured_as_those_of_one() -> None:
    model = tiny()
    names = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    parallel = parallel_of(model, Group(0, 2))
    assert isinstance(parallel, DataParallel) and fast_graphs.may_capture(model)
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == names
    assert parallel.state_ranks == 1 and parallel.gathered_bytes == 0


def test_one_rank_alone_trains_a_plain_module() -> None:
    assert type(parallel_of(tiny(), ALONE)) is Single
