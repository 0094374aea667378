"""Checks of what several GPUs and hosts can do together, each returning a Finding or None; none raises. (pure)"""

from __future__ import annotations

from urllib.parse import urlsplit

from profiles.finding import Finding
from profiles.schema import Profile

ENGINES = frozenset({"native", "hf", "auto"})
"""Engines that read the trainer's weights in its own process."""
ONE_HOST = {
    "local": "starts workers on this host alone",
    "ray": "gives a job one host; for ranks over several, --set launch.launcher=slurm, or --set run.worker=verl",
}
SLURM_ALONE = ("partition", "account", "qos", "constraint", "time_limit_minutes", "interface", "exclude", "options")
"""Knobs of [launch] that ask for what Ray does not have."""


def _has_own_engine(p: Profile) -> bool:
    from profiles.worker_kinds import worker_kind_of  # slow to import, and one rank needs no answer

    return worker_kind_of(p).has_own_engine


def ranks_draw_rollouts_themselves(p: Profile) -> Finding | None:
    others = sorted({p.sampling.engine, *p.sampling.fallback} - ENGINES)
    if p.run.ranks == 1 or _has_own_engine(p) or not others:
        return None
    return Finding(
        ("sampling.engine", "sampling.fallback", "run.gpus"),
        f"has {', '.join(others)}, which is untested with several GPUs; use native or hf",
    )


def ranks_share_exact_moments(p: Profile) -> Finding | None:
    if p.run.ranks == 1 or p.optimizer.kind == "adamw" or p.adapter.rank:  # each rank has all moments of an adapter
        return None
    return Finding(
        ("optimizer.kind", "run.gpus"),
        f'must be "adamw": the blocks of {p.optimizer.kind} would differ over shards; '
        "several GPUs divide the moments anyway",
    )


def ranks_have_work(p: Profile) -> Finding | None:
    if p.run.ranks == 1 or p.run.worker == "azr" or _has_own_engine(p):
        return None
    if p.run.worker == "fake":
        return Finding(("run.gpus", "run.worker"), "must be 1, as `run.hosts`: the worker fake trains in one process")
    if not p.grpo.sent.enabled:
        return None
    return Finding(
        ("run.gpus", "grpo.sent.enabled"),
        "must be 1, as `run.hosts`: difficulties belong to the hash of all weights, which no rank has whole",
    )


def hosts_come_from_a_launcher(p: Profile) -> Finding | None:
    if p.run.hosts == 1 or p.launch.launcher not in ONE_HOST or _has_own_engine(p):
        return None
    what = f"must be 1: the launcher {p.launch.launcher} {ONE_HOST[p.launch.launcher]}"
    return Finding(("run.hosts", "launch.launcher"), what)


def hosts_have_a_network(p: Profile) -> Finding | None:
    if p.run.hosts == 1 or p.launch.interface or p.launch.launcher != "slurm" or p.run.worker == "open_instruct":
        return None
    what = "names the network interface between the hosts, such as `ib0` (on a node: ip -br address)"
    return Finding(("launch.interface", "run.hosts"), what)


def ray_has_no_partitions(p: Profile) -> Finding | None:
    asked = [name for name in SLURM_ALONE if getattr(p.launch, name)] if p.launch.launcher == "ray" else []
    if not asked:
        return None
    keys = (*(f"launch.{name}" for name in asked), "launch.launcher")
    return Finding(keys, "is of Slurm, and a job of Ray has none: leave it out")


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # such as an open bracket, or a port that is not a number
        return False


def an_address_is_a_url(p: Profile) -> Finding | None:
    if not p.launch.address or _is_url(p.launch.address):
        return None
    return Finding(("launch.address",), "is the URL of Ray's dashboard, such as http://head:8265")


def hosts_of_open_instruct_come_from_ray(p: Profile) -> Finding | None:
    if p.run.hosts == 1 or p.run.worker != "open_instruct" or p.launch.launcher != "slurm":
        return None
    what = "is `local` for this worker on several hosts: start it where RAY_ADDRESS names a Ray cluster over them"
    return Finding(("launch.launcher", "run.hosts"), what)


RULES = (
    ray_has_no_partitions,
    an_address_is_a_url,
    hosts_of_open_instruct_come_from_ray,
    hosts_have_a_network,
    hosts_come_from_a_launcher,
    ranks_draw_rollouts_themselves,
    ranks_share_exact_moments,
    ranks_have_work,
)
