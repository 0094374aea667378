"""Builds an attempt's Slurm job script and its `sbatch` options. (pure)"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from orchestrator.launchers.job_script import common
from profiles.errors import ExitCode
from profiles.schema import Profile
from state.layout import AttemptDir
from workers.contract import (
    HOST_VARIABLE,
    HOSTS_VARIABLE,
    INTERFACE_VARIABLE,
    MEETING_VARIABLE,
    NODE_VARIABLE,
    RESTART_VARIABLE,
)

MARGIN_S = 120
"""Seconds before the time limit at which Slurm signals the job to save, at least."""
WARNED_S = 60
"""Slurm may send its signal so much earlier or later than asked for."""
MASTER_S = 10
"""Seconds within which a living master increments its counter in the file `master`."""
FOLLOWER = "workers.follower"
UNSET = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Slurm sets these along with CUDA_VISIBLE_DEVICES, and some engines then refuse to start."""

SCRIPT = """\
#!/bin/bash
# Attempt {token}, written by longhaul. Not `set -e`: the exit code must reach the end of this script.
{site}set -u
export {exported}
cd {root} || exit {input}
directory={directory}
export {restart}=${{SLURM_RESTART_COUNT:-0}}
rm -f "$directory/job.exit" "$directory/stop" # of an earlier start, which may have been killed as it saved
{requeue}asked_at='' master=''
# Slurm says USR1 before the time limit and TERM where another job preempts this one: save after the step, then end.
save_and_end() {{
    [ -z "$asked_at" ] || return
    asked_at=$SECONDS master=$(cat "$directory/master" 2>/dev/null)
    touch "$directory/stop"
}}
trap save_and_end USR1 TERM
{setup}srun --export=ALL --kill-on-bad-exit=1 --wait=60 --output={log} --open-mode=append \\
    env {unset} {fixed} {command} &
child=$!
while :; do wait $child; code=$?; kill -0 $child 2>/dev/null || break; done # each signal ends a wait
# The limit ended it, and no master counts: this job goes on by itself where it stopped.
if [ -n "$asked_at" ] && [ "$code" = 0 ]; then
    while [ $((SECONDS - asked_at)) -lt {master_s} ] && [ "$(cat "$directory/master" 2>/dev/null)" = "$master" ]; do
        sleep 0.5
    done
    if [ "$(cat "$directory/master" 2>/dev/null)" = "$master" ]; then
        requeue "$SLURM_JOB_ID" && sleep 60
        [ $? != {too_often} ] || code={too_often}
    fi
fi
echo "$code" > "$directory/job.exit"
exit "$code"
"""


REQUEUE = """\
# Put job $1 back into the queue, unless this was done {requeues} times. A start that does it leaves one file, however
# many copies it has. Slurm's own restarts, as after a preemption, do not count.
requeue() {{
    local mine="$directory/requeued.${restart}"
    [ "$(find "$directory" -maxdepth 1 -name 'requeued.*' | wc -l)" -lt {requeues} ] || return {too_often}
    : > "$mine" && sync "$mine" "$directory" && scontrol requeue "$1"
}}
"""

ON_HOSTS = """\
export {host}="$SLURM_PROCID" {node}="$SLURMD_NODENAME"
if [ "$SLURM_PROCID" = 0 ]; then exec {worker}; fi
exec {follower} >> {directory}/host-"$SLURM_PROCID".log 2>&1"""
"""Command for each of several hosts: the worker on the first, the process that starts the ranks on every other."""
ON_EACH = """\
export {host}="${{SLURM_PROCID:-0}}"
exec {worker}"""
"""The same command on every host. Its output goes through srun, so it arrives from a node without the directory too."""


def script(
    profile: Profile,
    token: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: AttemptDir,
    root: str,
    hosts: int = 1,
    *,
    is_on_each_host: bool = False,
) -> str:
    """The text of the job script. environment: variables to add to the job's own. root: directory to start in.
    hosts: number of hosts for this attempt. is_on_each_host: see `Order`."""
    started = shlex.join(command)
    if hosts > 1 or is_on_each_host:
        environment = {**environment, HOSTS_VARIABLE: str(hosts), INTERFACE_VARIABLE: profile.launch.interface}
        on_each = (ON_EACH if is_on_each_host else ON_HOSTS).format(
            host=HOST_VARIABLE,
            node=NODE_VARIABLE,
            worker=started,
            follower=shlex.join([*command[:-1], FOLLOWER]),
            directory=shlex.quote(str(directory.path)),
        )
        # Use a new name at each start: an existing meeting file belongs to an earlier start.
        meeting = f'{MEETING_VARIABLE}="$directory/hosts-${RESTART_VARIABLE}.json"'
        started = f"{meeting} bash -c {shlex.quote(on_each)}"
    return SCRIPT.format(
        **common(token, environment, profile.launch.setup, root),
        **of_slurm(profile),
        directory=shlex.quote(str(directory.path)),
        log=shlex.quote(str(directory.log)),
        command=started,
        master_s=MASTER_S,
    )


def of_slurm(profile: Profile) -> dict[str, str | int]:
    """Values of the template of any script for Slurm: how it counts its starts, how it starts again, what it unsets."""
    too_often = int(ExitCode.REQUEUES)
    return {
        "restart": RESTART_VARIABLE,
        "requeue": REQUEUE.format(requeues=profile.launch.requeues, restart=RESTART_VARIABLE, too_often=too_often),
        "too_often": too_often,
        "unset": " ".join(f"-u {name}" for name in UNSET),
    }


def options(
    profile: Profile, token: str, directory: AttemptDir, exclude: Sequence[str], margin_s: int, hosts: int = 1
) -> list[str]:
    """`sbatch` options: the job's resources, and the name to find it by. margin_s: when to signal the job to save,
    in seconds before the time limit."""
    launch, run = profile.launch, profile.run
    found = [
        "--parsable",
        f"--job-name={token}",
        f"--comment={token}",
        "--dependency=singleton",
        "--requeue",
        "--open-mode=append",
        f"--output={directory.path / 'slurm-%j.log'}",
        f"--nodes={hosts}",
        "--ntasks-per-node=1",
        "--export=NIL",
        f"--signal=B:USR1@{margin_s}",
    ]
    if run.device != "cpu":
        found.append(f"--gpus-per-node={run.cards}")
    if launch.time_limit_minutes:
        found.append(f"--time={launch.time_limit_minutes}")
    found.append(f"--cpus-per-task={launch.cpus_per_node}" if launch.cpus_per_node else "--exclusive")
    if launch.memory_gb:
        found.append(f"--mem={launch.memory_gb}G")
    named = {
        "partition": launch.partition,
        "account": launch.account,
        "qos": launch.qos,
        "constraint": launch.constraint,
        "exclude": ",".join(exclude),
    }
    found += [f"--{name}={value}" for name, value in named.items() if value]
    return [*found, *launch.options]


def margin_s(time_limit_minutes: int, ending_s: float = 0.0) -> int:
    """Seconds before the time limit at which Slurm signals the job to save.

    ending_s: what a step and its checkpoint take; 0: not known. Usually MARGIN_S, or a fifth of a short limit; as long
    as slow steps need, up to half of the limit.
    """
    needed = math.ceil(ending_s) + WARNED_S
    if not time_limit_minutes:
        return max(MARGIN_S, needed)
    usual = min(MARGIN_S, time_limit_minutes * 60 // 5)
    return usual if needed <= MARGIN_S else max(usual, min(needed, time_limit_minutes * 60 // 2))
