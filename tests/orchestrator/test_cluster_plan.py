"""Jobs on several hosts: what is refused, in which words, and what would fit instead."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from orchestrator.cluster_plan import TARGET, Cluster, Job, Rollouts, fitting, least_hosts, refusals
from orchestrator.cluster_text import facts, plan_text
from orchestrator.job_time import JobTime
from profiles.footprint import GIB
from profiles.shapes import CLUSTER_ARCHITECTURES, shape_of
from profiles.sharded import Sharding, divides_heads

LARGE = shape_of(CLUSTER_ARCHITECTURES["olmo3-32b"])


def job(hosts: int = 16, gpus: int = 4, card: float = 95.6, **more: object) -> Job:
    """A job of the guide's production settings: 16 GPUs train, the others draw."""
    learners = (gpus,) * (16 // gpus)
    plain = Job(
        engine="open-instruct",
        model="allenai/Olmo-3-1125-32B",
        shape=LARGE,
        cluster=Cluster(hosts, gpus, int(card * GIB)),
        learners=learners,
        sharding=Sharding("zero3", sum(learners), 10_240),
        rollouts=Rollouts(engines=(hosts * gpus - 16) // 2, tensor_parallel=2, share=0.85),
        prompts=32,
        samples=8,
        longest=10_240,
        steps=39,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def shared(hosts: int, gpus: int = 4) -> Job:
    """The same by an engine whose GPUs train and draw in turn."""
    sharding = Sharding("fsdp2", hosts * gpus, 10_240, rollout_bytes=int(0.5 * 95.6 * GIB))
    rollouts = Rollouts(hosts * gpus // 4, 4, 0.5)
    return job(hosts, gpus, engine="verl", learners=(gpus,) * hosts, sharding=sharding, rollouts=rollouts)


@pytest.mark.parametrize(("hosts", "gpus", "engines"), [(8, 4, 8), (16, 4, 24), (20, 4, 32), (8, 8, 24), (12, 8, 40)])
def test_sixteen_learners_on_whole_hosts_leave_room_for_the_engines(hosts: int, gpus: int, engines: int) -> None:
    found = job(hosts, gpus)
    assert refusals(found) == [] and found.rollouts.engines == found.room_for_engines == engines
    assert fitting(found) == found


def test_eight_learners_are_refused_and_sixteen_named() -> None:
    eight = job(8, learners=(4, 4), sharding=Sharding("zero3", 8, 10_240))
    (refused,) = refusals(eight)
    assert refused.about == "memory" and refused.text.startswith("98.3 GiB in train on each GPU that trains (8), 103%")
    found = fitting(eight)
    assert found is not None and found.learners == (4, 4, 4, 4) and refusals(found) == []


@pytest.mark.parametrize(
    ("change", "about", "said"),
    [
        pytest.param({"steps": 0}, "steps", "0 steps: one step takes 32 prompts x 8 = 256 episodes", id="no step"),
        pytest.param(
            {"rollouts": Rollouts(25, 2, 0.85)},
            "engines",
            "25 engines of 2 GPUs need 50; 16 hosts of 4 GPUs less 16 that train leave 48, room for 24",
            id="too many engines",
        ),
        pytest.param({"rollouts": Rollouts(0, 2, 0.85)}, "engines", "no GPU is left to draw rollouts", id="none"),
        pytest.param({"rollouts": Rollouts(4, 8, 0.85)}, "engines", "reach over hosts of 4 GPUs", id="over two hosts"),
        pytest.param({"rollouts": Rollouts(16, 3, 0.85)}, "heads", "do not divide 40 heads and 8 of keys", id="heads"),
        pytest.param({"rollouts": Rollouts(48, 1, 0.55)}, "cache", "no room for 60.0 GiB of weights", id="no cache"),
        pytest.param({"longest": 32_768, "rollouts": Rollouts(48, 1, 0.85)}, "cache", "less than 4 rollouts", id="few"),
        pytest.param({"prompts": 3}, "batch", "24 rollouts a step do not divide among 16 GPUs", id="uneven"),
        pytest.param(
            {"learners": (5, 5, 5, 1)}, "learners", "do not fit 16 hosts of 4 GPUs", id="more than a host has"
        ),
        pytest.param({"time": JobTime(600, 1200, 60)}, "time", "shorter than start-up and one save", id="no time"),
    ],
)
def test_what_cannot_work_is_told_in_numbers(change: dict[str, object], about: str, said: str) -> None:
    found = [one for one in refusals(job(**change)) if one.about == about]  # type: ignore[arg-type]
    assert len(found) == 1 and said in found[0].text


def test_all_reasons_are_told_at_once() -> None:
    wrong = job(8, learners=(4, 4), sharding=Sharding("zero3", 8, 10_240), steps=0, rollouts=Rollouts(24, 2, 0.85))
    assert [one.about for one in refusals(wrong)] == ["memory", "engines", "steps"]


def test_engines_that_are_too_small_become_larger_on_as_many_gpus() -> None:
    found = fitting(job(longest=32_768, rollouts=Rollouts(48, 1, 0.85)))
    assert found is not None and found.rollouts == Rollouts(24, 2, 0.85)


@pytest.mark.parametrize("hosts", [1, 2, 4, 8, 16])
def test_gpus_that_also_draw_rollouts_are_refused_only_where_they_are_too_few(hosts: int) -> None:
    found = shared(hosts)
    least = least_hosts(found)
    assert least is not None and (not refusals(found)) == (hosts >= least)


def test_where_no_layout_fits_it_says_how_many_hosts_would() -> None:
    few = job(2, learners=(4,), sharding=Sharding("zero3", 4, 10_240), rollouts=Rollouts(2, 2, 0.85))
    assert fitting(few) is None and least_hosts(few) == 5


def test_what_fits_obeys_every_rule_and_more_memory_never_needs_more_gpus() -> None:
    cases = 0
    for hosts, prompts, tokens in product((4, 8, 20), (8, 12, 32), (5120, 10_240)):
        before = 10_000
        for card in (48, 64, 80, 95.6, 141, 192):
            asked = job(hosts, card=card, prompts=prompts, longest=tokens, sharding=Sharding("zero3", 16, tokens))
            found = fitting(asked)
            if found is None:
                assert before == 10_000
                continue
            cases += 1
            assert found.demand.device <= TARGET * found.cluster.usable_bytes
            assert divides_heads(LARGE, found.rollouts.tensor_parallel) and found.batch % found.sharding.shards == 0
            assert (found.batch, found.longest, found.sharding.tokens) == (asked.batch, asked.longest, tokens)
            assert found.sharding.shards <= before
            before = found.sharding.shards
    assert cases > 40


def test_the_text_has_the_verdict_and_json_the_same_bytes() -> None:
    found = job(time=JobTime(86_400, 1200, 120, 190))
    text = plan_text(found, explain=True)
    assert "fits: 62.8 of 95.3 GiB usable on a GPU that trains (66%), in train" in text
    assert "39 steps of 32 prompts x 8 = 256 rollouts; 446 in a job of 1 d 00 h at 190 s a step" in text
    told = facts(found)
    assert told["device_bytes"] == found.demand.device == max(one["device"] for one in told["phases"].values())
    assert told["jobs"] == 1 and told["refused"] == {}
