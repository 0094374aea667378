"""Entry point of the check of one node, `python -m workers.node_check DIRECTORY TOKEN`, on each node of a job.

Reports lines of `workers.node_contract`, one report for each stage, so that a node that hangs has told where.
"""

from __future__ import annotations

# ruff: noqa: E402 - ignore signals before any slow import: their default action ends the process
from workers import process

process.ignore_signals()

import logging
import os
import socket
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from profiles.worker_kinds import worker_kind_of
from state.layout import AttemptDir
from workers.contract import (
    CONTROL_FD_VARIABLE,
    HOST_VARIABLE,
    HOSTS_VARIABLE,
    LIFELINE_FD_VARIABLE,
    RESTART_VARIABLE,
    WorkerSpec,
)
from workers.control import Control
from workers.environment import set_environment
from workers.follower import attend
from workers.node_check import node, shared_files
from workers.node_contract import SHARED, NodeFacts, RankFacts, lines_of
from workers.rank_group.meeting import this_host
from workers.runtime import SpecError, carry_out, read_spec


def main() -> int:
    process.set_up(logging.INFO, lifeline_variable=LIFELINE_FD_VARIABLE)
    os.environ.pop(CONTROL_FD_VARIABLE, None)  # nobody has questions
    directory, token = AttemptDir(Path(sys.argv[1])), sys.argv[2]
    if int(os.environ.get(RESTART_VARIABLE) or 0):
        return ExitCode.OK  # a node was lost, and the nodes of the first start have told what they saw
    hosts = int(os.environ.get(HOSTS_VARIABLE) or 1)
    facts = NodeFacts(
        host=int(os.environ.get(HOST_VARIABLE) or 0),
        node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        nodes=os.environ.get("SLURM_JOB_NODELIST", ""),
    )
    numbers = count(1)

    def report(stage: str) -> None:
        facts.stage = stage
        sys.stdout.write("".join(f"{line}\n" for line in lines_of(facts, next(numbers))))
        sys.stdout.flush()

    node.examine(facts, directory.path, token)
    report("started")
    if facts.directory_error or facts.write_error:
        return ExitCode.OK
    try:
        spec = read_spec(directory.spec, token)
    except SpecError as error:
        facts.directory_error = str(error)
        report("started")
        return ExitCode.OK
    if hosts > 1:
        shared_files.examine(directory.path / SHARED, facts, hosts)
    report("files")
    node.examine_for(spec.profile, facts, os.environ)
    report("node")
    if is_reduced(spec, facts, hosts):

        def tell(ranks: list[RankFacts]) -> None:
            facts.ranks = ranks
            report("ranks")

        set_environment()
        reduce(spec, facts.host, tell)
    report("done")
    return ExitCode.OK


def is_reduced(spec: WorkerSpec, facts: NodeFacts, hosts: int) -> bool:
    """Whether the ranks can be tried: there are several, and every host is there."""
    is_whole = hosts == 1 or len(facts.present) == hosts == spec.profile.run.hosts
    return is_whole and spec.profile.run.ranks > 1 and worker_kind_of(spec.profile).uses_model


def reduce(spec: WorkerSpec, host: int, tell: Callable[[list[RankFacts]], None]) -> None:
    """Host 0 leads, as the worker of an attempt; every other host starts its ranks. Errors are in result.json."""
    if host:
        try:
            attend(this_host(os.environ))
        except LonghaulError as error:
            logging.getLogger("worker").error("%s", error.render())
        return
    from workers.node_check.reduction import reduction

    carry_out(spec, Control(None, spec.token), reduction(tell))


if __name__ == "__main__":
    process.leave(main())
