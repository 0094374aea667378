"""Lets the hosts of one attempt find and authenticate each other. Uses stdlib, msgspec and psutil; no torch.

The leader listens on one interface. It writes the address and a random key to a file that only the run's user can read.
Each connecting peer must prove that it knows the key before the leader parses anything else, and the leader proves the
same to the peer. A peer with another key belongs to another attempt or is a stranger. A connection lasts as long as the
attempt. The attempt's token cannot serve as the key, because the job's name shows it to everybody.

Not protected: later traffic is neither encrypted nor signed, so use only a network that you trust with your data.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from state.durable import fsync_dir, write_new_file
from workers.contract import (
    HOST_VARIABLE,
    HOSTS_VARIABLE,
    HOSTS_WAIT_VARIABLE,
    INTERFACE_VARIABLE,
    MEETING_VARIABLE,
)
from workers.rank_group.wire import Gone

log = logging.getLogger("worker")

WAIT_S = 600.0
RANK_WAIT_S = 60.0
"""Seconds that a rank tries to connect. Shorter than WAIT_S, because its leader is already listening."""
POLL_S = 0.2
HANDSHAKE_S = 2.0
"""Seconds for one handshake: a silent stranger can delay the others by no more than this."""
NONCE, KEY = 32, 32
HELLO = struct.Struct(">BI")
SILENT_S = 2
PROBES = 4
"""TCP keepalive: a host counts as gone after SILENT_S seconds of silence and PROBES unanswered probes, one a second.
A host that loses power closes no connection."""


class Purpose(IntEnum):
    """What a connection is for."""

    HOST = 1
    """One per host: the leader sends the ranks to start, the host reports how one of them ended."""
    CALLS = 2
    """Calls from the leader to a rank, like those over the socket pair on the leader's host."""
    STORE = 3
    """A rank's access to the leader's store, through which torch.distributed finds the other ranks."""


@dataclass(frozen=True)
class Hello:
    """Who connects, and for which purpose. number: host number for HOST, else rank."""

    purpose: Purpose
    number: int


class Place(Struct, frozen=True):
    """Content of the meeting file. Only its owner can read it, because the key gives access to the attempt."""

    address: str
    port: int
    key: bytes
    token: str
    """The attempt's token, for debugging only."""


@dataclass(frozen=True)
class Host:
    """This host among those of the attempt, as set by the launcher."""

    number: int
    hosts: int
    meeting: Path
    interface: str
    wait_s: float = WAIT_S


def this_host(environment: Mapping[str, str]) -> Host:
    """Read this host from the environment. Raises LonghaulError (INPUT) for missing or invalid variables."""
    names = (HOST_VARIABLE, HOSTS_VARIABLE, MEETING_VARIABLE, INTERFACE_VARIABLE)
    if missing := [name for name in names if not environment.get(name)]:
        raise _unusable(f"several hosts need {', '.join(missing)} in the environment of each: the launcher sets these")
    number, hosts, meeting, interface = (environment[name] for name in names)
    wait = environment.get(HOSTS_WAIT_VARIABLE) or str(WAIT_S)
    try:
        found = Host(int(number), int(hosts), Path(meeting), interface, float(wait))
    except ValueError as error:
        raise _unusable(f"{HOST_VARIABLE}, {HOSTS_VARIABLE} or {HOSTS_WAIT_VARIABLE} is no number: {error}") from error
    if not 0 <= found.number < found.hosts:
        raise _unusable(f"{HOST_VARIABLE} = {number} is none of 0 to {found.hosts - 1}, of {HOSTS_VARIABLE} = {hosts}")
    return found


def _unusable(what: str) -> LonghaulError:
    return LonghaulError(
        what,
        kept="the head",
        next_command="python -m orchestrator run --set run.hosts=1, or see docs/cluster.md",
        exit_code=ExitCode.INPUT,
    )


def address_of(interface: str) -> str:
    """The address of a network interface of this host, IPv4 first. Raises LonghaulError (INPUT)."""
    found = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for one in found.get(interface, ()):
            if one.family == family:
                return str(one.address)
    raise _unusable(f"{INTERFACE_VARIABLE} = {interface!r} has no address here; there are {', '.join(sorted(found))}")


# --- the file ----------------------------------------------------------------------------------------------------


def listen(interface: str) -> socket.socket:
    """Listen on that interface only, at a free port that the kernel chooses."""
    address = address_of(interface)
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    listener.listen(128)
    return listener


def publish(path: Path, listener: socket.socket, token: str) -> Place:
    """Write the meeting file atomically. Raises LonghaulError (LOCKED) if another leader has written it."""
    address, port = listener.getsockname()[:2]
    place = Place(address, port, secrets.token_bytes(KEY), token)
    mine = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    write_new_file(mine, msgspec.json.encode(place))
    try:
        os.link(mine, path)  # unlike a rename, it never replaces a file: only one of two leaders wins
    except FileExistsError:
        raise LonghaulError(
            f"{path} is there: another leader of this attempt has met its hosts",
            kept="the head; that leader goes on",
            next_command="python -m orchestrator status",
            exit_code=ExitCode.LOCKED,
        ) from None
    finally:
        mine.unlink()
    fsync_dir(path.parent)
    return place


def place_at(path: Path) -> Place | None:
    """Read the meeting file. None if it does not exist yet or cannot be read."""
    with suppress(OSError, StopIteration, msgspec.MsgspecError):
        next(path.parent.iterdir())  # refreshes NFS's cached "file not found"
        return msgspec.json.decode(path.read_bytes(), type=Place)
    return None


def leader() -> Place:
    """The leader's place, for a rank: the file exists before any rank starts. Raises LonghaulError (RANK) if not."""
    path = Path(os.environ[MEETING_VARIABLE])
    if place := place_at(path):
        return place
    raise LonghaulError(
        f"{path} is gone", kept="the head", next_command="python -m orchestrator run", exit_code=ExitCode.RANK
    )


def find(host: Host, is_over: Callable[[], bool] = lambda: False) -> Place | None:
    """Wait for the leader's place. None if the attempt is over first. Raises LonghaulError (RANK) on timeout."""
    until = time.monotonic() + host.wait_s
    while (place := place_at(host.meeting)) is None:
        if is_over():
            return None
        if time.monotonic() > until:
            raise LonghaulError(
                f"host {host.number} waited {host.wait_s:g} s for {host.meeting}, which host 0 writes",
                kept="the head",
                next_command=f"see worker.log of host 0; {HOSTS_WAIT_VARIABLE} sets how long hosts wait",
                exit_code=ExitCode.RANK,
            )
        time.sleep(POLL_S)
    return place


# --- the handshake -----------------------------------------------------------------------------------------------


class Stranger(Exception):
    """The other end does not know the key."""


def reach(place: Place, hello: Hello, wait_s: float) -> socket.socket:
    """Connect to the leader. Raises LonghaulError (RANK) if it does not accept in time or does not know the key."""
    until = time.monotonic() + wait_s
    while True:
        try:
            channel = socket.create_connection((place.address, place.port), timeout=HANDSHAKE_S)
        except OSError as error:
            failure: Exception = error
        else:
            try:
                introduce(channel, place.key, hello, until)
                return _lasting(channel)
            except Gone as error:  # it ran out of time for this peer, or refused it
                failure = error
                channel.close()
            except Stranger as error:
                channel.close()
                raise _not_reached(place, hello, "it does not know the key of this attempt") from error
        if time.monotonic() > until:
            raise _not_reached(place, hello, str(failure)) from failure
        time.sleep(POLL_S)


def _not_reached(place: Place, hello: Hello, why: str) -> LonghaulError:
    who = "host" if hello.purpose is Purpose.HOST else "rank"
    return LonghaulError(
        f"{who} {hello.number} did not come to the leader at {place.address} port {place.port}: {why}",
        kept="the head",
        next_command="python -m orchestrator run",
        exit_code=ExitCode.RANK,
    )


def introduce(channel: socket.socket, key: bytes, hello: Hello, until: float) -> None:
    """The connecting side of the handshake. The leader proves itself first. Raises Stranger, and Gone if refused.

    until: its deadline (`time.monotonic`). Only the leader limits a handshake to HANDSHAKE_S: a peer that gave up
    sooner than the leader would be refused ever after, because the leader has counted it as here.
    """
    mine = secrets.token_bytes(NONCE)
    said = HELLO.pack(hello.purpose, hello.number)
    _say(channel, mine)
    theirs, proof = _hear(channel, NONCE, until), _hear(channel, KEY, until)
    if not hmac.compare_digest(proof, _proof(key, b"leader", mine, theirs)):
        raise Stranger
    _say(channel, said + _proof(key, b"member", theirs, mine, said))
    if _hear(channel, 1, until) != b"!":
        raise Gone("refused")


def admit(channel: socket.socket, key: bytes, is_free: Callable[[Hello], bool]) -> Hello:
    """The leader's side of the handshake; returns who connected. Raises Stranger, and Gone.

    Reads only messages of a fixed size until the peer has proved itself. is_free: whether this peer is still expected;
    refuses a peer that is already connected.
    """
    until = time.monotonic() + HANDSHAKE_S
    theirs, mine = _hear(channel, NONCE, until), secrets.token_bytes(NONCE)
    _say(channel, mine + _proof(key, b"leader", theirs, mine))
    said, proof = _hear(channel, HELLO.size, until), _hear(channel, KEY, until)
    if not hmac.compare_digest(proof, _proof(key, b"member", mine, theirs, said)):
        raise Stranger
    try:
        hello = Hello(*_hello(said))
    except ValueError as error:
        raise Gone(str(error)) from error
    if not is_free(hello):
        raise Gone(f"{hello.purpose.name} {hello.number} is here already, or is none of ours")
    _say(channel, b"!")
    _lasting(channel)
    return hello


def _hello(said: bytes) -> tuple[Purpose, int]:
    purpose, number = HELLO.unpack(said)
    return Purpose(purpose), number


def _proof(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def _say(channel: socket.socket, data: bytes) -> None:
    try:
        channel.sendall(data)
    except OSError as error:
        raise Gone(str(error)) from error


def _hear(channel: socket.socket, count: int, until: float) -> bytes:
    """Receive exactly `count` bytes before the deadline `until`. Raises Gone."""
    data = b""
    while len(data) < count:
        try:
            channel.settimeout(max(0.001, until - time.monotonic()))
            more = channel.recv(count - len(data))
        except OSError as error:
            raise Gone(str(error)) from error
        if not more:
            raise Gone("the other end is closed")
        data += more
    return data


def _lasting(channel: socket.socket) -> socket.socket:
    """Remove the timeout and enable keepalive: the kernel detects a lost host even while this process is busy."""
    channel.settimeout(None)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (SILENT_S + PROBES))
    return channel
