"""Processes of the sandbox: none is left over, none grows, a dead one is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests import REPOSITORY
from workers.sandbox import Case, Limits, Sandbox, Status

LOOP = "def f(x):\n    while True: pass"
ECHO = "def f(x): return x"


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=0.3, allow_weak=True), jobs=1) as box:
        yield box


def family(pid: int) -> list[psutil.Process]:
    """Every descendant of a process."""
    return psutil.Process(pid).children(recursive=True)


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_closing_leaves_no_process_and_no_descriptor() -> None:
    before, others = descriptors(), set(family(os.getpid()))
    box = Sandbox(Limits(allow_weak=True))
    processes = set(family(os.getpid())) - others
    assert processes
    box.execute(ECHO, "1")
    box.close()
    assert not [process for process in processes if process.is_running()]
    assert descriptors() == before


def test_thousands_of_programs_leave_no_zombie_no_descriptor_and_no_memory(sandbox: Sandbox) -> None:
    batch = [Case(ECHO, ("[1, 2, 3]",))] * 300 + [Case("def f(x): return [x] * 1000", ("'abcdefgh'",))] * 30
    sandbox.execute_many(batch)
    zygotes = [process for process in family(os.getpid()) if not process.children()]
    opened = descriptors()
    memory = [process.memory_info().rss for process in zygotes]
    for _ in range(5):
        sandbox.execute_many(batch)
    assert [process for process in family(os.getpid()) if not process.children()] == zygotes
    assert descriptors() == opened
    for process, before in zip(zygotes, memory, strict=True):
        assert process.memory_info().rss < before + (4 << 20)


@pytest.mark.parametrize("which", ["outer", "inner"])
def test_a_killed_zygote_is_replaced_and_its_job_runs_again(sandbox: Sandbox, which: str) -> None:
    lane = sandbox._lanes[0]
    inner = family(lane.process.pid)
    victim = inner[0] if which == "inner" and inner else psutil.Process(lane.process.pid)
    victim.send_signal(signal.SIGKILL)
    results = sandbox.execute_many([Case(ECHO, (str(n),)) for n in range(20)])
    assert [found[0].value for found in results] == [str(n) for n in range(20)]
    assert sandbox._lanes[0] is not lane


def test_TERM_and_INT_to_every_process_of_a_sandbox_change_no_answer(sandbox: Sandbox) -> None:
    """A shutdown sends them to everybody: a program must not be judged by that."""
    lane = sandbox._lanes[0]
    is_over = threading.Event()

    def shoot() -> None:
        while not is_over.wait(0.005):
            for process in [psutil.Process(lane.process.pid), *family(lane.process.pid)]:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGTERM)
                    process.send_signal(signal.SIGINT)

    shooter = threading.Thread(target=shoot)
    shooter.start()
    try:
        cases = [Case(LOOP, ("1",)), *(Case(ECHO, (str(n),)) for n in range(100))]
        results = [found[0] for found in sandbox.execute_many(cases)]
    finally:
        is_over.set()
        shooter.join()
    assert results[0].status is Status.TIMEOUT
    assert [result.value for result in results[1:]] == [str(n) for n in range(100)]
    assert sandbox._lanes[0] is lane, "no zygote had to be replaced"


def test_a_job_that_always_kills_its_zygote_is_given_up_and_the_others_run(sandbox: Sandbox) -> None:
    deadly = Case(LOOP, ("1",))
    cases = [deadly, Case(ECHO, ("1",)), Case(ECHO, ("2",))]
    give = type(sandbox._lanes[0]).give

    def give_and_kill(self, job, now):  # type: ignore[no-untyped-def]
        give(self, job, now)
        if job.case is deadly:
            self.process.kill()
            self.process.wait()  # pid 1 below it dies with it: before, it would have gone on with the job

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(sandbox._lanes[0]), "give", give_and_kill)
        results = [found[0] for found in sandbox.execute_many(cases)]
    assert [result.value for result in results] == [None, "1", "2"]
    assert results[0].status is Status.KILLED
    assert results[0].message.startswith("the sandbox process died")


def test_a_stream_that_is_left_early_does_not_disturb_the_next_call(sandbox: Sandbox) -> None:
    stream = sandbox.stream([Case(ECHO, (str(n),)) for n in range(50)])
    next(stream)
    stream.close()
    assert sandbox.execute(ECHO, "'next'").value == "'next'"


def test_a_call_within_an_open_stream_is_refused(sandbox: Sandbox) -> None:
    stream = sandbox.stream([Case(ECHO, (str(n),)) for n in range(5)])
    next(stream)
    with pytest.raises(RuntimeError, match="still open"):
        sandbox.execute(ECHO, "1")
    assert len(list(stream)) == 4
    assert sandbox.execute(ECHO, "1").value == "1"


def test_results_are_streamed_as_they_are_completed(sandbox: Sandbox) -> None:
    places = [place for place, _ in sandbox.stream([Case(ECHO, ("x",)), Case(ECHO, ("1",)), Case(ECHO, ())])]
    assert sorted(places) == [0, 1, 2]


def test_no_process_survives_its_parent() -> None:
    script = (
        "import sys, os\n"
        "from workers.sandbox import Case, Limits, Sandbox\n"
        "box = Sandbox(Limits(cpu_s=100, wall_s=100, allow_weak=True))\n"
        "print('ready', flush=True)\n"
        f"box.execute_many([Case({LOOP!r}, ('1',))] * 2)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=REPOSITORY) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        processes = family(parent.pid)
        assert len(processes) >= 4
        parent.kill()
    gone, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive
    assert len(gone) == len(processes)


def test_the_sandbox_is_cheap_to_import_and_needs_no_torch() -> None:
    script = "import sys, workers.sandbox; print(sorted({'torch', 'numpy', 'ctypes'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=REPOSITORY, check=True)
    assert done.stdout == b"[]\n"


def test_zygotes_inherit_neither_environment_nor_descriptors(tmp_path: Path) -> None:
    # A sealed zygote hides its environment from its own user. The program below stands where the interpreter is
    # started, writes down what the kernel gave it, and becomes the interpreter.
    recorder, record = tmp_path / "python", tmp_path / "environment"
    recorder.write_text(f'#!/bin/sh\n/bin/cat "/proc/$$/environ" >> {record}\nexec {sys.executable} "$@"\n')
    recorder.chmod(0o755)
    readable, writable = os.pipe()
    os.set_inheritable(writable, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_TOKEN", "x")
        patch.setattr(sys, "executable", str(recorder))
        box = Sandbox(Limits(allow_weak=True, without=("landlock", "seccomp", "userns")), jobs=1)
    with box:
        assert box.execute(ECHO, "1").value == "1"
        given = [line.partition("=")[0] for line in record.read_text().rstrip("\0").split("\0")]
        assert sorted(given) == sorted(["PYTHONHASHSEED", "LD_BIND_NOW"] * len(box._lanes))
        os.close(writable)
        assert os.read(readable, 1) == b""
    os.close(readable)


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="known: landlock"):
        Limits(require=("landlok",))
    with pytest.raises(ValueError, match="above 0"):
        Limits(cpu_s=0)
    with pytest.raises(ValueError, match="at least 1"):
        Sandbox(jobs=0)
