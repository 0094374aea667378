"""What the end of a shard means, and which shards are asked again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.evaluation.on_cluster import wait_before_repeat
from orchestrator.evaluation.shards import Signs, end_of, fruitless, hopeless, unfinished
from orchestrator.launchers.job_end import Cause, End, Seen
from profiles.errors import ExitCode
from profiles.schema import Retry
from workers.line_contract import Done, Error

BROKEN = Error("the data is torn", int(ExitCode.INPUT))


@pytest.mark.parametrize(
    ("signs", "end"),
    [
        (Signs(Done()), End(ExitCode.OK)),
        (Signs(Done(), seen=Seen("FAILED", 1)), End(ExitCode.OK)),
        (Signs(Done(), seen=Seen("CANCELLED")), End(ExitCode.OK)),
        (Signs(BROKEN), End(ExitCode.INPUT, text="the data is torn")),
        (Signs(BROKEN, seen=Seen("CANCELLED")), End(ExitCode.INPUT, text="the data is torn")),
        (Signs(), None),
        (Signs(seen=Seen("PENDING")), None),
        (Signs(seen=Seen("RUNNING")), None),
        (Signs(exit_code=137), None),  # Slurm will say why
        (Signs(exit_code=137, seen=Seen("COMPLETING")), None),
        (Signs(exit_code=137, is_silent=True), End(-9)),
        (Signs(is_silent=True), None),  # unknown is not dead
        (Signs(exit_code=137, seen=Seen("FAILED", 137)), End(-9)),
        (Signs(seen=Seen("NODE_FAIL", nodes=("n1",))), End(ExitCode.NODE, Cause.NODE, ("n1",), "a node failed")),
        (Signs(seen=Seen("CANCELLED")), End(-15, Cause.CANCELLED, text="somebody cancelled the job")),
        (Signs(seen=Seen("")), End(-9, Cause.LOST, text="the scheduler knows the job no more")),
        (
            Signs(seen=Seen("COMPLETED"), is_claimed=False),
            End(ExitCode.CLUSTER, Cause.LAUNCH, text="the job ended and its worker never began"),
        ),
        (Signs(seen=Seen("FAILED", 84)), End(ExitCode.REQUEUES, text="put back into the queue too often")),
    ],
)  # fmt: skip
def test_files_outrank_the_scheduler(signs: Signs, end: End | None) -> None:
    assert end_of(signs) == end


@pytest.mark.parametrize(
    ("before", "had", "left", "tries"),
    [
        ({}, {0: 3, 1: 3}, [0, 0], {}),  # done
        ({}, {0: 3, 1: 3}, [0, 1], {1: 0}),  # it got on
        ({1: 2}, {1: 3}, [0, 2], {1: 0}),
        ({}, {0: 3, 1: 3}, [3, 3], {0: 1, 1: 1}),
        ({1: 1}, {1: 3}, [0, 3], {1: 2}),
    ],
)
def test_ends_without_another_answer_are_counted_for_each_shard(
    before: dict[int, int], had: dict[int, int], left: list[int], tries: dict[int, int]
) -> None:
    assert fruitless(before, had, left) == tries


CRASH = End(-9)


@pytest.mark.parametrize(
    ("ends", "tries", "found"),
    [
        ({0: End(0), 1: CRASH}, {1: 0}, None),
        ({0: End(0), 1: CRASH}, {1: 2}, None),
        ({0: End(0), 1: CRASH}, {1: 3}, 1),
        ({0: CRASH}, {}, None),  # killed after its last answer
        ({0: End(ExitCode.INPUT)}, {0: 0}, 0),
        ({0: End(ExitCode.CUDA_OOM)}, {0: 0}, 0),
        ({0: End(ExitCode.GPU)}, {0: 1}, None),
        ({0: End(ExitCode.NODE, Cause.NODE)}, {0: 1}, None),
        ({0: End(-9, Cause.TIME_LIMIT)}, {0: 0}, None),
        ({0: End(-9, Cause.HOST_OOM)}, {0: 0}, 0),
        ({0: End(-15, Cause.CANCELLED)}, {0: 0}, 0),
        ({2: End(-15, Cause.CANCELLED), 1: End(-15, Cause.CANCELLED)}, {1: 0, 2: 0}, 1),
        ({0: End(0)}, {0: 3}, 0),  # it says that it is done, and its answers are not there
    ],
)
def test_what_would_come_again_is_not_repeated(ends: dict[int, End], tries: dict[int, int], found: int | None) -> None:
    assert hopeless(ends, tries, at_most=3) == found


@given(st.lists(st.integers(0, 5), max_size=12))
def test_only_shards_with_questions_left_are_asked_again(left: list[int]) -> None:
    todo = unfinished(left)
    assert sum(todo.values()) == sum(left) and 0 not in todo.values()
    assert all(left[number] == count for number, count in todo.items())


@pytest.mark.parametrize(("tries", "wait_s"), [({}, 0), ({1: 0}, 0), ({1: 1}, 2), ({1: 2, 3: 1}, 4), ({1: 9}, 300)])
def test_the_wait_doubles_with_each_end_without_another_answer(tries: dict[int, int], wait_s: float) -> None:
    assert wait_before_repeat(tries, Retry()) == wait_s
