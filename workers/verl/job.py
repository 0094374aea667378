"""The processes of one job of verl, and what they are told by their environment."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state import python
from workers.external.ends import End, end_of_log
from workers.external.processes import ADDRESS_FILE, Processes, secured
from workers.verl import signals
from workers.verl.cluster import Cluster, host_of, status
from workers.verl.deadlines import Deadlines, gib_of_weights, patience
from workers.verl.ends import end_of
from workers.verl.settings import Work, command_line, settings

log = logging.getLogger("worker")

LOG_LINES = 200
"""Of the job's log, told when something took too long."""


def variables(profile: Profile, control: Path, metrics: Path, step: int, interface: str) -> dict[str, str]:
    """For every process of the job, on every host. step: the last that is done. interface: between the hosts, if there
    are several."""
    found = {
        "VERL_USE_EXTERNAL_MODULES": "workers.verl.plugin",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "PYTHONPATH": python.finding_us(os.environ)["PYTHONPATH"],
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        signals.CONTROL: str(control),
        signals.EVERY: str(profile.run.checkpoint_every),
        signals.BEGAN_AT: str(step),
    }
    if interface:
        found |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    if profile.run.device == "cpu":
        # The FSDP engine is registered under the name "cuda" alone.
        found |= {signals.ON_CPU: "1", "VERL_ENGINE_DEVICE": "cuda", "OMP_NUM_THREADS": "1"}
    return found


class Job(Processes):
    """A context manager: whatever happens inside, none of its processes and files of Ray is left."""

    def __init__(self, profile: Profile, work: Work) -> None:
        super().__init__(work.log, work.spool)
        self._profile, self.work = profile, work
        self._cluster: Cluster | None = None
        self._environment: dict[str, str] = {}
        factor = patience(profile, os.environ)
        self._deadlines = Deadlines(profile, gib_of_weights(work.model), factor)
        if host := host_of(profile, os.environ):
            self._cluster = Cluster(profile, host, work.folder, work.spool, factor)

    def begin(self) -> None:
        """Raises LonghaulError (INPUT) for a network interface that is not there, OSError where the system refuses."""
        self.work.folder.mkdir(parents=True, exist_ok=True)
        if self._cluster is not None:
            self._cluster.start()
        else:
            self._start_driver()

    def _start_driver(self) -> None:
        words = command_line(settings(self._profile, self.work))
        (self.work.folder / "settings.txt").write_text("\n".join(words) + "\n")
        self._environment = secured({**os.environ, **self.work.environment})
        if self._cluster is not None:
            self._environment |= self._cluster.environment
        self.start(python.command("workers.verl.driver", *words), self.work.folder, self._environment)

    def poll(self) -> int | None:
        """The driver's exit code, negative for a signal; None while it lives, or waits for its cluster.

        Raises LonghaulError: NODE for a host that was lost, ENGINE for Ray that ended and for what takes too long.
        """
        if self._cluster is not None:
            self._look_at(self._cluster)
        if not self.is_started:
            return None
        exit_code = super().poll()
        if exit_code is None and (late := self._deadlines.overdue(*signals.told(self.work.control), time.monotonic())):
            raise self._late(late)
        return exit_code

    def _look_at(self, cluster: Cluster) -> None:
        try:
            cluster.look()
        except LonghaulError:
            self._tell_state()
            raise
        if cluster.is_whole and not self.is_started:
            self.work = replace(self.work, address=cluster.address)
            self._start_driver()

    def _late(self, what: str) -> LonghaulError:
        self._tell_state()
        return LonghaulError(
            what,
            kept="the last checkpoint",
            next_command="read worker.log in the attempt's directory, which has Ray's view and the end of verl.log",
            exit_code=ExitCode.ENGINE,
        )

    def _tell_state(self) -> None:
        """Into the attempt's log: what Ray says, and what verl said last."""
        address, environment = self.work.address, self._environment
        if self._cluster is not None:
            address, environment = self._cluster.address, {**os.environ, **self._cluster.environment}
        elif not address:
            with contextlib.suppress(OSError):
                address = (Path(self.work.spool) / ADDRESS_FILE).read_text().strip()
        if address:
            log.error("%s", status(address, environment))
        with contextlib.suppress(OSError):
            lines = end_of_log(self.work.log).splitlines()[-LOG_LINES:]
            log.error("the end of %s:\n%s", self.work.log.name, "\n".join(lines))

    def ended(self, exit_code: int) -> End:
        """What the log says about an end that was not asked for."""
        return end_of(exit_code, end_of_log(self.work.log))

    def end(self) -> None:
        if self._cluster is not None:
            self._cluster.end()
        super().end()
