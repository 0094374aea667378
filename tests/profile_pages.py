"""Writes what the planner computes of the shipped profiles into their pages: `python -m tests.profile_pages`.

A page has one part for each profile, between `<!-- computed: NAME -->` and `<!-- end -->`: what it needs, and how many
steps it makes in 1, 10 and 100 hours on cards by name. Everything else on the page is written by hand. Nothing is read
from this machine, so every machine writes the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator import verl_job
from orchestrator.cluster_plan import gib
from orchestrator.disk import Room, There, plan_for
from orchestrator.display.wording import count, size
from orchestrator.hours import cpu
from orchestrator.hours.prediction import predict, ram_of, seconds, steps_in
from orchestrator.judging import ProfileVerdict, judge, shape_for
from orchestrator.machine import Machine
from orchestrator.preflight import a_card_of
from profiles.__main__ import PROFILE_PAGES
from profiles.footprint import GIB, rollouts_of
from profiles.load import load_profile
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
HOURS = (1, 10, 100)
WITHOUT_GPU = Machine((), "it is not asked for")
QUIET = cpu.Processor(cpu.UNIT_S, share=1.0, cores=2)
"""Two cores like those of docs/measurements.md, with nothing else to do."""
CLUSTER_CARD_GIB = 95.6
PART = re.compile(r"(<!-- computed: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Card:
    """A card that people have. name: as in orchestrator/hours/cards.py."""

    name: str
    gigabytes: int


CARDS = (
    Card("RTX 4060", 8),
    Card("RTX 3060", 12),
    Card("RTX 4080", 16),
    Card("RTX 4090", 24),
    Card("A100-SXM4-80GB", 80),
    Card("H100", 80),
    Card("H200", 141),
)
"""The smallest first."""


def page(text: str) -> str:
    """The page with every computed part made anew."""
    return PART.sub(lambda part: f"{part[1]}\n{computed(part[2])}\n{part[3]}", text)


def computed(name: str) -> str:
    """What the planner says of a shipped profile, as tables."""
    profile = load_profile(name).profile
    kind = worker_kind_of(profile)
    if kind.has_own_engine and profile.run.device != "cpu":
        return _table(("what", "how much"), _of_a_cluster(profile))
    if profile.run.device == "cuda":
        return _on_cards(profile)
    verdict = judge(profile, WITHOUT_GPU)
    rows = [("hardware", "2 CPU cores; no GPU"), *_of_a_host(verdict)]
    needs = _table(("what", "how much"), rows)
    step_s = None if kind.has_own_engine else _cpu_seconds(profile)
    if step_s is None:
        return needs
    where, known = "2 CPU cores, nothing else running", "scaled from two measured cores"
    if not kind.uses_model:
        where, known = "any", "it only sleeps"
    row = (where, seconds(step_s), *_steps(profile, step_s), known)
    return f"{needs}\n{_table(_heads('machine'), [row])}"


def _on_cards(profile: Profile) -> str:
    rows, smallest = [], None
    for card in CARDS:
        verdict = judge(profile, a_card_of(card.gigabytes, has_vllm=False))
        assert verdict.plan is not None
        if not verdict.plan.fits:
            continue
        is_tight = verdict.plan.is_tight
        if smallest is None and not is_tight:
            smallest = card, verdict
        said = predict(verdict, Room(None, There(), 0, DOCS), 0.0, card_name=card.name)
        assert said.step_s is not None and said.low is not None and said.high is not None
        rows.append(
            (
                f"{card.name}, {card.gigabytes} GB{', tight' if is_tight else ''}",
                f"{seconds(said.step_s)} ({seconds(said.low)} to {seconds(said.high)})",
                *_steps(profile, said.step_s),
                said.basis.partition(", ")[0].replace(f" to {card.name}", ""),
            )
        )
    assert smallest is not None
    card, verdict = smallest
    needs = _table(("what", "how much"), [("GPU", _gpu(card, verdict)), *_of_a_host(verdict)])
    return f"{needs}\n{_table(_heads('card'), rows)}"


def _gpu(card: Card, verdict: ProfileVerdict) -> str:
    plan = verdict.plan
    assert plan is not None and plan.usable_bytes is not None
    demand = plan.demand
    return (
        f"one of {card.gigabytes} GB: {demand.device / GIB:.1f} of {plan.usable_bytes / GIB:.1f} GiB usable, "
        f"at its highest in `{demand.worst}`"
    )


def _of_a_host(verdict: ProfileVerdict) -> list[tuple[str, str]]:
    """Host memory, disk, and the size of a step."""
    profile = verdict.profile
    rows = [("host memory", f"up to {size(ram_of(verdict))}, all processes together")]
    disk = plan_for(profile, There())
    if disk is not None:
        every = profile.retention.keep_every
        more = f", and {size(disk.growth)} more in every {every} cycles" if disk.growth else ""
        rows += [("disk", f"up to {size(disk.total)}{more}"), ("a checkpoint", f"up to {size(disk.checkpoint)}")]
    return [*rows, *_of_a_step(profile)]


def _of_a_step(profile: Profile) -> list[tuple[str, str]]:
    run, sampling = profile.run, profile.sampling
    rows = []
    if worker_kind_of(profile).uses_model:
        is_self_play = run.worker == "azr"
        rollouts = rollouts_of(profile) if is_self_play else profile.grpo.groups_per_step * profile.grpo.group_size
        tokens = f"{sampling.max_prompt_tokens:,} + {sampling.max_completion_tokens:,}"
        rows.append(("a step", f"up to {rollouts:,} rollouts of up to {tokens} tokens"))
    steps = steps_in(profile)
    end = f"after {steps:,} steps" if steps else "by the stagnation rule, or when you stop it"
    rows.append(("a cycle", f"{run.steps_per_cycle} steps, a checkpoint every {run.checkpoint_every}"))
    return [*rows, ("the run ends", end)]


def _of_a_cluster(profile: Profile) -> list[tuple[str, str]]:
    shape = shape_for(profile.model)
    assert shape is not None
    job = verl_job.job_of(profile, shape, int(CLUSTER_CARD_GIB * GIB))
    demand, cluster = job.demand, job.cluster
    return [
        ("hosts", f"{cluster.hosts} of {cluster.gpus} GPUs of {CLUSTER_CARD_GIB} GiB"),
        (
            "memory of each GPU",
            f"{gib(demand.device)} of {gib(cluster.usable_bytes)} GiB usable, at its highest in `{demand.worst}`",
        ),
        (
            "rollout engines",
            f"{job.rollouts.engines} of {job.rollouts.tensor_parallel} GPUs, each with a cache for "
            f"{job.cache_tokens // job.longest} rollouts of full length",
        ),
        *_of_a_step(profile),
    ]


def _cpu_seconds(profile: Profile) -> float | None:
    if not worker_kind_of(profile).uses_model:
        return profile.fake.step_s
    row = cpu.nearest(profile)
    return cpu.seconds_of(profile, row, QUIET) if row is not None else None


def _steps(profile: Profile, step_s: float) -> tuple[str, ...]:
    """Steps after each of HOURS; a run with a limit makes no more than that."""
    most = steps_in(profile)
    made = [int(hours * 3600 / step_s) for hours in HOURS]
    return tuple(f"all {count(most)}" if most and steps >= most else count(steps) for steps in made)


def _heads(where: str) -> tuple[str, ...]:
    return (where, "a step", *(f"steps in {hours} h" for hours in HOURS), "known by")


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows)) + "\n"


def main() -> None:
    for name in PROFILE_PAGES:
        path = DOCS / name
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
