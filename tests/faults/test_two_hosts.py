"""Two hosts on one shared directory whose locks do not reach each other: one trains, the other keeps out."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.faults.conftest import Clean
from tests.faults.harness import Master, Scene, faults, scene
from tests.faults.invariants import check_invariants, ending
from tests.faults.test_bad_input import told

PATIENCE_S = 3.0
ON_HOST = """
import fcntl, socket, sys
name = sys.argv[1]
fcntl.flock = lambda fd, how: None
socket.gethostname = lambda: name
from state import lease, lock
lock.is_network = lambda path: True
lock._boot_id = lambda: f"boot-of-{name}"
lease.RENEW_S, lease.STALE_S, lease.PATIENCE_S, lease.LOOK_S = 0.2, 1.5, 3.0, 0.1
from orchestrator.signals import SIGNALS
SIGNALS.install()
from orchestrator.cli import main
raise SystemExit(main(sys.argv[2:]))
"""
"""A program on a host of that name, with a network file system on which flock sees its own host alone."""


def on_host(run: Scene, name: str, crash: str = "", **knobs: object) -> Master:
    return run.launch([sys.executable, "-c", ON_HOST, name, *run.command("--plain", **knobs)[3:]], crash)


def test_a_second_host_is_refused_while_the_first_trains(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=2.0) as run:  # the second starts while it trains, on a busy machine too
        first = on_host(run, "one")
        first.wait_for_line("checkpoint of step 2 is durable")
        second = on_host(run, "two")
        assert second.end() == 69, second.text()
        told(second, f"run 'fake' is held by pid {first.pid} on one", "status")
        assert first.end() == 0, first.text()
        check_invariants(run, clean.ending)


def test_two_hosts_that_start_at_once_make_one_run(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=1.0) as run:
        masters = [on_host(run, name) for name in ("one", "two", "three")]
        codes = sorted(master.end() for master in masters)
        assert codes == [0, 69, 69], [master.text() for master in masters]
        check_invariants(run, clean.ending)


def test_a_host_that_died_is_followed_once_its_lease_stood_still(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.1) as run:
        first = on_host(run, "one")
        first.wait_for_line("checkpoint of step 2 is durable")
        first.kill()
        faults.append("host lost: kill -9 of its master")
        began = time.monotonic()
        second = on_host(run, "two")
        second.wait_for_line("resumes from step")
        assert time.monotonic() - began >= PATIENCE_S
        assert second.end() == 0, second.text()
        check_invariants(run, clean.ending)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.13, 0.37])
def test_a_host_that_stood_still_and_wakes_up_writes_nothing_more(delay: float, clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.1) as run:
        first = on_host(run, "one")
        first.wait_for_line("checkpoint of step 2 is durable")
        time.sleep(delay)
        first.signal(signal.SIGSTOP)
        faults.append(f"host stopped, another takes over, the first wakes up ({delay} s)")
        second = on_host(run, "two")
        second.wait_for_line("resumes from step")
        first.signal(signal.SIGCONT)
        assert first.end() == 69, first.text()
        told(first, "is no longer held by this process: another host took it over", "status")
        assert second.end() == 0, second.text()
        check_invariants(run, clean.ending)


def test_a_host_whose_file_the_other_swept_says_who_did_it(clean: Clean, tmp_path: Path) -> None:
    """It stood still in the middle of writing down a worker."""
    with scene(tmp_path / "run", fake__step_s=0.1) as run:
        first = on_host(run, "one", "durable.before_rename:11:stop")
        first.wait_until_stopped()
        [swept] = run.run.workers.glob(".*.tmp")
        second = on_host(run, "two")
        second.wait_for(lambda: not swept.exists())
        first.signal(signal.SIGCONT)
        assert first.end() == 69, first.text()
        told(first, "is no longer held by this process: another host took it over", "status")
        assert second.end() == 0, second.text()
        check_invariants(run, clean.ending)


def test_a_host_that_wakes_up_after_the_end_changes_nothing(clean: Clean, tmp_path: Path) -> None:
    with scene(tmp_path / "run", fake__step_s=0.1) as run:
        first = on_host(run, "one")
        first.wait_for_line("checkpoint of step 2 is durable")
        first.signal(signal.SIGSTOP)
        second = on_host(run, "two")
        assert second.end() == 0, second.text()
        store = run.run.store.read_bytes()
        first.signal(signal.SIGCONT)
        assert first.end() == 69, first.text()
        assert run.run.store.read_bytes() == store
        assert ending(run) == clean.ending
        check_invariants(run, clean.ending)
