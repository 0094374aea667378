"""A Ray cluster of one attempt, over the hosts that a launcher started: host 0's worker leads it, followers join it.

Followers learn its address and token over the connection that both sides have proved (`rank_group/meeting.py`). It ends
with that connection: processes are ended by their ids, on every host, and `ray stop` is never called.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state import python
from workers.contract import HOSTS_VARIABLE
from workers.external.processes import (
    ADDRESS_FILE,
    UNWANTED,
    adopt_orphans,
    end_children,
    make_spool,
    remove_spool,
    with_token,
)
from workers.rank_group.meeting import (
    Hello,
    Host,
    Place,
    Purpose,
    Stranger,
    address_of,
    admit,
    listen,
    publish,
    this_host,
)
from workers.rank_group.spawn import tail_of
from workers.rank_group.wire import Farewell, Gone, RayEnded, RayNode, receive, send
from workers.verl.deadlines import CLUSTER_S
from workers.verl.settings import CPU_PLACES, CPU_STORE_BYTES

log = logging.getLogger("worker")

STATUS_S = 20.0
"""Longest time for `ray status`."""


def host_of(profile: Profile, environment: Mapping[str, str]) -> Host | None:
    """This host among those of the attempt; None where the launcher started one alone. Raises LonghaulError (INPUT)."""
    if environment.get(HOSTS_VARIABLE, "1") == "1":
        return None
    host = this_host(environment)
    if (host.number, host.hosts) != (0, profile.run.hosts):
        raise LonghaulError(
            f"run.hosts = {profile.run.hosts}, and the launcher started this worker as host {host.number} of "
            f"{host.hosts}",
            kept="the head",
            next_command=f"python -m orchestrator run --set run.hosts={host.hosts}",
            exit_code=ExitCode.INPUT,
        )
    return host


def status(address: str, environment: Mapping[str, str]) -> str:
    """What `ray status` says."""
    command = python.command("ray.scripts.scripts", "status", f"--address={address}")
    try:
        done = subprocess.run(
            command, env=python.finding_us(environment), capture_output=True, text=True, timeout=STATUS_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"ray status: {error}"
    return (done.stdout + done.stderr).strip()


class Cluster:
    """The leader's side. `look` drives it, and never waits."""

    def __init__(self, profile: Profile, host: Host, folder: Path, spool: str, factor: float) -> None:
        """folder: of the attempt's files of verl. spool: Ray's on this host. factor: for the deadline."""
        self._run, self._host, self._folder, self._spool = profile.run, host, folder, spool
        self._deadline_s = CLUSTER_S * factor
        self._token = secrets.token_hex(32)
        self._head: subprocess.Popen[bytes]
        self._watch: subprocess.Popen[bytes]
        self._began = 0.0
        self._listener: socket.socket | None = None
        self._place: Place
        self._here: dict[int, socket.socket] = {}
        self._refused = 0
        self._alive: dict[str, float] = {}
        """Node -> its GPUs, as Ray said last."""
        self._unread = b""
        self.address = ""
        """Of the head, once it answers."""
        self.is_whole = False
        """Whether every host has been in it with all its GPUs."""

    @property
    def environment(self) -> dict[str, str]:
        return with_token(self._token)

    def start(self) -> None:
        """Raises LonghaulError (INPUT) for an interface that is not there, OSError where the system refuses."""
        self._began = time.monotonic()
        words = ("--head", "--port=0", "--include-dashboard=false")
        self._head = start_node(self._node(""), self._host, self._spool, self._log_of(0), words)

    def _node(self, address: str) -> RayNode:
        is_on_cpu = self._run.device == "cpu"
        return RayNode(
            address=address,
            token=self._token,
            gpus=self._run.gpus,
            cpus=CPU_PLACES if is_on_cpu else 0,
            store_bytes=CPU_STORE_BYTES if is_on_cpu else 0,
            log_folder=str(self._folder),
        )

    def _log_of(self, number: int) -> Path:
        return ray_log(self._folder, number)

    def look(self) -> None:
        """Take in what has happened. Raises LonghaulError: NODE for a host that was lost, ENGINE for a head that ended
        and for hosts that did not come in time."""
        if (code := self._head.poll()) is not None:
            raise self._failed(f"the head of Ray ended with {code}", ExitCode.ENGINE, 0)
        if not self.address:
            self._open()
        else:
            self._admit_one()
            self._hear()
            self._take_nodes()
        if self.is_whole:
            if lost := sorted(set(self._names()) - set(self._alive)):
                raise self._failed(f"Ray has lost {', '.join(lost)}", ExitCode.NODE, int(lost[0].split("-")[1]))
        elif len(self._alive) == self._run.hosts and sum(self._alive.values()) == self._run.hosts * self._run.gpus:
            self._close_door()
            self.is_whole = True
            took, gpus = time.monotonic() - self._began, sum(self._alive.values())
            log.info(
                "Ray has %d nodes with %d GPUs, after %.1f s; strangers refused: %d",
                len(self._alive),
                gpus,
                took,
                self._refused,
            )
        elif time.monotonic() > self._began + self._deadline_s:
            raise self._not_whole()

    def _open(self) -> None:
        """Once the head answers, let the hosts come."""
        with suppress(OSError):
            self.address = (Path(self._spool) / ADDRESS_FILE).read_text().strip()
        if not self.address:
            return
        with self._log_of(0).open("ab") as errors:
            self._watch = subprocess.Popen(
                python.command("workers.verl.ray_watch", self.address),
                env=python.finding_us({**os.environ, **self.environment}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._watch.stdout is not None
        os.set_blocking(self._watch.stdout.fileno(), False)
        self._listener = listen(self._host.interface)
        self._listener.setblocking(False)
        self._place = publish(self._host.meeting, self._listener, "")

    def _admit_one(self) -> None:
        if self._listener is None or not _is_readable(self._listener):
            return
        try:
            channel, address = self._listener.accept()
        except OSError:  # it went away before its turn
            return
        try:
            hello = admit(channel, self._place.key, self._is_expected)
            send(channel, self._node(self.address))
            self._here[hello.number] = channel
        except (Stranger, Gone) as error:
            self._refused += 1
            log.warning("refused a connection from %s: %s", address[0], str(error) or "it does not know the key")
            channel.close()

    def _is_expected(self, hello: Hello) -> bool:
        is_further = 0 < hello.number < self._run.hosts
        return hello.purpose is Purpose.HOST and is_further and hello.number not in self._here

    def _hear(self) -> None:
        for number, channel in self._here.items():
            if not _is_readable(channel):
                continue
            try:
                code = receive(channel, RayEnded).code
            except Gone:
                raise self._failed(f"host {number} was lost", ExitCode.NODE, number) from None
            raise self._failed(f"Ray ended on host {number} with {code}", ExitCode.NODE, number)

    def _take_nodes(self) -> None:
        assert self._watch.stdout is not None
        self._unread += self._watch.stdout.read() or b""
        *lines, self._unread = self._unread.split(b"\n")
        if lines:
            self._alive = json.loads(lines[-1])
        elif self._watch.poll() is not None:
            raise self._failed("the head of Ray does not answer", ExitCode.ENGINE, 0)

    def _names(self) -> list[str]:
        return [name_of(number) for number in range(self._run.hosts)]

    def _not_whole(self) -> LonghaulError:
        missing = []
        for number, name in enumerate(self._names()):
            gpus = self._alive.get(name)
            if gpus is not None and gpus != self._run.gpus:
                missing.append(f"{name} (with {gpus:g} GPUs, not {self._run.gpus})")
            elif gpus is None:
                has_come = number in self._here or not number
                missing.append(f"{name} ({'its Ray did not start' if has_come else 'it never came'})")
        refused = f"; {self._refused} connections were refused" if self._refused else ""
        what = f"of {self._run.hosts} hosts, these are not in Ray after {self._deadline_s:g} s: {', '.join(missing)}"
        return self._failed(what + refused, ExitCode.ENGINE, 0)

    def _failed(self, what: str, code: ExitCode, number: int) -> LonghaulError:
        if said := tail_of(self._log_of(number)):
            log.error("the end of %s:\n%s", self._log_of(number).name, "\n".join(said))
        return LonghaulError(
            what,
            kept="the last checkpoint",
            next_command=f"see {self._log_of(number).name} and worker.log in the attempt's directory, and what the "
            f"launcher started on {name_of(number)}",
            exit_code=code,
        )

    def _close_door(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def end(self) -> None:
        """Let the hosts go, which end their nodes. Those on this host end with the worker's other children."""
        self._close_door()
        for channel in self._here.values():
            with suppress(Gone):
                send(channel, Farewell())
            channel.close()
        self._here.clear()


def _is_readable(channel: socket.socket, milliseconds: float = 0) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(milliseconds))


def name_of(number: int) -> str:
    """What a host is called in Ray."""
    return f"host-{number}"


def ray_log(folder: Path, number: int) -> Path:
    return folder / f"ray-{number}.log"


def start_node(node: RayNode, host: Host, spool: str, output: Path, more: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a node of Ray on this host. Call from the main thread, which lives as long as the process.

    Raises LonghaulError (INPUT) for an interface that is not there, OSError where the system refuses.
    """
    words = [
        f"--node-ip-address={address_of(host.interface)}",
        f"--node-name={name_of(host.number)}",
        f"--num-gpus={node.gpus}",
        f"--num-cpus={node.cpus or len(os.sched_getaffinity(0))}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        *([f"--object-store-memory={node.store_bytes}"] if node.store_bytes else []),
        *more,
    ]
    left_out = (*UNWANTED, "RAY_ADDRESS")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as log_file:
        return subprocess.Popen(
            python.command("workers.verl.ray_node", spool, *words),
            env=python.finding_us({**environment, **with_token(node.token)}),
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
        )


def attend(line: socket.socket, node: RayNode, host: Host) -> int:
    """A further host's side: be a node of Ray until the leader says goodbye or is gone. Returns the exit code."""
    adopt_orphans()
    spool = make_spool()
    output = ray_log(Path(node.log_folder), host.number)
    try:
        ray = start_node(node, host, spool, output, [f"--address={node.address}"])
        log.info("host %d of %d: Ray started (pid %d)", host.number, host.hosts, ray.pid)
        poll = select.poll()
        poll.register(line, select.POLLIN)
        poll.register(os.pidfd_open(ray.pid), select.POLLIN)
        if all(fd != line.fileno() for fd, _ in poll.poll()):
            code = ray.wait()
            log.error("Ray ended with %d", code)
            send(line, RayEnded(code))
            return ExitCode.NODE
        receive(line, Farewell)
    except Gone:
        log.error("the leader is gone")
        return ExitCode.RANK
    finally:
        end_children()
        remove_spool(spool)
    return ExitCode.OK
