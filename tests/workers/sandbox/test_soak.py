"""Very many programs through one sandbox: every answer right, nothing held, nothing left."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from workers.sandbox import Case, Limits, Sandbox, Status
from workers.sandbox.lane import Lane

BATCHES, INPUTS, SINGLES = 600, 16, 400
MIB = 1 << 20


def family(lanes: list[Lane]) -> list[psutil.Process]:
    """The zygotes and their descendants. Other children of this process belong to other tests."""
    zygotes = [psutil.Process(lane.process.pid) for lane in lanes]
    return [*zygotes, *(one for zygote in zygotes for one in zygote.children(recursive=True))]


def cases(round_number: int) -> Iterator[tuple[Case, list[str | None]]]:
    """Programs with the answers that they must give; None: none."""
    for n in range(BATCHES):
        factor = round_number * BATCHES + n
        inputs = tuple(f"{x}, 'a'" for x in range(INPUTS))
        answers: list[str | None] = [f"[{x * factor}, {'a' * (x % 3)!r}]" for x in range(INPUTS)]
        yield Case(f"def f(x, s):\n    return [x * {factor}, s * (x % 3)]", inputs), answers
    for n in range(SINGLES - 4):
        yield Case(f"def f(x):\n    return {{x: {n}, {n}: x}}", ("'k'",)), [f"{{'k': {n}, {n}: 'k'}}"]
    yield Case("def f(x):\n    while True: pass", ("1",)), [None]
    yield Case("def f(x): return [0] * (1 << 40)", ("1",)), [None]
    yield Case("def f(x): return 1 / x", ("0",)), [None]
    yield Case("def f(x): return 'x' * (1 << 20)", ("1",)), [None]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [30_000, pytest.param(200_000, marks=pytest.mark.exhaustive)])
def test_many_programs_leave_nothing_behind(count: int) -> None:
    before = psutil.Process().children()
    rounds = count // (BATCHES * INPUTS + SINGLES)
    with Sandbox(Limits(cpu_s=0.2, allow_weak=True)) as sandbox:
        lanes, held, opened = list(sandbox._lanes), [], []
        for round_number in range(rounds):
            asked = list(cases(round_number))
            results = sandbox.execute_many([case for case, _ in asked])
            for (case, answers), found in zip(asked, results, strict=True):
                assert [result.value for result in found] == answers, (case.program, found[0], found[-1])
            assert sum(found[0].status is Status.TIMEOUT for found in results) == 1
            assert not [one for one in family(lanes) if one.status() == psutil.STATUS_ZOMBIE]
            held.append(sum(one.memory_info().rss for one in family(lanes)))
            opened.append(psutil.Process().num_fds())
        assert list(sandbox._lanes) == lanes
        processes = family(lanes)
    assert len(set(opened)) == 1
    assert held[-1] < held[1] + 8 * MIB
    assert not [one for one in processes if one.is_running()]
    assert set(psutil.Process().children()) <= set(before)
