"""Checks a cluster before the first run: this host's side, then each node of one short job of the profile's shape.

The job goes through the launcher that a run uses, with the options of an attempt, so what is tested is what runs.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace as changed
from pathlib import Path

import msgspec
from msgspec.structs import replace

from orchestrator import doctor, node_findings
from orchestrator.disk import disk_line, room_for
from orchestrator.doctor import Finding
from orchestrator.engine_check import check_engine
from orchestrator.launchers.batch import Batch, Unanswered
from orchestrator.launchers.environment import clean_environment
from orchestrator.launchers.launcher import Handle, Launcher, Order, Started
from orchestrator.launchers.registry import launcher_named
from orchestrator.launchers.slurm import Slurm, expanded
from orchestrator.node_findings import Answers
from profiles.errors import ExitCode, LonghaulError
from profiles.hub_model import directory_of
from profiles.load import profile_sha256
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of
from state import durable, python
from state.layout import AttemptDir, RunDir
from state.weights import model_fault, shards
from workers.contract import HOSTS_WAIT_VARIABLE, Result, WorkerSpec
from workers.node_contract import MARKER, SHARED, reports_in

CHECKED = ("local", "slurm")
"""Launchers whose nodes can be checked."""
MODULE = "workers.node_check"
JOB_MINUTES = 10
"""Time limit of the job, so that it starts in a gap."""
QUEUE_S = 900.0
"""How long the job may wait for its nodes."""
RUN_S = 420.0
"""How long it may run: imports from a cold disk take minutes."""
WAIT_S = 120
"""How long its ranks wait for each other."""
LOOK_EVERY_S = 0.2
OF_A_TASK = (
    re.compile(r"srun: error: (?:Task launch .* on node )?([^\s:]+): (.+)"),
    re.compile(r"slurmstepd-(\S+): error: (.+)"),
)
"""What Slurm writes of a node whose task did not start or failed."""


def examine_cluster(profile: Profile, runs: Path) -> Iterator[Finding]:
    """All findings, as they come. The job may take some minutes, and longer to begin."""
    name = profile.launch.launcher
    if name not in CHECKED:
        detail = f"{name}: --cluster checks the nodes of {' and '.join(CHECKED)} alone"
        fix = f"python -m orchestrator doctor --cluster --profile {profile.name} --set launch.launcher=slurm"
        yield Finding("launcher", "fail", detail, fix, ExitCode.INPUT)
        return
    yield doctor.python_version(sys.version_info[:3])
    yield from doctor.packages()
    is_here = name == "local"
    if is_here and profile.run.hosts > 1:
        detail = f"{profile.run.hosts} in the profile, and the launcher local reaches this one alone"
        yield Finding("hosts", "warn", detail, "the same command on each of the other hosts")
    on_disk = [*doctor.disk(runs, is_shared=not is_here)]
    yield from [*on_disk, space(profile, runs), *engine(profile), *model(profile)]
    if any(finding.state == "fail" for finding in on_disk):
        return
    launcher = launcher_named(name, profile)
    with scratch(runs) as directory:
        alone = replace(profile, run=replace(profile.run, hosts=1))
        asked = alone if is_here else profile
        order = order_of(asked, directory)
        if isinstance(launcher, Batch) and isinstance(launcher.scheduler, Slurm):
            found = [*scheduler(profile, launcher.scheduler, order)]
            yield from found
            if any(finding.state == "fail" for finding in found):
                shutil.rmtree(directory.path, ignore_errors=True)
                return
        short = launcher_named(name, short_of(asked))
        answers = ask(short, order, Answers({}, asked.run.hosts, place=str(runs), log=str(directory.log)))
        findings = [*node_findings.judge(profile, answers)]
        if not answers.end and not answers.ranks_error:
            remove(directory.path)
    yield from findings


# --- this host's side ---------------------------------------------------------------------------------------------


def space(profile: Profile, runs: Path) -> Finding:
    room = room_for(profile, RunDir(runs / profile.name))
    if room.is_refused:
        return Finding("space", "fail", disk_line(room), f"df -h {room.place}   (free some space)", ExitCode.DISK)
    return Finding("space", "ok", disk_line(room).removeprefix("disk: "))


def engine(profile: Profile) -> Iterator[Finding]:
    """What the engine of another program would refuse: its version, heads that GPUs do not divide, settings."""
    if not worker_kind_of(profile).has_own_engine:
        return
    try:
        check_engine(profile)
    except LonghaulError as error:
        yield Finding("engine", "fail", error.what, error.next_command, error.exit_code)
    else:
        yield Finding("engine", "ok", f"{profile.run.worker} accepts the profile")


def model(profile: Profile) -> Iterator[Finding]:
    """Whether every shard is there and as long as its header says, as this host sees it."""
    if not worker_kind_of(profile).uses_model or profile.model.random_init != "off":
        return
    place = directory_of(profile.model)
    path, why = model_fault(place)
    if path:
        fix = f"hf download OWNER/NAME --local-dir {place}   (goes on where it stopped); or set model.path"
        yield Finding("model", "fail", f"{path} {why}", fix, ExitCode.INPUT)
        return
    found = shards(place)
    total = sum(shard.stat().st_size for shard in found)
    yield Finding("model", "ok", f"{place}: {len(found)} whole files of weights, {total / 2**30:.2f} GiB")


def scheduler(profile: Profile, slurm: Slurm, order: Order) -> Iterator[Finding]:
    """Whether Slurm answers, and would take an attempt's job."""
    launch, hosts = profile.launch, profile.run.hosts
    try:
        there = slurm.partition()
        refused = slurm.refusal(order)
    except (Unanswered, LonghaulError) as error:
        said = error.what if isinstance(error, LonghaulError) else str(error)
        yield Finding("scheduler", "fail", said, "sinfo   (once it answers, the same command)", ExitCode.CLUSTER)
        return
    usable = [node for node in there if node.is_usable and node.name not in launch.exclude]
    longest = max((node.limit_minutes for node in usable), default=0.0)
    where = f"partition {there[0].partition}" if there else f"partition {launch.partition or 'by default'}"
    limit = f"a limit of {longest:.0f} min" if longest < float("inf") else "no time limit"
    yield Finding("scheduler", "ok", f"{where}: {len(usable)} of {len(there)} nodes usable, {limit}")
    if hosts > len(usable):
        detail = f"run.hosts = {hosts}, and {len(usable)} nodes of {where} are usable, of {len(there)}"
        fix = f"sinfo -N -l; --set run.hosts={len(usable)}, or another launch.partition"
    elif launch.time_limit_minutes > longest:
        detail = f"launch.time_limit_minutes = {launch.time_limit_minutes}, and {where} has {limit}"
        fix = f"--set launch.time_limit_minutes={longest:.0f}"
    elif refused:
        detail = f"sbatch --test-only refuses {hosts} nodes of {where}: {refused}"
        fix = "sinfo -o '%P %l %D %G %m %c'; correct [launch] or run.gpus"
    else:
        yield Finding("job", "ok", f"sbatch --test-only takes {hosts} nodes with the options of an attempt")
        return
    yield Finding("job", "fail", detail, fix, ExitCode.CLUSTER)


# --- the job ------------------------------------------------------------------------------------------------------


@contextmanager
def scratch(runs: Path) -> Iterator[AttemptDir]:
    """A directory among the runs for the job. Its user removes it, or leaves it for its logs."""
    path = runs.absolute() / f".doctor-{secrets.token_hex(6)}"
    durable.make_dir(path / SHARED)
    try:
        yield AttemptDir(path)
    except BaseException:
        remove(path)
        raise


def remove(path: Path) -> None:
    """A thread of the launcher may write one more file there while it ends."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.1)


def order_of(profile: Profile, directory: AttemptDir) -> Order:
    """An order for the check on each node, whose files are in `directory`."""
    token, place = directory.path.name.removeprefix(".doctor-"), str(directory.path)
    spec = WorkerSpec(
        run_id=token,
        run_dir=place,
        role="train",
        cycle=0,
        attempt=1,
        token=token,
        attempt_dir=".",
        first_step=1,
        end_step=2,
        head=None,
        profile=profile,
        profile_sha256=profile_sha256(profile),
    )
    durable.write_file(directory.spec, msgspec.json.encode(spec))
    durable.write_file(directory.path / MARKER, token.encode())
    owner = f"doctor@{token}"
    environment = {**clean_environment(owner, token, ""), HOSTS_WAIT_VARIABLE: str(WAIT_S)}
    return Order(
        Handle(profile.launch.launcher, owner, token),
        tuple(python.command(MODULE, place, token)),
        environment,
        directory.log,
        directory,
        is_on_each_host=True,
    )


def short_of(profile: Profile) -> Profile:
    """The same profile, with a job of some minutes."""
    limit = min(profile.launch.time_limit_minutes or JOB_MINUTES, JOB_MINUTES)
    return replace(profile, launch=replace(profile.launch, time_limit_minutes=limit))


def ask(launcher: Launcher, order: Order, blank: Answers) -> Answers:
    """Run the job to its end, and fill in what the nodes said. Raises LonghaulError if it cannot be submitted."""
    directory = order.directory
    assert directory is not None
    started = launcher.start(order)
    try:
        end = wait(launcher, started, directory)
    finally:
        if launcher.poll(started.handle).exit_code is None:
            launcher.signal(started.handle, signal.SIGKILL)
            launcher.wait(started.handle, 30)
        started.control.close()
        os.close(started.ended)
        if started.lifeline is not None:
            os.close(started.lifeline)
    answers = read(directory, blank)
    known = launcher.nodes_of(started.handle) if isinstance(launcher, Batch) else ()
    is_told = bool(answers.ranks_error)
    return changed(answers, nodes=answers.nodes or known, end="" if is_told else end)


def wait(launcher: Launcher, started: Started, directory: AttemptDir) -> str:
    """Wait for the job; returns how it ended, empty if well. Its script's exit code counts: the launcher takes a job
    for lost that leaves no worker's result."""
    began, running_since = time.monotonic(), 0.0
    while (life := launcher.poll(started.handle)).exit_code is None:
        now = time.monotonic()
        if not life.waits:
            running_since = running_since or now
            if now - running_since > RUN_S:
                return f"the check did not end within {RUN_S:.0f} s"
        elif now - began > QUEUE_S:
            return f"the job {started.handle.job} did not start within {QUEUE_S:.0f} s: {life.waits}"
        time.sleep(LOOK_EVERY_S)
    if life.exit_code == 0 or lines_of(directory.job_end) == ["0"]:
        return ""
    return f"the check's job ended with {life.exit_code}" + (f" ({life.text})" if life.text else "")


def read(directory: AttemptDir, blank: Answers) -> Answers:
    """Fill in what the job left."""
    said: dict[str, str] = {}
    for log in [directory.log, *sorted(directory.path.glob("slurm-*.log"))]:
        for line in lines_of(log):
            for pattern in OF_A_TASK:
                if found := pattern.search(line):
                    said[found[1]] = found[2].strip()
    reports = reports_in(lines_of(directory.log))
    names = next((expanded(one.nodes) for one in reports.values() if one.nodes), ())
    error = ""
    with suppress(OSError, msgspec.MsgspecError):
        error = msgspec.json.decode(directory.result.read_bytes(), type=Result).error
    return changed(blank, reports=reports, nodes=names, said=said, ranks_error=error)


def lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
