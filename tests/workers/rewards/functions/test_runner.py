"""Reward functions in a process of their own: what they are given, and that nothing they do harms anybody else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import ExitCode, LonghaulError
from tests.workers.rewards.functions.running import Limits, call, outcomes, running
from workers.rewards.functions.caller import LONGEST_LOG
from workers.rewards.functions.protocol import Call, Given
from workers.rewards.functions.runner import LOG, Failure, FunctionRunner
from workers.user_code.calls import to_blame
from workers.user_code.frames import LOG_BYTES
from workers.user_code.kept import LONGEST_TEXT, MOST_FILES

GOOD = """
import asyncio, functools, threading

def right(problem, completion, facts):
    return {"same": completion == problem.answer, "short": -0.01 * facts["tokens"]}

async def slow(problem, completion):
    await asyncio.sleep(0.01)
    return len(completion)

def in_groups(prompts, completions, level, **columns):
    assert len(prompts) == len(level) == len(columns["answer"]) == len(completions)
    return [float(answer == one) for answer, one in zip(columns["answer"], completions)]

class Longer:
    def __init__(self, than): self.than = than
    def __call__(self, completions, **columns): return [len(one) > self.than for one in completions]

longer = Longer(3)

def given(problem, completion):
    assert problem.level == problem["level"] == problem.get("level")
    assert "level" in problem and "nothing" not in problem
    assert problem["answer"] == "column" and problem.answer == "4"
    return len(problem.tags) + len(problem.messages)

def greedy(prompts, completions, tags, **columns):
    tags[0].append("more")
    prompts[0].append({"role": "user", "content": "?"})
    columns["answer"].clear()
    return [len(one) + len(prompt) for one, prompt in zip(tags, prompts)]

def where(completions, **columns):
    return [threading.current_thread() is threading.main_thread()] * len(completions)

def missing(problem, completion):
    return problem.solution
"""


def test_both_forms_are_called_as_they_are_with_columns_by_name(tmp_path: Path) -> None:
    names = ("right", "slow", "in_groups", "longer", "given", "greedy", "where", "missing")
    columns = {"level": 2, "tags": ["a", "b"], "answer": "column"}
    messages = [{"role": "system", "content": "!"}, {"role": "user", "content": "2+2="}]
    with running(tmp_path, GOOD, *names) as runner:
        assert [one.takes_groups for one in runner.signatures] == [False, False, True, True, False, True, True, False]
        found = outcomes(
            runner,
            [
                call(0, "4"),
                call(1, "four"),
                call(2, "4", "5", columns={"level": 1}),
                call(3, "four", "4"),
                call(4, "4", columns=columns, messages=messages),
                call(6, "4"),
            ],
        )
        assert found == [
            [{"right": pytest.approx(0.97), "right/same": 1.0, "right/short": pytest.approx(-0.03)}],
            [{"slow": 4.0}],
            [{"in_groups": 1.0}, {"in_groups": 0.0}],
            [{"longer": 1.0}, {"longer": 0.0}],
            [{"given": 4.0}],
            # As in TRL: nobody wrote these for threads, and time limits by signal.alarm work only here.
            [{"where": 1.0}],
        ]
        # What a function changes is its own copy: neither its next call sees it, nor another function, nor the trainer.
        before = json.dumps([columns, messages])
        changing = call(5, "4", "5", columns=columns, messages=messages)
        assert outcomes(runner, [changing, changing]) == [[{"greedy": 6.0}, {"greedy": 4.0}]] * 2
        assert outcomes(runner, [call(4, "4", columns=columns, messages=messages)]) == [[{"given": 4.0}]]
        assert json.dumps([columns, messages]) == before
        ((why,),) = outcomes(runner, [call(7, "4", columns={"level": 1})])
        assert why == "it raised AttributeError: this problem has no column 'solution'; it has level"


BAD = r"""
import asyncio, ctypes, os, re, time

def one(problem, completion):
    if completion == "hang":
        time.sleep(1000)
    if completion == "lock":  # re holds the interpreter lock while it backtracks
        re.match(r"(a+)+$", "a" * 60 + "b")
    if completion == "exit":
        exit(3)
    if completion == "slow":
        time.sleep(0.2)
    if completion == "end":
        time.sleep(0.1)
        os._exit(3)
    if completion == "orphan":
        os.kill(os.getppid(), 9)
        time.sleep(1000)
    if completion == "crash":
        ctypes.string_at(0)
    if completion == "memory":
        return len(bytearray(2 << 30))
    if completion == "raise":
        raise KeyError("no such key")
    if completion == "text":
        return "0.5"
    if completion == "print":
        print("p" * (3 << 20))
        os.write(2, b"e" * 1000 + b"\n")
    if completion == "fork":
        if (child := os.fork()) == 0:
            return 9.0
        os.waitpid(child, 0)
    return 1.0

async def coroutine(problem, completion):
    if completion == "block":
        time.sleep(1000)
    await asyncio.sleep(0.05 if completion == "short" else 1000)
    return 1.0

def group(completions, **columns):
    if "hang" in completions:
        time.sleep(1000)
    return [1.0] * (len(completions) - ("few" in completions))
"""
ONES = [[{"one": 1.0}]]


def test_what_one_call_does_fails_that_call_alone_and_names_it(tmp_path: Path) -> None:
    with running(tmp_path, BAD, "one", "coroutine", "group", limits=Limits(threads=8)) as runner:
        # No process ends here.
        calls = [call(0, one) for one in ("fine", "exit", "memory", "raise", "text", "fork", "print")]
        fine, *failed, forked, printed = outcomes(runner, calls)
        assert fine == forked == printed == [{"one": 1.0}]
        assert [why for (why,) in failed] == [
            "it called exit(3)",
            "MemoryError: the reward functions may have 1 GiB (grpo.reward.memory_gib)",
            "it raised KeyError: 'no such key'",
            "it returned '0.5' (str), not a number",
        ]
        assert outcomes(runner, [call(2, "few", "2")]) == [["it returned 1 rewards for 2 completions"] * 2]

        # It ends by itself: all that ran are called again, alone.
        calls = [call(0, one) for one in ("slow", "end", "slow", "crash", "slow", "orphan")]
        by = ": os._exit, a crash in C, or out of memory"
        hows = ("ended with exit code 3", "was killed by SIGSEGV", "was killed by SIGKILL")
        ended = [[f"its process {how}{by}"] for how in hows]
        assert outcomes(runner, calls) == [*ONES, ended[0], *ONES, ended[1], *ONES, ended[2]]
    logs = [tmp_path / "attempt" / name for name in (LOG, f"{LOG}.1")]
    assert 1000 < sum(log.stat().st_size for log in logs if log.exists()) <= 2 * LOG_BYTES + (1 << 16)


def test_of_late_calls_only_those_fail_that_are_late_by_themselves(tmp_path: Path) -> None:
    late = "it took longer than 1.5 s (grpo.reward.timeout_s)"
    limits = Limits(timeout_s=1.5, threads=8)
    with running(tmp_path, BAD, "one", "coroutine", "group", limits=limits) as runner:
        short = [{"coroutine": 1.0}]
        calls = [call(0, "hang"), call(0, "1"), call(2, "hang"), call(1, "short"), call(1, "wait")]
        assert outcomes(runner, calls) == [[late], *ONES, [late], short, [late]]
        # Beside a call that holds the interpreter lock, and beside a coroutine that holds the event loop.
        assert outcomes(runner, [call(0, one) for one in ("1", "lock", "2", "3")]) == [*ONES, [late], *ONES, *ONES]
        assert outcomes(runner, [call(1, "short"), call(1, "block")]) == [short, [late]]


@pytest.mark.parametrize(
    ("late", "pong", "cpu_s", "expected"),
    [
        pytest.param({1, 2}, -1, {1: 0.0, 2: 9.0, 3: 0.1}, {1, 2}, id="who answers is not held: each is late"),
        pytest.param({1}, None, {1: 0.0, 2: 9.0}, {2}, id="who does not answer is held by the busiest, late or not"),
        pytest.param({1, 2}, 2, {1: 0.0, 2: 0.0}, {2}, id="the coroutine that holds the event loop"),
        pytest.param({1, 2}, 3, {1: 0.0, 2: 0.0, 3: 0.0}, {1, 2}, id="a coroutine that just has its turn is not late"),
        pytest.param({1}, None, {}, {1}, id="nothing is known of any thread"),
    ],
)
def test_who_is_to_blame_for_being_late(
    late: set[int], pong: int | None, cpu_s: dict[int, float], expected: set[int]
) -> None:
    assert to_blame(late, pong, cpu_s) == expected


def test_what_a_failed_call_was_given_is_kept_within_bounds(tmp_path: Path) -> None:
    source = "def f(problem, completion):\n    raise ValueError('x' * 10**6)\n"
    with running(tmp_path, source, "f") as runner:
        futures = runner.submit([call(0, "c" * 10**6, columns={"level": 3}) for _ in range(MOST_FILES + 2)])
        failures = [future.result(60).outcomes[0] for future in futures]
    assert all(isinstance(one, Failure) for one in failures)
    kept = [Path(one.path) for one in failures if isinstance(one, Failure) and one.path]
    assert len(kept) == len(set(kept)) == MOST_FILES
    found = json.loads(kept[0].read_text())
    assert (found["function"], found["row"], found["call"]["columns"]) == ("mine.py:f", 7, {"level": 3})
    assert found["why"].startswith("it raised ValueError: xxx") and "mine.py" in found["traceback"]
    assert kept[0].stat().st_size < 3 * LONGEST_TEXT
    first = failures[0]
    assert isinstance(first, Failure)
    error = first.error()
    assert error.what.startswith("the reward mine.py:f failed on row 7 of the data: it raised ValueError: x")
    assert str(kept[0]) in error.what and error.exit_code == ExitCode.REWARD
    assert "rewards test mine.py:f" in error.next_command and "grpo.reward.on_error=skip" in error.next_command


LEAVES = """
import os, subprocess
def f(problem, completion):
    shell = "setsid sleep 1000 & echo $!; (sleep 1000 & echo $!; exec sleep 1000)"
    started = subprocess.Popen(shell, shell=True, stdout=subprocess.PIPE, text=True)
    found = [started.stdout.readline() for _ in range(2)]
    return {"daemon": int(found[0]), "child": int(found[1]), "caller": os.getpid()}
"""


def pids_of(values: dict[str, float]) -> list[psutil.Process]:
    return [psutil.Process(int(values[f"f/{name}"])) for name in ("daemon", "child", "caller")]


def test_whatever_a_function_starts_ends_with_the_runner(tmp_path: Path) -> None:
    with running(tmp_path, LEAVES, "f") as runner:
        ((values,),) = outcomes(runner, [call(0, "4")])
        left = pids_of(values)
        assert all(one.is_running() for one in left)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in left)


def test_whatever_a_function_starts_dies_with_the_trainer(tmp_path: Path) -> None:
    code = f"""
import json, sys, time
from pathlib import Path
from tests.workers.rewards.functions.running import call, outcomes, running
with running(Path({str(tmp_path)!r}), {LEAVES!r}, "f") as runner:
    print(json.dumps(outcomes(runner, [call(0, "4")])), flush=True)
    time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        ((values,),) = json.loads(trainer.stdout.readline())
        left = pids_of(values)
        os.kill(trainer.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(left, timeout=30)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


def test_a_file_that_cannot_be_used_is_refused_at_the_start_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError) as caught, running(tmp_path, "def f(:\n", "f"):
        pass
    assert "the reward mine.py:f cannot be used: a syntax error in " in caught.value.what
    assert caught.value.next_command.startswith("python -m orchestrator rewards test mine.py:f")
    assert caught.value.exit_code == ExitCode.INPUT
    why = "the process ended with exit code 5 while it imported the file"
    with pytest.raises(LonghaulError, match=why), running(tmp_path, "import os\nos._exit(5)\n", "f"):
        pass


def test_a_file_whose_import_never_ends_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import time\ntime.sleep(1000)\n")
    runner = FunctionRunner(["mine.py:f"], Limits(), tmp_path / "attempt", cwd=tmp_path, import_s=0.5)
    with pytest.raises(LonghaulError, match=r"importing its file took longer than 0\.5 s"), runner:
        pass


def test_a_required_column_that_no_row_has_is_refused(tmp_path: Path) -> None:
    source = "def f(completions, level, style='x', **columns): return [0.0 if style is None else 1.0] * len(level)\n"
    with running(tmp_path, source, "f") as runner:
        runner.check_columns(["level"])
        with pytest.raises(LonghaulError) as caught:
            runner.check_columns(["prompt", "tags"])
        # Of a mixture, only some rows may have it.
        assert outcomes(runner, [call(0, "4", "5")]) == [[{"f": 1.0}] * 2]
    what = "the reward mine.py:f requires `level`, and the data has no such column (it has answer, prompt, tags)"
    assert caught.value.what == what
    assert "--set data.columns.level=COLUMN" in caught.value.next_command


def test_a_row_that_cannot_be_handed_over_fails_alone(tmp_path: Path) -> None:
    with running(tmp_path, "def f(completion): return len(completion)\n", "f") as runner:
        bad: Any = Call(0, 7, "?", [Given("\ud800")])
        (why,), fine = outcomes(runner, [bad, call(0, "4")])
    assert why.startswith("it cannot be given this row: UnicodeEncodeError") and fine == [{"f": 1.0}]


def test_a_file_that_changed_is_not_imported_when_the_process_starts_anew(tmp_path: Path) -> None:
    source = "import os\ndef f(completion): return os._exit(1) if completion == 'end' else 1.0\n"
    with running(tmp_path, source, "f") as runner:
        (tmp_path / "mine.py").write_text(source + "# changed\n")
        last, after = runner.submit([call(0, "end")]) + runner.submit([call(0, "4")])
        with pytest.raises(LonghaulError, match="its file changed meanwhile"):
            [last.result(60), after.result(60), runner.submit([call(0, "4")])[0].result(60)]


def test_calls_without_an_answer_end_with_the_runner(tmp_path: Path) -> None:
    with running(tmp_path, "import time\ndef f(completion): time.sleep(1000)\n", "f") as runner:
        (future,) = runner.submit([call(0, "4")])
    assert isinstance(future.exception(0), CancelledError)
    with pytest.raises(RuntimeError, match="the process of the reward functions has ended"):
        runner.submit([call(0, "4")])


BREAKS = """
import os
from workers.rewards.functions.caller import Caller
Caller.listen = lambda *_: {instead}
def f(completion): return 1.0
"""


def test_a_process_that_ends_again_and_again_without_a_call_is_given_up(tmp_path: Path) -> None:
    with running(tmp_path, BREAKS.format(instead="os._exit(4)"), "f") as runner:
        error = runner.submit([call(0, "4")])[0].exception(60)
        assert isinstance(error, LonghaulError)
        assert "ended with exit code 4, 3 times in a row and without a call to blame" in error.what
        with pytest.raises(LonghaulError):
            runner.submit([call(0, "4")])[0].result(60)


def test_calls_that_never_begin_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.user_code.calls.QUIET_S", 0.0)
    with running(tmp_path, BREAKS.format(instead="None"), "f", limits=Limits(timeout_s=0.3)) as runner:
        assert outcomes(runner, [call(0, "4")]) == [["it took longer than 0.3 s (grpo.reward.timeout_s)"]]


def test_log_extra_goes_to_the_log(tmp_path: Path) -> None:
    source = "def f(completions, log_extra): log_extra('found', completions); return [0.0] * len(completions)\n"
    with running(tmp_path, source, "f") as runner:
        outcomes(runner, [call(0, "four", "x" * 10**5)])
    line = (tmp_path / "attempt" / LOG).read_text()
    assert line.startswith("row 7: f: found: ['four', 'xxx") and len(line) == LONGEST_LOG + 1
