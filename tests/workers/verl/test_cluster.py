"""A Ray cluster of two hosts, as processes of this one: who joins it, what is lost, and that nothing is left."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed (scripts/install-verl.sh)"
    ),
]
HERE = Path(__file__).parent
PATIENCE_S = 240.0
GONE_S = 10.0


@dataclass
class Allocation:
    """What a launcher starts on two hosts. factor: for the job's deadlines."""

    folder: Path
    factor: float = 1.0
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    seen: set[psutil.Process] = field(default_factory=set)
    """Every process below these, whatever has become of its parent."""

    def start(self, number: int) -> None:
        words = ["tests.workers.verl.leads_ray", str(self.folder)] if number == 0 else ["workers.follower"]
        more = {
            "LONGHAUL_HOST": str(number),
            "LONGHAUL_HOSTS": "2",
            "LONGHAUL_MEETING": str(self.folder / "hosts.json"),
            "LONGHAUL_INTERFACE": "lo",
            "LONGHAUL_VERL_PATIENCE": str(self.factor),
            "PYTHONPATH": f"{REPOSITORY}:{HERE / 'in_place_of_verl'}",
        }
        with (self.folder / f"host-{number}.log").open("ab") as output:
            self.processes[number] = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=REPOSITORY, env={**os.environ, **more}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def wait_for(self, pattern: str, name: str) -> re.Match[str]:
        """A match in one of the files."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(OSError):
                if found := re.search(pattern, (self.folder / name).read_text()):
                    return found
            assert self.processes[0].poll() is None, self.text()
            time.sleep(0.1)
        raise TimeoutError(self.text())

    def at_work(self) -> list[int]:
        """Pids of the processes that hold the GPUs, once they are there."""
        pids = self.wait_for(r"holders: ([\d ]+)\n", "verl/verl.log")[1]
        for process in self.processes.values():
            self.seen |= {psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)}
        found = [int(pid) for pid in pids.split()]
        assert set(found) <= {process.pid for process in self.seen}, "they are among those that must go"
        return found

    def driver(self) -> psutil.Process:
        (found,) = [one for one in self.seen if one.is_running() and "workers.verl.driver" in one.cmdline()]
        return found

    def end(self, number: int) -> int:
        """The exit code of a host's process."""
        return self.processes[number].wait(PATIENCE_S)

    def left(self) -> list[psutil.Process]:
        """Who of the seen lives still, once the kernel and Ray have had their time."""
        _, left = psutil.wait_procs([one for one in self.seen if one.is_running()], timeout=GONE_S)
        return [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    def spools(self) -> list[Path]:
        """Folders of Ray that belong to the processes of this allocation."""
        pids = [process.pid for process in self.processes.values()]
        return [path for pid in pids for path in Path(tempfile.gettempdir()).glob(f"longhaul-ray-{pid}-*")]

    def text(self) -> str:
        return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.rglob("*.log")))


@pytest.fixture
def allocate(tmp_path: Path) -> Iterator[Callable[..., Allocation]]:
    made: list[Allocation] = []

    def one(*numbers: int, **how: Any) -> Allocation:
        made.append(Allocation(tmp_path, **how))
        for number in numbers:
            made[-1].start(number)
        return made[-1]

    yield one
    for allocation in made:
        for process in allocation.processes.values():
            process.kill()
            process.wait()
        for stray in allocation.seen:
            with suppress(psutil.Error):
                stray.kill()


def test_a_driver_that_is_killed_ends_the_job_and_every_process_of_it_on_both_hosts(
    allocate: Callable[..., Allocation],
) -> None:
    hosts = allocate(0, 1)
    assert len(hosts.at_work()) == 2
    address = hosts.wait_for(r"--address=(\S+:\d+)|ray_init.address='(\S+:\d+)'", "verl/settings.txt")[2]
    for token in ("f" * 64, ""):
        with_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
        code = f"import ray; ray.init(address={address!r})"
        stranger = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **with_token}, capture_output=True, text=True, timeout=120
        )
        assert stranger.returncode != 0 and "uthentic" in stranger.stderr, "nobody joins without the token"
    hosts.driver().kill()
    assert hosts.end(0) == ExitCode.ENGINE
    assert hosts.end(1) == ExitCode.OK, "the leader has said goodbye"
    assert "the driver ended with -9" in hosts.text()
    assert hosts.left() == [] and hosts.spools() == []


def test_a_leader_that_is_killed_leaves_nothing(allocate: Callable[..., Allocation]) -> None:
    hosts = allocate(0, 1)
    hosts.at_work()
    hosts.processes[0].kill()
    began = time.monotonic()
    assert hosts.end(1) == ExitCode.RANK
    assert hosts.left() == [] and hosts.spools() == []
    assert time.monotonic() - began < GONE_S


def test_a_host_that_is_lost_ends_the_job_at_once_and_is_named(allocate: Callable[..., Allocation]) -> None:
    hosts = allocate(0, 1)
    hosts.at_work()
    hosts.processes[1].kill()
    began = time.monotonic()
    hosts.wait_for("Ray has 2 nodes", "host-0.log")
    assert hosts.end(0) == ExitCode.NODE
    assert "error: host 1 was lost" in hosts.text()
    assert hosts.left() == []
    assert time.monotonic() - began < GONE_S + 20, "of which `ray status` takes some"


@pytest.mark.exhaustive
def test_a_host_that_never_comes_is_named_when_the_deadline_has_passed(allocate: Callable[..., Allocation]) -> None:
    hosts = allocate(0, factor=0.02)
    assert hosts.end(0) == ExitCode.ENGINE
    said = (hosts.folder / "host-0.log").read_text()
    assert "of 2 hosts, these are not in Ray after 60 s: host-1 (it never came)" in said
    assert "Total Usage" in said, "what `ray status` says"
