"""Rollouts drawn on a second card from a copy of the policy; skipped with fewer than two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from profiles.schema import Profile
from tests.workers.grpo.test_beside_gpu import STEPS, profile_of
from tests.workers.grpo.test_grpo_worker import checkpoint_of, leave_torch_as_it_was, metrics_of, trained
from workers.contract import CheckpointRef
from workers.cycle.ahead import Ahead
from workers.rollout.graph.engine import GraphEngine

__all__ = ["leave_torch_as_it_was"]

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
    pytest.mark.timeout(150),  # the first of the runs compiles every kernel
]


def apart(profile: Profile) -> Profile:
    return replace(profile, run=replace(profile.run, sampler_device="cuda:1"))


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    return profile_of(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory, profile: Profile) -> Iterator[tuple[Path, CheckpointRef]]:
    deterministic = torch.are_deterministic_algorithms_enabled()
    root = tmp_path_factory.mktemp("sampler") / "run"
    yield root, checkpoint_of(trained(root, apart(profile), STEPS))
    torch.use_deterministic_algorithms(deterministic)


def test_two_runs_end_in_the_same_bits_and_draw_everything_on_the_second_card(
    sampled: tuple[Path, CheckpointRef], tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_on: list[tuple[torch.device, int, bool]] = []
    stream = GraphEngine.stream

    def draw(engine: GraphEngine, *arguments: object) -> object:
        now = torch.cuda.current_stream(1)
        is_own = now.cuda_stream != torch.cuda.default_stream(1).cuda_stream
        drawn_on.append((engine.model.device, torch.cuda.current_device(), is_own))
        return stream(engine, *arguments)  # type: ignore[arg-type]

    begun: list[bool] = []
    plan = Ahead.plan

    def count(ahead: Ahead, *arguments: object) -> None:
        plan(ahead, *arguments)  # type: ignore[arg-type]
        begun.append(ahead._under_way is not None)

    monkeypatch.setattr(GraphEngine, "stream", draw)
    monkeypatch.setattr(Ahead, "plan", count)
    end = checkpoint_of(trained(tmp_path / "run", apart(profile), STEPS))
    assert end.digest == sampled[1].digest
    assert metrics_of(tmp_path / "run") == metrics_of(sampled[0])
    assert begun == [True] * (STEPS - 1)
    assert {device for device, *_ in drawn_on} == {torch.device("cuda:1")}
    assert sum(current == 1 and is_own for _, current, is_own in drawn_on) >= STEPS  # the others are of the probe
    assert torch.cuda.current_device() == 0


def test_one_card_ends_in_the_same_bits(sampled: tuple[Path, CheckpointRef], tmp_path: Path, profile: Profile) -> None:
    if torch.cuda.get_device_name(0) != torch.cuda.get_device_name(1):
        pytest.skip("two kinds of cards round differently")
    assert checkpoint_of(trained(tmp_path / "run", profile, STEPS)).digest == sampled[1].digest
