"""What a launcher promises of a worker, of workers that are processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from orchestrator.launchers.launcher import Handle, Launcher, Order
from orchestrator.launchers.local import Local
from profiles.schema import Profile

PROFILE = Profile(name="launcher-test")


def started(launcher: Launcher, folder: Path, code: str) -> Handle:
    handle = Handle("local", "launcher-test", folder.name)
    order = Order(handle, (sys.executable, "-c", code), dict(os.environ), folder / "log")
    return launcher.start(order).handle


def test_a_worker_is_running_stopped_and_ended_with_its_exit_code(tmp_path: Path) -> None:
    launcher = Local(PROFILE)
    handle = started(launcher, tmp_path, "import time; time.sleep(600)")
    assert launcher.wait(handle, 0.0).exit_code is None
    launcher.signal(handle, signal.SIGSTOP)
    while not launcher.poll(handle).is_stopped:
        pass
    launcher.signal(handle, signal.SIGKILL)
    assert launcher.wait(handle).exit_code == -signal.SIGKILL
    assert launcher.wait(started(launcher, tmp_path, "raise SystemExit(7)")).exit_code == 7


def test_a_pid_that_is_used_again_is_not_taken_for_the_worker(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        since = psutil.Process(stranger.pid).create_time()
        old = Handle("local", "launcher-test", "t1", stranger.pid, since - 3600)
        assert Local(PROFILE).poll(old).exit_code is not None
        Local(PROFILE).signal(old, signal.SIGKILL)
        stranger.communicate(b"\n", timeout=60)
    assert stranger.returncode == 0
