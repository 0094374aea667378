"""What a job's end means: one table, a row each. The rows marked "seen" were produced by a real scheduler."""

from __future__ import annotations

import signal

import pytest

from orchestrator.launchers.job_end import REVOKED, Cause, Left, Seen, has_ended, meaning, waits_for, waits_for_ever
from profiles.errors import ExitCode
from workers.contract import Outcome, Result


def result(outcome: Outcome = Outcome.DONE, exit_code: int = 0) -> Result:
    return Result(token="t", role="train", outcome=outcome, exit_code=exit_code, last_step=1)


NOTHING = Left()
UNCLAIMED = Left(is_claimed=False)
DONE = Left(result())
SAVED = Left(result(Outcome.STOPPED))


def failed(code: int) -> Left:
    return Left(result(Outcome.FAILED, code))


KILL, TERM = -signal.SIGKILL, -signal.SIGTERM


ROWS = [
    pytest.param(DONE, Seen("COMPLETED"), 0, "", id="done"),
    pytest.param(DONE, Seen("FAILED", 1), 0, "", id="done, and the scheduler calls it failed"),
    pytest.param(DONE, Seen(""), 0, "", id="done, and the scheduler has forgotten it"),
    pytest.param(DONE, Seen("NODE_FAIL", failed_nodes=("n2",)), 0, "", id="done, then its node failed"),
    pytest.param(SAVED, Seen("FAILED", 3), 0, "", id="saved on a preemption's TERM: failed, not requeued (seen)"),
    pytest.param(SAVED, Seen("TIMEOUT"), 0, "", id="saved before the time limit"),
    pytest.param(SAVED, Seen("CANCELLED"), 0, Cause.CANCELLED, id="saved, then cancelled by a person"),
    pytest.param(NOTHING, Seen("CANCELLED"), TERM, Cause.CANCELLED, id="cancelled by a person"),
    pytest.param(
        NOTHING, Seen("FAILED", 1, nodes=("n1", "n2"), failed_nodes=("n2",)), ExitCode.NODE, Cause.NODE,
        id="the engine noticed a lost node before Slurm did (seen)",
    ),
    pytest.param(
        failed(ExitCode.RANK), Seen("FAILED", 79, failed_nodes=("n2",)), ExitCode.NODE, Cause.NODE,
        id="a rank was lost with its node",
    ),
    pytest.param(
        failed(ExitCode.NODE), Seen("FAILED", 81, nodes=("n1", "n2"), failed_nodes=("n2",)), ExitCode.NODE,
        Cause.NODE, id="a worker that misses a host does not know its name, and the scheduler does (seen)",
    ),
    pytest.param(
        failed(ExitCode.ENGINE), Seen("FAILED", 83, failed_nodes=("n2",)), ExitCode.NODE, Cause.NODE,
        id="an engine ended with a node",
    ),
    pytest.param(failed(ExitCode.NODE), Seen("FAILED", 81), ExitCode.NODE, "", id="a host was lost, its node not"),
    pytest.param(failed(ExitCode.RANK), Seen("FAILED", 79), ExitCode.RANK, "", id="a rank was lost alone"),
    pytest.param(
        failed(ExitCode.CUDA_OOM), Seen("FAILED", 71, failed_nodes=("n2",)), ExitCode.CUDA_OOM, "",
        id="the worker's own word outranks a node's",
    ),
    pytest.param(NOTHING, Seen("NODE_FAIL", nodes=("n1",)), ExitCode.NODE, Cause.NODE, id="node failure"),
    pytest.param(NOTHING, Seen("BOOT_FAIL"), ExitCode.NODE, Cause.NODE, id="a node did not boot"),
    pytest.param(NOTHING, Seen("TIMEOUT", 0), KILL, Cause.TIME_LIMIT, id="time limit without a save"),
    pytest.param(NOTHING, Seen("DEADLINE"), KILL, Cause.TIME_LIMIT, id="deadline"),
    pytest.param(NOTHING, Seen("PREEMPTED"), KILL, Cause.PREEMPTED, id="preempted without a save"),
    pytest.param(NOTHING, Seen("OUT_OF_MEMORY"), KILL, Cause.HOST_OOM, id="host memory"),
    pytest.param(NOTHING, Seen("FAILED", 143), TERM, "", id="a task got TERM (seen)"),
    pytest.param(NOTHING, Seen("FAILED", 137), KILL, "", id="a task was killed (seen)"),
    pytest.param(NOTHING, Seen("FAILED", 0, 9, "JobLaunchFailure"), KILL, "", id="the shell was killed (seen)"),
    pytest.param(NOTHING, Seen("FAILED", 71), ExitCode.CUDA_OOM, "", id="an exit code of ours without a result"),
    pytest.param(UNCLAIMED, Seen("FAILED", REVOKED), ExitCode.CLUSTER, Cause.LAUNCH, id="revoked (seen)"),
    pytest.param(UNCLAIMED, Seen("FAILED", 127), ExitCode.CLUSTER, Cause.LAUNCH, id="srun is not there"),
    pytest.param(UNCLAIMED, Seen("COMPLETED"), ExitCode.CLUSTER, Cause.LAUNCH, id="ended well, and never began"),
    pytest.param(NOTHING, Seen("COMPLETED"), ExitCode.INTERNAL, "", id="ended well, without a result"),
    pytest.param(NOTHING, Seen("FAILED", 84), ExitCode.REQUEUES, "", id="requeued too often"),
    pytest.param(
        UNCLAIMED, Seen("UNPLACED"), ExitCode.CLUSTER, Cause.UNPLACED, id="Ray looked for a place for 15 minutes",
    ),
    pytest.param(NOTHING, Seen(""), KILL, Cause.LOST, id="unknown after MinJobAge (seen)"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "seen", "code", "cause"), ROWS)
def test_what_the_end_of_a_job_means(left: Left, seen: Seen, code: int, cause: str) -> None:
    end = meaning(left, seen)
    assert (end.exit_code, end.cause) == (code, cause)


def test_a_job_that_this_master_ended_is_killed_not_cancelled() -> None:
    end = meaning(NOTHING, Seen("CANCELLED"), is_killed=True)
    assert (end.exit_code, end.cause) == (KILL, "")


def test_the_nodes_to_leave_out_are_those_that_failed() -> None:
    assert meaning(NOTHING, Seen("FAILED", 1, nodes=("n1", "n2"), failed_nodes=("n2",))).nodes == ("n2",)
    assert meaning(NOTHING, Seen("NODE_FAIL", nodes=("n1", "n2"))).nodes == (), "nobody says which of the two"
    assert meaning(UNCLAIMED, Seen("FAILED", REVOKED, nodes=("n3",))).nodes == ("n3",)


@pytest.mark.parametrize(
    ("state", "waits"),
    [("PENDING", True), ("CONFIGURING", True), ("REQUEUE_HOLD", True), ("SUSPENDED", True), ("RUNNING", False),
     ("COMPLETING", False)],
)  # fmt: skip
def test_a_job_that_lives_waits_or_runs(state: str, waits: bool) -> None:
    assert not has_ended(Seen(state))
    assert bool(waits_for(Seen(state))) is waits


def test_why_a_job_waits_is_said_in_slurms_words() -> None:
    assert waits_for(Seen("PENDING", reason="JobHeldUser")) == "pending (JobHeldUser)"
    assert waits_for(Seen("PENDING", reason="None")) == "pending"


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "A_WORD_OF_2030", ""])
def test_every_other_word_is_an_end(state: str) -> None:
    assert has_ended(Seen(state))


@pytest.mark.parametrize(
    ("seen", "never"),
    [
        pytest.param(Seen("PENDING", reason="PartitionTimeLimit"), True, id="a longer limit than the partition's"),
        pytest.param(Seen("PENDING", reason="BadConstraints"), True, id="a feature that no node has"),
        pytest.param(Seen("PENDING", reason="Priority"), False, id="others come first"),
        pytest.param(Seen("PENDING", reason="JobHeldUser"), False, id="held by a person, who may release it"),
        pytest.param(Seen("PENDING", reason="ReqNodeNotAvail"), False, id="nodes that may come back"),
        pytest.param(Seen("RUNNING", reason="PartitionTimeLimit"), False, id="it runs"),
    ],
)
def test_a_job_that_waits_for_what_never_comes(seen: Seen, never: bool) -> None:
    assert waits_for_ever(seen, wanted=2, there=3) is never


def test_too_few_nodes_are_for_ever_only_if_the_partition_has_no_more() -> None:
    waits = Seen("PENDING", reason="PartitionNodeLimit")
    assert waits_for_ever(waits, wanted=9, there=3)
    assert not waits_for_ever(waits, wanted=3, there=3), "some of them may be down now"
