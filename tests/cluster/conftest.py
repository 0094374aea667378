"""A real Slurm cluster for each process that runs tests: daemons on this host, in a folder that goes with them."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.harness import Scene, is_alive

HERE = Path(__file__).parent
NOT_INSTALLED = 69


@dataclass
class Cluster:
    """Nodes n1, n2, n3 with four pretended GPUs each."""

    folder: Path
    env: dict[str, str]

    def ask(self, *command: str) -> str:
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=True).stdout

    def node(self, what: str, name: str) -> None:
        """what: `up`, `kill` (the daemon alone), or `crash` (with all tasks)."""
        subprocess.run(["bash", HERE / "node.sh", self.folder, what, name], check=True, timeout=60)

    def nodes_of(self, job: str) -> str:
        return self.ask("squeue", "-h", "-j", job, "-o", "%N").strip()

    def jobs(self) -> list[str]:
        """Names of the jobs in the queue."""
        return self.ask("squeue", "-h", "-o", "%j").split()

    def submitted(self) -> list[str]:
        """Names of all jobs that have ended, one for each, in the order of their ends."""
        log = self.folder / "log/jobcomp.log"
        return re.findall(r" Name=(\S+)", log.read_text()) if log.exists() else []

    def restart_controller(self) -> None:
        pid = int((self.folder / "slurmctld.pid").read_text())
        os.kill(pid, 9)
        while is_alive(pid):
            time.sleep(0.01)
        subprocess.run(["slurmctld", "-f", self.folder / "slurm.conf"], env=self.env, check=True, timeout=60)


@contextmanager
def started(folder: Path, *, extra: str = "", **knobs: str) -> Iterator[Cluster]:
    """extra: lines for slurm.conf. knobs: of start.sh, without LONGHAUL_SLURM_."""
    settings = {f"LONGHAUL_SLURM_{name}": value for name, value in knobs.items()}
    env = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin", "LONGHAUL_SLURM_EXTRA": extra, **settings}
    done = subprocess.run(
        ["bash", HERE / "start.sh", folder, "3"], env=env, capture_output=True, text=True, timeout=120
    )
    if done.returncode == NOT_INSTALLED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    try:
        yield Cluster(folder, {**env, "SLURM_CONF": str(folder / "slurm.conf")})
    finally:
        subprocess.run(["bash", HERE / "stop.sh", folder], env=env, check=True, timeout=120)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("slurm") / "cluster") as found:
        yield found


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> Iterator[None]:
    """Each test finds all nodes up and no job."""
    yield
    cluster.ask("scancel", "--me")
    for name in ("n1", "n2", "n3"):
        if not (pid := cluster.folder / f"slurmd-{name}.pid").exists() or not is_alive(int(pid.read_text())):
            cluster.node("up", name)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and cluster.ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").count("n") < 3:
        time.sleep(0.2)


KNOBS = {"launch__launcher": "slurm", "launch__cpus_per_node": 1, "launch__poll_s": 1}


def on_slurm(folder: Path, **knobs: object) -> Scene:
    return Scene(folder, {name.replace("__", "."): value for name, value in {**KNOBS, **knobs}.items()})


def with_profile(run: Scene, profile: str) -> list[str]:
    """The command of `run` with another profile than the fake one, and the same knobs."""
    command = run.command("--plain")
    command[command.index("fake")] = profile
    at = next(i for i, part in enumerate(command) if part.startswith("fake.step_s="))
    return command[: at - 1] + command[at + 1 :]
