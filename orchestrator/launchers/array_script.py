"""Builds the Slurm script and the `sbatch` options of an array of evaluation shards. (pure)

Each task of the array has its own directory and token. What it answers is durable at once, so it may be killed at any
moment: a task that Slurm starts again asks what is left.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from orchestrator.launchers.job_script import common
from orchestrator.launchers.slurm_script import margin_s, of_slurm, options
from profiles.schema import Profile
from state.evaluation_array import ArrayDir
from state.layout import AttemptDir
from workers.contract import MAILBOX_VARIABLE, TOKEN_VARIABLE

SINGLETON = "--dependency=singleton"
"""Tasks of an array share their name, so this would run one after another. The claims of the shards take its place."""

SCRIPT = """\
#!/bin/bash
# Evaluation shards {token}, written by longhaul. Not `set -e`: the exit code must reach the end of this script.
{site}set -u
export {exported}
cd {root} || exit {input}
directory={array}/shard-$SLURM_ARRAY_TASK_ID
export {restart}=${{SLURM_RESTART_COUNT:-0}}
rm -f "$directory/job.exit"
{requeue}again=
# Slurm says USR1 before the time limit: this task alone goes back into the queue. After TERM it works until the KILL.
task="${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID" # the SLURM_JOB_ID of one task is that of the whole array
trap 'requeue "$task" && again=yes' USR1
trap : TERM
{setup}srun --export=ALL --kill-on-bad-exit=1 --wait=60 --output="$directory/worker.log" --open-mode=append \\
    env {unset} {fixed} {mailbox}="$directory" {token_variable}={token}-$SLURM_ARRAY_TASK_ID {command} &
child=$!
while :; do wait $child; code=$?; kill -0 $child 2>/dev/null || break; done # each signal ends a wait
[ -z "$again" ] || sleep 60
echo "$code" > "$directory/job.exit"
exit "$code"
"""


def array_script(
    profile: Profile, token: str, command: Sequence[str], environment: Mapping[str, str], array: ArrayDir, root: str
) -> str:
    """The text of the script of every task. environment: variables to add to the job's own. root: directory to start
    in."""
    return SCRIPT.format(
        **common(token, environment, profile.launch.setup, root),
        **of_slurm(profile),
        array=shlex.quote(str(array.path)),
        mailbox=MAILBOX_VARIABLE,
        token_variable=TOKEN_VARIABLE,
        command=shlex.join(command),
    )


def array_options(profile: Profile, token: str, array: ArrayDir, at_once: int) -> list[str]:
    """`sbatch` options. Each task gets one node and, if the model runs on GPUs, one of them.

    at_once: tasks that may run side by side; 0: all.
    """
    one_gpu = replace(profile, run=replace(profile.run, gpus=1))
    margin = margin_s(profile.launch.time_limit_minutes)
    of_a_task = options(one_gpu, token, AttemptDir(array.path), profile.launch.exclude, margin)
    numbers = ",".join(str(shard.number) for shard in array.shards())
    limit = f"%{at_once}" if at_once else ""
    return [*(option for option in of_a_task if option != SINGLETON), f"--array={numbers}{limit}"]
