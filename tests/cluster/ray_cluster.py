"""A real Ray cluster on this host: a head without CPUs and a node. Ended by process ids, never by `ray stop`."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

MARK = "LONGHAUL_TEST_RAY"
"""Variable that all processes of a cluster have, with its folder."""
START_S = 240.0
TRIES = 4
SLOW_HOST = {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "200",
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "200",
    "RAY_agent_register_timeout_ms": "200000",
    "RAY_worker_register_timeout_seconds": "200",
    "RAY_health_check_timeout_ms": "60000",
}
"""A host that does other work beside. Ray gives its daemon 30 seconds and no variable for that: it is tried again."""


def free_port() -> int:
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return int(end.getsockname()[1])


@dataclass
class RayCluster:
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    gcs: int = field(default_factory=free_port)
    dashboard: int = field(default_factory=free_port)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.dashboard}"

    @property
    def env(self) -> dict[str, str]:
        """What a master needs to reach it."""
        return {"RAY_API_SERVER_ADDRESS": self.address, "RAY_AUTH_TOKEN": self.token}

    def start(self, name: str, *more: str, cpus: int) -> None:
        """One node. more: further options of `ray start`."""
        for _ in range(TRIES):
            if not (said := self._try(name, *more, cpus=cpus)):
                return
            self.kill(name)
            shutil.rmtree(self.folder / name)
        raise TimeoutError(said)

    def _try(self, name: str, *more: str, cpus: int) -> str:
        """What was wrong; empty: the node is up."""
        (self.folder / name).mkdir()
        options = [
            "--disable-usage-stats", "--node-ip-address=127.0.0.1", f"--num-cpus={cpus}", "--num-gpus=0",
            "--min-worker-port=0", "--max-worker-port=0", "--object-store-memory=80000000", "--memory=500000000",
            f"--dashboard-agent-listen-port={free_port()}", f"--temp-dir={self.folder / name}",
        ]  # fmt: skip
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        env |= {**SLOW_HOST, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, MARK: str(self.folder)}
        log = self.folder / f"{name}/start.log"
        with log.open("wb") as output:
            ray = Path(sys.executable).parent / "ray"
            done = subprocess.run(
                [sys.executable, str(ray), "start", *options, *more],
                env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, check=False,
                timeout=START_S,
            )  # fmt: skip
        return log.read_text() if done.returncode else ""

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.address + path, data, headers), timeout=60) as answer:
            return json.load(answer)

    def jobs(self) -> dict[str, str]:
        """Status of each job since the cluster began, by submission id."""
        return {job["submission_id"]: job["status"] for job in self.ask("/api/jobs/") if job["submission_id"]}

    def stop(self, job: str) -> None:
        self.ask(f"/api/jobs/{job}/stop", {})

    def wait_for_cpus(self, count: int) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with suppress(OSError, KeyError, ValueError):
                nodes = self.ask("/api/v0/nodes")["data"]["result"]["result"]
                alive = [node["resources_total"].get("CPU", 0) for node in nodes if node["state"] == "ALIVE"]
                if sum(alive) == count:
                    return
            time.sleep(0.3)
        raise TimeoutError("\n".join(log.read_text() for log in self.folder.glob("*/start.log")))

    def processes(self, node: str = "") -> list[psutil.Process]:
        """All of the cluster and of its jobs. node: only the daemons of that one."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            with suppress(psutil.Error):
                if process.environ().get(MARK) != str(self.folder):
                    continue
                if not node or f"{self.folder}/{node}" in " ".join(process.info["cmdline"] or []):
                    found.append(process)
        return found

    def kill(self, node: str = "") -> None:
        for _ in range(3):  # some may have begun while the others were listed
            found = self.processes(node)
            for process in list(found):  # agents rename themselves, and may lose the mark with that
                with suppress(psutil.Error):
                    found += process.children(recursive=True)
            for process in found:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(found, timeout=10)


@contextmanager
def started(cpus: int = 4) -> Iterator[RayCluster]:
    """`head` without CPUs, and `node` with some, each with its folder."""
    cluster = RayCluster(Path(tempfile.mkdtemp(prefix="lh-ray-", dir="/tmp")))  # paths of sockets must be short
    try:
        cluster.start("head", "--head", f"--port={cluster.gcs}", f"--dashboard-port={cluster.dashboard}",
                      f"--ray-client-server-port={free_port()}", "--no-monitor", cpus=0)  # fmt: skip
        cluster.wait_for_cpus(0)
        cluster.start("node", f"--address=127.0.0.1:{cluster.gcs}", cpus=cpus)
        cluster.wait_for_cpus(cpus)
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(cluster.folder, ignore_errors=True)
