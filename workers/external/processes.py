"""The processes of another program that trains, with Ray's: started, watched, and all ended by their ids, whatever they
have become."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile

PR_SET_CHILD_SUBREAPER = 36
END_S = 10.0
"""What the kernel gets for ending processes that were killed."""
ROUND_S = 0.2
"""A process that loses its parent in one round is a child, and waited for, in the next."""
SPOOL = "longhaul-ray-"
ADDRESS_FILE = "ray_current_cluster"
"""In Ray's folder, once its node is up: the address of the head."""
LONGEST_ROOT = 40
"""Characters of a temporary directory: the paths of Ray's sockets below it may have 107 in all."""
UNWANTED = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Slurm sets them beside CUDA's, and verl refuses to have both."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A dead node is seen after 4 s.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
    # Ray's own deadlines are half of these.
    "RAY_raylet_start_wait_time_s": "60",
    "RAY_gcs_server_port_wait_time_s": "60",
}


def with_token(token: str) -> dict[str, str]:
    """Variables of every process that makes up a cluster or talks to it, which nobody can do without the token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, **SETTINGS}


def secured(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the driver. Without a cluster of its own, one is made that asks for a new token."""
    found = {name: value for name, value in environment.items() if name not in UNWANTED}
    found["RAY_USAGE_STATS_ENABLED"] = "0"
    if "RAY_ADDRESS" not in found:
        found |= with_token(secrets.token_hex(32))
    return found


def ray_address(profile: Profile) -> str:
    """Of the Ray cluster that is there already; empty: the job starts one on this host. Raises LonghaulError (INPUT)
    where several hosts are wanted, and there is none."""
    address = os.environ.get("RAY_ADDRESS", "")
    if profile.run.hosts > 1 and not address:
        raise LonghaulError(
            f"run.hosts = {profile.run.hosts} needs a Ray cluster over these hosts, and RAY_ADDRESS names none",
            kept="the head, unchanged; nothing was started",
            next_command="python -m orchestrator run --set launch.launcher=slurm   (docs/cluster.md), or with "
            "RAY_ADDRESS=HOST:PORT, or with --set run.hosts=1",
            exit_code=ExitCode.INPUT,
        )
    return address


class Processes:
    """A context manager: whatever happens inside, none of the processes is left, nor the folder of Ray's files."""

    def __init__(self, log: Path, spool: str = "") -> None:
        """log: what the driver says is appended to it. spool: folder of Ray's files, if it starts a Ray of its own."""
        self.log = log
        self._spool = spool
        self._driver: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        adopt_orphans()
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def start(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        """folder: working directory. environment: all of it. Raises OSError where the system refuses."""
        with self.log.open("ab") as log:
            self._driver = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    @property
    def is_started(self) -> bool:
        return self._driver is not None

    def poll(self) -> int | None:
        """The driver's exit code, negative for a signal; None while it lives, and before it is started."""
        return self._driver.poll() if self._driver is not None else None

    def end(self) -> None:
        """KILL every process below this one: the driver, Ray's daemons, and whom they started."""
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait(END_S)
            self._driver = None
        end_children()
        if self._spool:
            remove_spool(self._spool)


def adopt_orphans() -> None:
    """What loses its parent becomes a child of this process, so that `end_children` finds it."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """KILL every process below this one, and wait until they are gone: also those that start while others end, and
    those that become this one's children."""
    deadline = time.monotonic() + END_S
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=ROUND_S)


def make_spool() -> str:
    """A folder of this host for Ray, with a short path. Those of dead processes are removed."""
    root = Path(tempfile.gettempdir())
    if len(str(root)) > LONGEST_ROOT:
        root = Path("/tmp")
    for path in root.glob(f"{SPOOL}*-*"):
        pid = path.name.removeprefix(SPOOL).partition("-")[0]
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and pid.isdigit() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(path, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{SPOOL}{os.getpid()}-", dir=root)


def remove_spool(folder: str) -> None:
    """Remove Ray's files of this host. A process that is not below this one, such as a driver whose worker was killed,
    may write its last ones meanwhile: the folder is removed until it is gone, END_S long at most."""
    deadline = time.monotonic() + END_S
    while Path(folder).exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)
