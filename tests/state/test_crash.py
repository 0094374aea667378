import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from state.crash import Armed, bind
from tests import REPOSITORY
from tests.state.samples import python

CALLS = """
from state.crash import crash_point
for n in range(3):
    print(n, flush=True)
    crash_point("commit.before")
"""


def test_without_an_order_a_crash_point_does_nothing() -> None:
    assert bind({}).__name__ == "_nothing"
    assert python(CALLS).stdout == "0\n1\n2\n"


@pytest.mark.parametrize(
    ("order", "code", "printed"),
    [
        ("commit.before:1", -signal.SIGKILL, "0\n"),
        ("commit.before:2:kill", -signal.SIGKILL, "0\n1\n"),
        ("commit.before:3:exit", 70, "0\n1\n2\n"),
        ("commit.before:1:exit:9", 9, "0\n"),
        ("commit.before:2:sleep:0", 0, "0\n1\n2\n"),
        ("commit.before:4:kill", 0, "0\n1\n2\n"),
        ("commit.after:1:kill", 0, "0\n1\n2\n"),
    ],
)
def test_the_nth_hit_of_that_name_acts(order: str, code: int, printed: str) -> None:
    child = python(CALLS, LONGHAUL_CRASHPOINT=order)
    assert (child.returncode, child.stdout) == (code, printed)


STOPS_IN_A_THREAD = """
import os, threading
from state.crash import crash_point
def work():
    crash_point("commit.before")
    os.write(1, b"went on")
threads = [threading.Thread(target=work, daemon=True)]
threads[0].start()
while True:  # the main thread is not waiting, so a signal to the process would have to wait for its turn
    pass
"""


def test_a_thread_that_stops_its_process_does_nothing_more_before_it_goes_on() -> None:
    for _ in range(5):
        environment = {**os.environ, "LONGHAUL_CRASHPOINT": "commit.before:1:stop"}
        command = [sys.executable, "-c", STOPS_IN_A_THREAD]
        with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE) as child:
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            assert child.stdout is not None
            os.set_blocking(child.stdout.fileno(), False)
            assert child.stdout.read() is None
            child.kill()


def test_only_the_first_process_dies_where_once_was_asked(tmp_path: Path) -> None:
    order = {"LONGHAUL_CRASHPOINT": "commit.before:1", "LONGHAUL_CRASHPOINT_ONCE": str(tmp_path / "mark")}
    assert [python(CALLS, **order).returncode for _ in range(3)] == [-signal.SIGKILL, 0, 0]


def test_hits_are_logged_for_the_run_that_counts_them(tmp_path: Path) -> None:
    log = tmp_path / "hits"
    for _ in range(2):
        assert python(CALLS, LONGHAUL_CRASHPOINT_LOG=str(log)).returncode == 0
    assert log.read_text().splitlines() == ["commit.before"] * 6


@pytest.mark.parametrize(
    "order", ["nowhere:1", "commit.before", "commit.before:0", "commit.before:x", "commit.before:1:melt", ":1"]
)
def test_an_order_that_cannot_be_met_is_refused_at_import(order: str) -> None:
    with pytest.raises(ValueError, match="LONGHAUL_CRASHPOINT"):
        bind({"LONGHAUL_CRASHPOINT": order})


def test_an_unknown_name_is_a_bug_that_shows() -> None:
    with pytest.raises(ValueError, match="not in state"):
        Armed("commit.before:1").hit("commit.befor")
