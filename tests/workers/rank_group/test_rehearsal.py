"""The largest shapes are rehearsed once by a run, and again wherever that could come to something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace

from profiles.schema import Grpo, Profile, Run, Sampling
from state.cache import VARIABLE
from tests.workers.rollout.models import tiny_model
from workers.contract import WorkerSpec
from workers.grpo import worst_case
from workers.memory.backoff import Sizes
from workers.rank_group import rehearsal
from workers.rank_group.calls import Rehearse, Reserve
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.select import Portions

SIZES = Sizes(micro_batch=4, head_rows=64, rollout_rows=16, graphs=True)
SPEC = WorkerSpec(
    run_id="r1",
    run_dir="/runs/r1",
    role="train",
    cycle=3,
    attempt=1,
    token="t",
    attempt_dir="cycles/0003/attempt-1",
    first_step=41,
    end_step=61,
    head=None,
    profile=Profile(name="test"),
    profile_sha256="abc",
)


class Ranks:
    """Of one GPU."""

    def __init__(self, engine: object = None, size: int = 1, device: str = "cuda") -> None:
        self.size, self.asked = size, list[object]()
        self.replica = SimpleNamespace(
            model=SimpleNamespace(device=torch.device(device)), engine=SimpleNamespace(engine=engine)
        )

    def call(self, asked: object) -> list[Any]:
        self.asked.append(asked)
        return [{"text": "they took so much"}]

    def rehearse(self, spec: WorkerSpec = SPEC, sizes: Sizes = SIZES, *, is_first: bool = False) -> dict[str, Any]:
        group: Any = self
        return rehearsal.rehearse(group, spec, sizes, is_first=is_first)


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The machine's, and an empty cache."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    found = SimpleNamespace(name="A card", total_memory=8 << 30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    return found


def test_what_was_rehearsed_under_the_same_conditions_is_only_reserved() -> None:
    first, second = Ranks(), Ranks()
    assert first.rehearse() == {"text": "they took so much"} and first.asked == [Rehearse()]
    assert second.rehearse(replace(SPEC, cycle=4, attempt=2, first_step=61, end_step=81, token="u")) == {}
    assert second.asked == [Reserve()]


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        pytest.param(replace(SPEC, run_id="r2"), SIZES, id="another run"),
        pytest.param(replace(SPEC, profile_sha256="def"), SIZES, id="another profile: a cap, a length"),
        pytest.param(replace(SPEC, isolate=True), SIZES, id="other kernels"),
        pytest.param(replace(SPEC, reductions=1), SIZES, id="an attempt before ran out of memory"),
        pytest.param(SPEC, replace(SIZES, micro_batch=2), id="a size was halved"),
        pytest.param(SPEC, replace(SIZES, graphs=False), id="no graphs are kept"),
    ],
)
def test_it_is_rehearsed_again_if_the_attempt_differs(spec: WorkerSpec, sizes: Sizes) -> None:
    Ranks().rehearse()
    again = Ranks()
    again.rehearse(spec, sizes)
    assert again.asked == [Rehearse()]


def other_card(card: SimpleNamespace, patch: pytest.MonkeyPatch) -> None:
    card.name = "Another card"


def less_memory(card: SimpleNamespace, patch: pytest.MonkeyPatch) -> None:
    card.total_memory = 6 << 30


def other_code(card: SimpleNamespace, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rehearsal, "code_sha256", lambda: "other")


def other_library(card: SimpleNamespace, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rehearsal, "versions", lambda: {"torch": "3"})


def no_record(card: SimpleNamespace, patch: pytest.MonkeyPatch) -> None:
    rehearsal.place("r1").unlink()


def torn_record(card: SimpleNamespace, patch: pytest.MonkeyPatch) -> None:
    rehearsal.place("r1").write_bytes(rehearsal.place("r1").read_bytes()[:40])


@pytest.mark.parametrize("change", [other_card, less_memory, other_code, other_library, no_record, torn_record])
def test_it_is_rehearsed_again_if_the_machine_or_the_program_differs(
    change: Callable[[SimpleNamespace, pytest.MonkeyPatch], None],
    card: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Ranks().rehearse()
    change(card, monkeypatch)
    again = Ranks()
    again.rehearse()
    assert again.asked == [Rehearse()]


def test_it_is_rehearsed_again_if_another_engine_took_over_at_the_rehearsal() -> None:
    ranks = Ranks(engine=GraphEngine.__new__(GraphEngine))
    ranks.call = lambda asked: (setattr(ranks.replica.engine, "engine", object()), [{}])[1]  # type: ignore[assignment]
    ranks.rehearse()
    again = Ranks(engine=GraphEngine.__new__(GraphEngine))
    again.rehearse()
    assert again.asked == [Rehearse()]


@pytest.mark.parametrize("ranks", [{"size": 2}, {"device": "cpu"}])
def test_several_ranks_and_a_cpu_keep_no_record(ranks: dict[str, Any]) -> None:
    Ranks(**ranks).rehearse()
    again = Ranks(**ranks)
    again.rehearse()
    assert again.asked == [Rehearse()] and not rehearsal.place("r1").exists()


def test_a_new_run_always_rehearses() -> None:
    Ranks().rehearse()
    again = Ranks()
    again.rehearse(is_first=True)
    assert again.asked == [Rehearse()]


def test_a_rehearsal_that_fails_leaves_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(asked: object) -> list[Any]:
        raise RuntimeError("CUDA out of memory")

    ranks = Ranks()
    monkeypatch.setattr(ranks, "call", out_of_memory)
    with pytest.raises(RuntimeError):
        ranks.rehearse()
    assert rehearsal.read("r1") is None


def test_the_code_s_hash_changes_with_a_byte_a_name_and_a_kernel(tmp_path: Path) -> None:
    for package in rehearsal.PACKAGES:
        (tmp_path / package).mkdir()
    (tmp_path / "workers" / "a.py").write_text("x = 1")

    def found() -> str:
        rehearsal.code_sha256.cache_clear()
        return rehearsal.code_sha256(tmp_path)

    seen = [found()]
    (tmp_path / "workers" / "a.py").write_text("x = 2")
    seen.append(found())
    (tmp_path / "workers" / "a.py").rename(tmp_path / "workers" / "b.py")
    seen.append(found())
    (tmp_path / "workers" / "k.cu").write_text("")
    seen.append(found())
    (tmp_path / "workers" / "read.md").write_text("")
    assert len(set(seen)) == 4 and found() == seen[-1]
    rehearsal.code_sha256.cache_clear()


def test_what_is_reserved_for_grpo_has_the_lengths_of_what_is_rehearsed() -> None:
    import random

    profile = Profile(
        name="test",
        run=Run(worker="grpo"),
        grpo=Grpo(groups_per_step=2, group_size=3),
        sampling=Sampling(max_prompt_tokens=5, max_completion_tokens=7, max_rows=4),
    )
    model = tiny_model()
    engine = Portions(GraphEngine(model), 4)
    only_lengths, drawn = (worst_case.longest(engine, profile, model, draws) for draws in (None, random.Random(0)))
    assert [len(one.prompt_ids) for one in only_lengths[0]] == [len(one.prompt_ids) for one in drawn[0]] == [5] * 4
    assert only_lengths[1] == drawn[1]
    assert msgspec.json.encode(only_lengths[0]) != msgspec.json.encode(drawn[0])
