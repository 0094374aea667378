"""Whether a job on several hosts can work at all, and what would: memory, GPUs, batch, steps. (pure)

For the engines that train more than one host: open-instruct, whose rollout engines have GPUs of their own, and verl,
whose GPUs take turns. The bytes are of `profiles.sharded`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.job_time import JobTime
from orchestrator.machine import RESERVE_BYTES
from profiles.footprint import GIB, Demand
from profiles.shapes import Shape
from profiles.sharded import Sharding, cache_tokens, demand_of, divides_heads

TARGET = 0.9
"""Share of the usable bytes of a card that a plan may need."""
TIGHT = 0.85
"""Share above which it is told to be tight."""
LEAST_ROWS = 4
"""Rollouts of full length that the cache of an engine must hold: with fewer, decoding is reading weights for nobody."""


@dataclass(frozen=True)
class Cluster:
    """hosts: of `gpus` GPUs each, with `card_bytes` of memory."""

    hosts: int
    gpus: int
    card_bytes: int

    @property
    def usable_bytes(self) -> int:
        return max(0, self.card_bytes - RESERVE_BYTES)

    @property
    def size(self) -> int:
        return self.hosts * self.gpus


@dataclass(frozen=True)
class Rollouts:
    """The engines that draw: `engines` of `tensor_parallel` GPUs, each with `share` of the card."""

    engines: int
    tensor_parallel: int
    share: float


@dataclass(frozen=True)
class Job:
    """One training job. learners: GPUs that train, for each host that has some."""

    engine: Literal["open-instruct", "verl"]
    model: str
    shape: Shape
    cluster: Cluster
    learners: tuple[int, ...]
    sharding: Sharding
    """Its `shards` are the sum of `learners`."""
    rollouts: Rollouts
    prompts: int
    """Of a step."""
    samples: int
    """Of a prompt."""
    longest: int
    """Tokens of a prompt and its completion together."""
    steps: int | None
    """None: as many as it takes."""
    time: JobTime | None = None
    """None: the limit of a job is not known."""

    @property
    def shares_gpus(self) -> bool:
        """Whether the GPUs that train draw rollouts, too."""
        return self.sharding.rollout_bytes > 0

    @property
    def batch(self) -> int:
        """Rollouts of a step."""
        return self.prompts * self.samples

    @property
    def demand(self) -> Demand:
        return demand_of(self.shape, self.sharding)

    @property
    def cache_tokens(self) -> int:
        """Of one rollout engine; below 0: not even its weights have room."""
        engine = self.rollouts
        return cache_tokens(
            self.shape,
            tensor_parallel=engine.tensor_parallel,
            share=engine.share,
            card_bytes=self.cluster.card_bytes,
        )

    @property
    def room_for_engines(self) -> int:
        """Engines that the GPUs have room for; none reaches over two hosts."""
        cluster, tensor_parallel = self.cluster, self.rollouts.tensor_parallel
        if self.shares_gpus:
            return cluster.hosts * (cluster.gpus // tensor_parallel)
        idle = [cluster.gpus - busy for busy in self.learners] + [cluster.gpus] * (cluster.hosts - len(self.learners))
        return sum(max(0, free) // tensor_parallel for free in idle)


@dataclass(frozen=True)
class Refusal:
    """about: one word. text: what is wrong, in numbers."""

    about: str
    text: str


def refusals(job: Job) -> list[Refusal]:
    """Why the job cannot work, all reasons at once; empty: it can."""
    found = [*_of_memory(job), *_of_learners(job), *_of_engines(job), *_of_steps(job)]
    if job.time is not None and (problem := job.time.problem):
        found.append(Refusal("time", f"{problem}; {job.time.least_limit_s / 60:.0f} min would do"))
    return found


def _of_memory(job: Job) -> Iterator[Refusal]:
    demand, usable = job.demand, job.cluster.usable_bytes
    if demand.device > TARGET * usable:
        yield Refusal(
            "memory",
            f"{gib(demand.device)} GiB in {demand.worst} on each GPU that trains ({job.sharding.shards}), "
            f"{demand.device / usable:.0%} of the {gib(usable)} that are usable; at most {TARGET:.0%}",
        )


def _of_learners(job: Job) -> Iterator[Refusal]:
    cluster, count = job.cluster, job.sharding.shards
    if len(job.learners) > cluster.hosts or max(job.learners) > cluster.gpus:
        yield Refusal("learners", f"{_list(job.learners)} GPUs that train do not fit {_hosts(cluster)}")
    if job.batch % count:
        yield Refusal("batch", f"{job.batch} rollouts a step do not divide among {count} GPUs that train")


def _of_engines(job: Job) -> Iterator[Refusal]:
    engine, cluster, shape = job.rollouts, job.cluster, job.shape
    each = engine.tensor_parallel
    if not divides_heads(shape, each):
        heads = f"{shape.num_attention_heads} heads and {shape.num_key_value_heads} of keys"
        yield Refusal("heads", f"{gpus(each)} to an engine do not divide {heads}")
    if each > cluster.gpus:
        yield Refusal("engines", f"an engine of {each} GPUs would reach over hosts of {gpus(cluster.gpus)}")
        return
    if engine.engines > job.room_for_engines:
        free = cluster.size - (0 if job.shares_gpus else job.sharding.shards)
        yield Refusal(
            "engines",
            f"{engine.engines} engines of {gpus(each)} need {engine.engines * each}; {_hosts(cluster)} less "
            f"{job.sharding.shards} that train leave {max(0, free)}, room for {job.room_for_engines}",
        )
    elif engine.engines < 1:
        yield Refusal("engines", "no GPU is left to draw rollouts")
    if job.cache_tokens < LEAST_ROWS * job.longest:
        room = (
            f"a cache of {job.cache_tokens:,} tokens, less than {LEAST_ROWS} rollouts of {job.longest:,}"
            if job.cache_tokens > 0
            else f"no room for {gib(2 * shape.parameters / each)} GiB of weights"
        )
        yield Refusal(
            "cache", f"an engine of {gpus(each)} at {engine.share:g} of {gib(cluster.card_bytes)} GiB has {room}"
        )


def _of_steps(job: Job) -> Iterator[Refusal]:
    if job.steps == 0:
        yield Refusal("steps", f"0 steps: one step takes {job.prompts} prompts x {job.samples} = {job.batch} episodes")


def is_tight(job: Job) -> bool:
    return job.demand.device > TIGHT * job.cluster.usable_bytes


def fitting(job: Job) -> Job | None:
    """The nearest job that can work: settings that cost nothing first, then more GPUs that train; None where none can.

    Never changed: the batch, the lengths, the model, the hosts. What the job may not do without (steps, time) is left.
    """
    plain = replace(job, sharding=replace(job.sharding, gathers_whole=False, secondary=1))
    for learners in _learners(plain):
        sharding = replace(plain.sharding, shards=sum(learners))
        for engine in _engines(replace(plain, learners=learners, sharding=sharding)):
            found = replace(plain, learners=learners, sharding=sharding, rollouts=engine)
            if not [one for one in refusals(found) if one.about not in ("steps", "time")]:
                return found
    return None


def least_hosts(job: Job, most: int = 64) -> int | None:
    """The fewest hosts of this kind on which some form of the job can work; None: not with `most` of them either."""
    for hosts in range(1, most + 1):
        cluster = replace(job.cluster, hosts=hosts)
        wider = replace(job, cluster=cluster)
        if job.shares_gpus:
            wider = replace(wider, learners=(job.learners[0],) * hosts)
        if fitting(wider) is not None:
            return hosts
    return None


def _learners(job: Job) -> Iterator[tuple[int, ...]]:
    """As it is, then whole hosts, so that what is left divides into engines."""
    cluster = job.cluster
    if job.shares_gpus:
        yield job.learners
        return
    if len(job.learners) <= cluster.hosts and set(job.learners) == {cluster.gpus}:
        yield job.learners
    for hosts in range(1, cluster.hosts):
        yield (cluster.gpus,) * hosts


def _engines(job: Job) -> Iterator[Rollouts]:
    """The engines as they are, then larger ones; as many as were wanted, or as there is room for."""
    wanted = job.rollouts
    sizes = [size for size in (1, 2, 4, 8) if size > wanted.tensor_parallel]
    for size in (wanted.tensor_parallel, *sizes):
        room = replace(job, rollouts=replace(wanted, tensor_parallel=size)).room_for_engines
        gpus = wanted.engines * wanted.tensor_parallel
        yield replace(
            wanted, tensor_parallel=size, engines=room if job.shares_gpus else min(room, max(1, gpus // size))
        )


# --- words ------------------------------------------------------------------------------------------------------------


def gib(count: float) -> str:
    return f"{count / GIB:.1f}"


def gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _list(numbers: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, numbers))}]"


def _hosts(cluster: Cluster) -> str:
    return f"{cluster.hosts} hosts of {gpus(cluster.gpus)}" if cluster.hosts > 1 else f"a host of {gpus(cluster.gpus)}"
