"""Rollouts drawn beside an update on a real card, on a stream of their own; skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from profiles.schema import Adapter, Model, Optimizer, Profile, Sampling
from tests.workers.grpo.small import sums, write_model, write_problems
from tests.workers.grpo.test_beside import beside, coins
from tests.workers.grpo.test_grpo_worker import checkpoint_of, leave_torch_as_it_was, metrics_of, trained
from workers.cycle.ahead import Ahead
from workers.rollout.graph.engine import GraphEngine

__all__ = ["leave_torch_as_it_was"]

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(150),  # the first of the two runs compiles every kernel
]

STEPS = 6
"""Enough for graphs of the update to be captured beside those of decode steps."""


def profile_of(folder: Path) -> Profile:
    """Of files that it writes to `folder`."""
    found = beside(coins(write_problems(folder / "sums.jsonl", sums(40))), checkpoint_every=100)
    path = str(write_model(folder / "model"))
    return replace(
        found,
        model=Model(path=path, prompt_style="verbatim", dtype="bfloat16", quantization="nf4"),
        adapter=Adapter(rank=16, alpha=32.0, targets=("q_proj", "v_proj"), implementation="own"),
        sampling=Sampling(max_prompt_tokens=32, max_completion_tokens=128),
        grpo=replace(found.grpo, groups_per_step=4, group_size=8),
        optimizer=Optimizer(learning_rate=1e-3, warmup_steps=0, micro_batch_size=4, row_tokens=512),
    )


def test_two_runs_end_in_the_same_bits_and_both_draw_beside_their_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_on: list[int] = []
    stream = GraphEngine.stream

    def draw(engine: GraphEngine, *arguments: object) -> object:
        drawn_on.append(torch.cuda.current_stream().cuda_stream)
        return stream(engine, *arguments)  # type: ignore[arg-type]

    begun: list[bool] = []
    begin = Ahead.begin

    def count(ahead: Ahead) -> None:
        begin(ahead)
        begun.append(ahead._under_way is not None)

    monkeypatch.setattr(GraphEngine, "stream", draw)
    monkeypatch.setattr(Ahead, "begin", count)
    profile = profile_of(tmp_path)
    ends = [checkpoint_of(trained(tmp_path / name, profile, STEPS)) for name in ("one", "two")]
    assert ends[0].digest == ends[1].digest
    assert metrics_of(tmp_path / "one") == metrics_of(tmp_path / "two")
    default = torch.cuda.default_stream().cuda_stream  # the first step of a run has nothing to draw beside
    assert sum(begun) == 2 * (STEPS - 1) <= sum(stream != default for stream in drawn_on)
