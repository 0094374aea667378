"""What the facts of a cluster's nodes mean: findings with remedies, for `doctor --cluster`. (pure)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from orchestrator import doctor
from orchestrator.cluster_plan import refusals
from orchestrator.doctor import Finding
from orchestrator.judging import shape_for
from orchestrator.machine import Card, Machine
from orchestrator.verl_job import job_of
from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB
from profiles.schema import Profile
from profiles.verl import OWN_SERVER
from profiles.worker_kinds import worker_kind_of
from workers.node_contract import EXCLUSIVE_FILES, Gpu, NodeFacts, RankFacts

RENAME_S = 5.0
"""Longest round trip of two renames between nodes: the relay and the fence of a job count on a few seconds."""
SKEW_S = 1.0
"""Difference of clocks that is worth a remark. Nothing compares clocks of two hosts."""
SLOW = 0.5
"""Share of the median speed below which a rank is slow."""
USED_MB = 1024
"""GPU memory of other programs that is worth a remark."""
LEAST_RANKS = 3
"""With fewer, a slow exchange is as much of one rank as of the other."""


@dataclass(frozen=True)
class Answers:
    """What came back from the job. reports: host -> its newest report."""

    reports: Mapping[int, NodeFacts]
    hosts: int
    """Hosts that were asked."""
    nodes: tuple[str, ...] = ()
    """Names of the job's nodes in the order of hosts; empty: unknown."""
    said: Mapping[str, str] = field(default_factory=dict)
    """Node -> what the scheduler said of its task."""
    ranks_error: str = ""
    """Why the ranks did not sum, in the leader's words."""
    end: str = ""
    """How the job ended, if it did not end well."""
    place: str = "runs"
    """Folder of runs."""
    log: str = ""

    def name(self, host: int) -> str:
        if host in self.reports:
            return self.reports[host].node
        return self.nodes[host] if host < len(self.nodes) else f"host {host}"


def judge(profile: Profile, answers: Answers) -> Iterator[Finding]:
    """All findings, in the order in which a person would repair them."""
    yield from nodes(answers)
    there = [answers.reports[host] for host in sorted(answers.reports)]
    if not there:
        return
    yield from versions(there)
    yield from gpus(profile, there)
    yield from model(profile, there)
    yield from directory(there, answers)
    sharing = [one for one in there if one.stage != "started"]
    if len(sharing) > 1:
        yield from renames(sharing, answers)
        yield from exclusive(sharing, answers, is_whole=len(sharing) == answers.hosts)
        yield from locks(sharing)
        yield from clocks(sharing, answers)
    yield from code_server(profile, there)
    yield from ranks(profile, answers)


def nodes(answers: Answers) -> Iterator[Finding]:
    missing = [host for host in range(answers.hosts) if host not in answers.reports]
    if not missing and not answers.end:
        yield Finding("nodes", "ok", ", ".join(answers.name(host) for host in sorted(answers.reports)))
    for host in missing:
        node = answers.name(host)
        why = answers.said.get(node) or answers.end or "nothing came from it"
        yield Finding("nodes", "fail", f"{node} did not answer: {why}", look_at(node), ExitCode.NODE)
    if answers.end and not missing:
        stages = ", ".join(f"{one.node} after `{one.stage}`" for one in answers.reports.values())
        is_met = all(one.stage != "node" for one in answers.reports.values())
        fix = f"tail -n 40 {answers.log}"
        if not is_met:  # the next stage is the ranks
            fix += "; ranks that do not meet need another launch.interface   (on a node: ip -br address)"
        yield Finding("nodes", "fail", f"{answers.end} ({stages})", fix, ExitCode.NODE)


def look_at(node: str) -> str:
    return f"srun --nodelist={node} hostname; or {leave_out(node)}"


def leave_out(node: str) -> str:
    return f"leave it out: --set 'launch.exclude=[\"{node}\"]'"


def on(one: NodeFacts, command: str) -> str:
    """The command to type for a look at that node, from the host where `doctor` was typed."""
    return f"srun --nodelist={one.node} {command}" if one.nodes else command


def versions(there: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Each package must be the same everywhere; what most nodes have is taken as meant."""
    facts = [_versions_of(one) for one in there]
    wrong = False
    for name in sorted({name for one in facts for name in one}):
        found = [one.get(name, "not installed") for one in facts]
        common = Counter(found).most_common(1)[0][0]
        for node, version in zip(there, found, strict=True):
            if version != common:
                wrong = True
                detail = f"{name} is {version} on {node.node} and {common} elsewhere"
                fix = (
                    f"{on(node, 'nvidia-smi')}   (have its driver updated, or {leave_out(node.node)})"
                    if name == "driver"
                    else f"make setup, in a folder that all nodes share; or a line of launch.setup that loads the "
                    f"modules of {common} on every node"
                )
                yield Finding("versions", "fail", detail, fix, ExitCode.INPUT)
    if not wrong:
        yield Finding("versions", "ok", ", ".join(f"{name} {version}" for name, version in sorted(facts[0].items())))


def _versions_of(one: NodeFacts) -> dict[str, str]:
    drivers = sorted({gpu.driver for gpu in one.gpus})
    return {**one.versions, **({"driver": " and ".join(drivers)} if drivers else {})}


# --- GPUs ---------------------------------------------------------------------------------------------------------


def gpus(profile: Profile, there: Sequence[NodeFacts]) -> Iterator[Finding]:
    if profile.run.device == "cpu":
        return
    if profile.run.device == "auto" and not any(one.gpus for one in there):
        yield Finding("gpus", "ok", "none on any node: ranks run on the CPU")
        return
    found = [finding for one in there for finding in _of_node(profile, one)]
    found += _twice_in_the_cluster(there)
    if not any(one.state == "fail" for one in found):
        names = Counter(gpu.name for one in there for gpu in one.gpus)
        yield Finding("gpus", "ok", ", ".join(f"{count} x {name}" for name, count in names.items()))
    yield from found
    yield from _memory(profile, there)


def _of_node(profile: Profile, one: NodeFacts) -> Iterator[Finding]:
    look = on(one, f"--gpus-per-node={profile.run.gpus} nvidia-smi" if one.nodes else "nvidia-smi")
    if len(one.gpus) < profile.run.gpus:
        why = f" ({one.gpu_error})" if one.gpu_error else ""
        detail = f"{one.node} has {len(one.gpus)} of {profile.run.gpus} required by run.gpus{why}"
        yield Finding("gpus", "fail", detail, f"{look}; or --set run.gpus={max(1, len(one.gpus))}", ExitCode.GPU)
    given = [(place, gpu) for place, card in enumerate(one.cards) for gpu in [_card_named(one.gpus, card)] if gpu]
    for place, gpu in given:
        for before, other in given[:place]:
            ranks = f"ranks {before} and {place} of {one.node}"
            if gpu.uuid == other.uuid:
                fix = "unset CUDA_VISIBLE_DEVICES; in [launch] options: --gpu-bind=none"
                yield Finding("gpus", "fail", f"{ranks} have the same GPU, {gpu.uuid}", fix, ExitCode.GPU)
            elif gpu.pci == other.pci:
                fix = f"--set run.gpus=1 with more hosts, until the platform is repaired; {look} -q"
                detail = f"{ranks} have GPUs of one PCI id, {gpu.pci}, which NCCL refuses as a duplicate GPU"
                yield Finding("gpus", "fail", detail, fix, ExitCode.GPU)
    for gpu in one.gpus:
        if gpu.ecc > 0:
            fix = f"{look} -q -d ECC" + (f"; {leave_out(one.node)}" if one.nodes else "   (have it replaced)")
            detail = f"GPU {gpu.index} of {one.node} has {gpu.ecc} uncorrected memory errors since its start"
            yield Finding("gpus", "fail", detail, fix, ExitCode.GPU)
        if gpu.used_mb > USED_MB:
            detail = f"other programs use {gpu.used_mb / 1024:.1f} GiB of GPU {gpu.index} of {one.node}"
            yield Finding("gpus", "warn", detail, look)
    for line in one.xids:
        yield Finding("gpus", "warn", f"the kernel of {one.node} says: {line}", f"{look} -q; dmesg | grep Xid")


def _card_named(cards: Sequence[Gpu], name: str) -> Gpu | None:
    return next((card for card in cards if name and (card.index == name or card.uuid.startswith(name))), None)


def _twice_in_the_cluster(there: Sequence[NodeFacts]) -> Iterator[Finding]:
    """PCI ids are the same on each node of a kind; a UUID is not."""
    first: dict[str, str] = {}
    for one in there:
        for gpu in one.gpus:
            node = first.setdefault(gpu.uuid, one.node)
            if node != one.node:
                detail = f"{node} and {one.node} have the same GPU, {gpu.uuid}: they are one machine"
                fix = "scontrol show node; leave one of them out: --set 'launch.exclude=[...]'"
                yield Finding("gpus", "fail", detail, fix, ExitCode.GPU)


def _memory(profile: Profile, there: Sequence[NodeFacts]) -> Iterator[Finding]:
    """The planner's verdict on the node with the least memory."""
    machines = [(one.node, _machine_of(one)) for one in there if len(one.gpus) >= profile.run.gpus]
    if not machines:
        return
    if worker_kind_of(profile).has_own_engine:
        yield from _of_engine(profile, min(card.total_bytes for _, one in machines for card in one.cards or ()))
        return
    node, least = min(machines, key=lambda pair: min(card.usable_bytes for card in pair[1].cards or ()))
    for found in doctor.card(profile, least):
        yield Finding(found.check, found.state, f"{node}: {found.detail}", found.fix, found.exit_code)


def _of_engine(profile: Profile, card_bytes: int) -> Iterator[Finding]:
    """The planner's refusals of a job of another engine on such GPUs: memory, batch, heads, engines, cache."""
    shape = shape_for(profile.model)
    if shape is None or not shape.is_counted:
        return
    command = f"python -m orchestrator plan --profile {profile.name} --card {card_bytes / GIB:.1f}"
    try:
        job = job_of(profile, shape, card_bytes)
    except LonghaulError as error:
        yield Finding("plan", "warn", error.what, command)
        return
    found = refusals(job)
    for one in found:
        code = ExitCode.CUDA_OOM if one.about in ("memory", "cache") else ExitCode.INPUT
        yield Finding("plan", "fail", f"{one.about}: {one.text}", command, code)
    if not found:
        yield Finding("plan", "ok", f"{job.demand.device / GIB:.1f} of {job.cluster.usable_bytes / GIB:.1f} GiB")


def _machine_of(one: NodeFacts) -> Machine:
    cards = tuple(Card(gpu.name, gpu.total_mb << 20, gpu.used_mb << 20) for gpu in one.gpus)
    return Machine(cards, has_vllm="vllm" in one.versions)


# --- files --------------------------------------------------------------------------------------------------------


def model(profile: Profile, there: Sequence[NodeFacts]) -> Iterator[Finding]:
    wrong = [one for one in there if one.model_fault]
    for one in wrong:
        fix = on(one, f"ls -l {profile.model.path}") + "   (copy the model to where all nodes see it)"
        yield Finding("model", "fail", f"{one.node}: {one.model_fault}", fix, ExitCode.INPUT)


def directory(there: Sequence[NodeFacts], answers: Answers) -> Iterator[Finding]:
    wrong = False
    for one in there:
        if one.directory_error:
            wrong = True
            fix = on(one, f"ls -ld {answers.place}; keep runs where all nodes see them: --runs DIR")
            detail = f"{answers.place} on {one.node}: the check's directory {one.directory_error}"
            yield Finding("directory", "fail", detail, fix, ExitCode.DISK)
        elif one.write_error:
            wrong = True
            is_space = "space" in one.write_error.lower() or "quota" in one.write_error.lower()
            fix = on(one, f"{'df -h' if is_space else 'ls -ld'} {answers.place}")
            code = ExitCode.DISK if is_space else ExitCode.PERMISSION
            detail = f"{one.node} cannot write to {answers.place}: {one.write_error}"
            yield Finding("directory", "fail", detail, fix, code)
        elif 0 <= one.free_bytes >> 20 < doctor.FREE_MB:
            wrong = True
            detail = f"{one.node} sees {one.free_bytes >> 20} MiB free in {answers.place}, {doctor.FREE_MB} wanted"
            yield Finding("directory", "warn", detail, f"df -h {answers.place}   (free some space)")
    if not wrong:
        free = min(one.free_bytes for one in there) / 2**30
        yield Finding("directory", "ok", f"every node reads and writes {answers.place}; {free:.1f} GiB free")


def renames(there: Sequence[NodeFacts], answers: Answers) -> Iterator[Finding]:
    """Whether a file that a node renames into place is seen by the others, soon and whole."""
    wrong = False
    fix = f"findmnt -T {answers.place}   (a file system with a coherent cache, such as NFS 4 or Lustre; or --runs DIR)"
    for one in there:
        if unseen := sorted({other.host for other in there} - set(one.present)):
            wrong = True
            names = ", ".join(answers.name(host) for host in unseen)
            yield Finding("renames", "fail", f"{one.node} never saw a file that {names} made", fix, ExitCode.DISK)
    asking = there[0]
    trips = {pong.host: pong.round_trip_s for pong in asking.pongs}
    for other in there[1:]:
        trip = trips.get(other.host)
        if trip is None and not wrong:
            detail = f"{other.node} did not answer a file of {asking.node} by another"
            yield Finding("renames", "fail", detail, fix, ExitCode.DISK)
            wrong = True
        elif trip is not None and trip > RENAME_S:
            wrong = True
            detail = f"a rename on {asking.node} and the answer of {other.node} took {trip:.1f} s, at most {RENAME_S:g}"
            yield Finding("renames", "fail", detail, f"{fix}; with NFS: actimeo=1 among its options", ExitCode.DISK)
    for one in there:
        if one.torn:
            wrong = True
            detail = f"{one.node} read a replaced file {one.reads} times, and {one.torn} times found none or a mixture"
            yield Finding("renames", "fail", f"{detail}: a rename is not atomic there", fix, ExitCode.DISK)
    if not wrong:
        longest = max(trips.values(), default=0.0)
        reads = sum(one.reads for one in there)
        yield Finding("renames", "ok", f"seen and answered within {longest:.2f} s; {reads} reads of a replaced file")


def exclusive(there: Sequence[NodeFacts], answers: Answers, *, is_whole: bool) -> Iterator[Finding]:
    """is_whole: no node is missing, which may have created the files that nobody else did."""
    winners = Counter(number for one in there for number in one.won)
    twice = sum(count > 1 for count in winners.values())
    nobody = EXCLUSIVE_FILES - len(winners) if is_whole else 0
    if not twice and not nobody:
        yield Finding("O_EXCL", "ok", f"each of {EXCLUSIVE_FILES} files was created by one node")
        return
    detail = f"of {EXCLUSIVE_FILES} files, {twice} were created by two nodes and {nobody} by none"
    fix = f"findmnt -T {answers.place}   (mount it with NFS 4, or keep runs elsewhere: --runs DIR)"
    yield Finding("O_EXCL", "fail", f"{detail}: two copies of a job could work at once", fix, ExitCode.LOCKED)


def locks(there: Sequence[NodeFacts]) -> Iterator[Finding]:
    wrong = False
    for one in there:
        for kind, found in sorted(one.locks.items()):
            if found == "granted":
                wrong = True
                detail = f"{one.node} got a lock ({kind}) that {there[0].node} held"
                fix = "start every master of a run on one host; or mount with local_lock=none (NFS), -o flock (Lustre)"
                yield Finding("node locks", "fail", detail, fix, ExitCode.LOCKED)
            elif found != "excluded":
                wrong = True
                fix = "start every master of a run on one host"
                yield Finding("node locks", "warn", f"{one.node} has no lock ({kind}): {found}", fix)
    if not wrong and any(one.locks for one in there):
        yield Finding("node locks", "ok", "flock and fcntl exclude other nodes")


def clocks(there: Sequence[NodeFacts], answers: Answers) -> Iterator[Finding]:
    pongs = there[0].pongs
    if not pongs:
        return
    worst = max(pongs, key=lambda pong: abs(pong.ahead_s) - pong.round_trip_s / 2)
    detail = (
        f"{answers.name(worst.host)} is {abs(worst.ahead_s):.2f} s {'ahead of' if worst.ahead_s > 0 else 'behind'} "
        f"{there[0].node} (to {worst.round_trip_s / 2:.2f} s); nothing here compares clocks"
    )
    if abs(worst.ahead_s) - worst.round_trip_s / 2 > SKEW_S:
        fix = f"srun --nodelist={answers.name(worst.host)} chronyc tracking   (logs of two nodes are hard to compare)"
        yield Finding("clocks", "warn", detail, fix)
    else:
        yield Finding("clocks", "ok", detail)


def code_server(profile: Profile, there: Sequence[NodeFacts]) -> Iterator[Finding]:
    if (url := profile.verl.code_server) in ("", OWN_SERVER):  # nodes try no server that the worker starts
        return
    wrong = [one for one in there if one.server_fault]
    for one in wrong:
        listen = "python -m workers.sandbox serve --host ADDRESS listens to other hosts"
        fix = on(one, f"curl {url.rstrip('/')}/health; {listen}")
        yield Finding("code server", "fail", f"from {one.node}: {one.server_fault}", fix, ExitCode.CODE_SERVER)
    if not wrong:
        yield Finding("code server", "ok", f"{url} judges a right and a wrong test, from every node")


# --- ranks --------------------------------------------------------------------------------------------------------


def ranks(profile: Profile, answers: Answers) -> Iterator[Finding]:
    host_0 = answers.reports.get(0)
    found = host_0.ranks if host_0 is not None else []
    if answers.ranks_error and not found:
        fix = f"tail -n 40 {answers.log}; --set launch.interface=NAME   (on a node: ip -br address)"
        yield Finding("all-reduce", "fail", answers.ranks_error, fix, ExitCode.RANK)
    if not found:
        return
    gpus_of_host = profile.run.gpus
    wrong = False
    for one in found:
        if one.wrong:
            wrong = True
            node = answers.name(one.rank // gpus_of_host)
            detail = f"rank {one.rank} on {node} has a wrong sum in {one.wrong:,} places"
            yield Finding("all-reduce", "fail", detail, _about_rank(answers, node), ExitCode.RANK)
    for label, slow in (("inside", _slow(found, "inside")), ("between", _slow(found, "between"))):
        where = "with its neighbours on the host" if label == "inside" else "with other hosts"
        for one, middle in slow:
            wrong = True
            node = answers.name(one.rank // gpus_of_host)
            detail = f"rank {one.rank} on {node} exchanges {getattr(one, label):.3g} GB/s {where}; median {middle:.3g}"
            yield Finding("all-reduce", "warn", detail, _about_rank(answers, node))
    if not wrong:
        speed = min(one.reduce for one in found)
        yield Finding("all-reduce", "ok", f"{len(found)} ranks: right on each, {speed:.3g} GB/s")


def _about_rank(answers: Answers, node: str) -> str:
    return look_at(node) if answers.nodes else "nvidia-smi topo -m   (how the GPUs of this host are connected)"


def _slow(found: Sequence[RankFacts], label: str) -> list[tuple[RankFacts, float]]:
    speeds = [getattr(one, label) for one in found]
    if len(found) < LEAST_RANKS or not all(speeds):
        return []
    middle = median(speeds)
    return [(one, middle) for one, speed in zip(found, speeds, strict=True) if speed < SLOW * middle]
