"""Interprets the end of a job. (pure)

Files on disk outrank the exit code, which outranks the scheduler's state. A scheduler may forget a job, report a job as
failed although its program succeeded, or report it as completed although nothing was done.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from profiles.errors import ExitCode
from workers.contract import Outcome, Result

REVOKED = 168
"""Slurm's exit code if the job's credential was revoked before the job ran, because its node had just come back."""
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
ALIVE = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
"""Slurm's states of a job that has not ended. A job in WAITING will start, perhaps again."""


NEVER = {
    "AccountNotAllowed",
    "AssocMaxCpuPerJobLimit",
    "AssocMaxMemPerJob",
    "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "PartitionTimeLimit",
    "QOSMaxCpuPerJobLimit",
    "QOSMaxMemoryPerJob",
    "QOSMaxNodePerJobLimit",
    "QOSMaxWallDurationPerJobLimit",
    "QOSNotAllowed",
}
"""Slurm's reasons for waiting that time does not remove. Unless a site enforces its limits at submission, Slurm takes
such a job and lets it wait for ever."""
TOO_FEW_NODES = "PartitionNodeLimit"
"""Slurm also gives this reason if enough nodes exist and some are down, so the nodes must be counted."""
OF_A_PEER = frozenset({ExitCode.RANK, ExitCode.NODE, ExitCode.ENGINE})
"""Codes with which a worker ends whose node may be whole: another one may have failed, which the scheduler knows."""


class Cause(StrEnum):
    """Why a job ended, if its exit code does not say. Stored as the attempt's failure."""

    NODE = "node"
    """One of its nodes failed."""
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    LAUNCH = "launch"
    """Its worker never started."""
    IMPOSSIBLE = "impossible"
    """It asks for what the cluster never has, so it would wait for ever."""
    CANCELLED = "cancelled"
    """Someone other than this run cancelled it."""
    HOST_OOM = "host_oom"
    """The scheduler killed it because it exceeded its host memory."""
    UNPLACED = "unplaced"
    """The scheduler gave up looking for a place for it."""
    LOST = "lost"
    """The scheduler no longer knows it, and it left no result."""


@dataclass(frozen=True)
class Left:
    """The files that a job left in its attempt's directory."""

    result: Result | None = None
    is_claimed: bool = True
    """Whether one of its workers claimed the attempt."""


@dataclass(frozen=True)
class Seen:
    """The scheduler's view of a job. state: in Slurm's words, into which `ray` translates; UNPLACED is Ray's alone.
    Empty: the scheduler knows no such job."""

    state: str
    code: int = 0
    signal: int = 0
    reason: str = ""
    nodes: tuple[str, ...] = ()
    """Nodes that it ran on."""
    failed_nodes: tuple[str, ...] = ()
    """The subset of `nodes` that is down, draining or unresponsive."""


@dataclass(frozen=True)
class End:
    exit_code: int
    cause: str = ""
    """A Cause; empty: the exit code is enough."""
    nodes: tuple[str, ...] = ()
    """Nodes to avoid."""
    text: str = ""


def has_ended(seen: Seen) -> bool:
    return seen.state not in WAITING | ALIVE


def waits_for(seen: Seen) -> str:
    """Why a job is not running now, in the scheduler's words; empty: it is running or has ended."""
    if seen.state in WAITING:
        return f"{seen.state.lower()} ({seen.reason})" if seen.reason not in ("", "None") else seen.state.lower()
    return seen.state.lower() if seen.state in ("SUSPENDED", "STOPPED") else ""


def waits_for_ever(seen: Seen, wanted: int, there: int) -> bool:
    """Whether a job would wait for ever. wanted: nodes it asks for; there: nodes of its partition, in any state."""
    return seen.state == "PENDING" and (seen.reason in NEVER or (seen.reason == TOO_FEW_NODES and wanted > there))


def meaning(left: Left, seen: Seen, *, is_killed: bool = False) -> End:
    """Interpret the end of a job. is_killed: this master killed it."""
    result = left.result
    has_saved = result is not None and result.outcome != Outcome.FAILED
    if seen.state == "CANCELLED" and not is_killed:
        code = ExitCode.OK if has_saved else -signal.SIGTERM
        return End(code, Cause.CANCELLED, text="somebody cancelled the job")
    if has_saved:
        return End(ExitCode.OK)
    if is_killed:
        return End(-signal.SIGKILL)
    code = result.exit_code if result is not None else 0
    if seen.failed_nodes and (result is None or code in OF_A_PEER):
        return End(ExitCode.NODE, Cause.NODE, seen.failed_nodes, f"lost {', '.join(seen.failed_nodes)}")
    if result is not None:
        return End(code or ExitCode.INTERNAL)
    return _without_result(left, seen)


def _without_result(left: Left, seen: Seen) -> End:
    match seen.state:
        case "NODE_FAIL" | "BOOT_FAIL":
            nodes = seen.nodes if len(seen.nodes) == 1 else ()
            return End(ExitCode.NODE, Cause.NODE, nodes, seen.reason or "a node failed")
        case "UNPLACED":
            return End(ExitCode.CLUSTER, Cause.UNPLACED, text=seen.reason)
        case "TIMEOUT" | "DEADLINE":
            return End(-signal.SIGKILL, Cause.TIME_LIMIT, text="the time limit of the job")
        case "PREEMPTED":
            return End(-signal.SIGKILL, Cause.PREEMPTED, text="preempted by another job")
        case "OUT_OF_MEMORY":
            return End(-signal.SIGKILL, Cause.HOST_OOM, text="more host memory than the job may take")
        case "":
            return End(-signal.SIGKILL, Cause.LOST, text="the scheduler knows the job no more")
        case "COMPLETED" if not left.is_claimed:
            return End(ExitCode.CLUSTER, Cause.LAUNCH, text="the job ended and its worker never began")
        case "COMPLETED":
            return End(ExitCode.INTERNAL, text="the job ended without a result")
    if seen.code == ExitCode.REQUEUES:
        return End(ExitCode.REQUEUES, text="put back into the queue too often")
    if not left.is_claimed:
        why = "the node revoked the job's credential" if seen.code == REVOKED else seen.reason or f"exit {seen.code}"
        nodes = seen.nodes if len(seen.nodes) == 1 else ()
        return End(ExitCode.CLUSTER, Cause.LAUNCH, nodes, f"the worker never began: {why}")
    if seen.signal:
        return End(-seen.signal, text=seen.reason)
    return End(128 - seen.code if seen.code > 128 else seen.code or ExitCode.INTERNAL, text=seen.reason)
