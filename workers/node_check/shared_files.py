"""What nodes see of one directory: renames, replaced files, exclusive creation, locks, and how far clocks differ.

Every node calls `examine` in the same job. They talk by files of that directory alone, and each wait has an end: what
did not come is a fact too. No clock of one node is compared with that of another but to report how far they differ.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workers.node_contract import EXCLUSIVE_FILES, NodeFacts, Pong

HERE_S = 40.0
"""How long nodes wait for each other at the start. The job script ends all tasks 60 s after the first has ended, as one
without the directory does at once."""
STEP_S = 10.0
"""How long they wait for one file later."""
POLL_S = 0.01
REPLACE_S = 1.0
"""How long one node replaces the file that the others read."""
TURN_S = 0.002
"""Pause before each exclusive file, so that no node is through before another has begun."""
LETTERS = "ab"
WHOLE_BYTES = 64 * 1024
LOCKS = {"flock": fcntl.flock, "fcntl": fcntl.lockf}


def examine(place: Path, facts: NodeFacts, hosts: int) -> None:
    """Fill in what this node sees. place: a directory that only this check uses."""
    write(place, f"here-{facts.host}")
    names = {host: f"here-{host}" for host in range(hosts)}
    seen = wait_for(place, names.values(), HERE_S)
    facts.present = [host for host, name in names.items() if name in seen]
    if len(facts.present) < 2:
        return
    if facts.host == min(facts.present):
        _ask(place, facts)
    else:
        _answer(place, facts)
    facts.won = [number for number in range(EXCLUSIVE_FILES) if _creates(place / f"exclusive-{number}")]


def _ask(place: Path, facts: NodeFacts) -> None:
    """The first node: rename a file and wait for answers, replace a file, hold the locks."""
    others = [host for host in facts.present if host != facts.host]
    replace_whole(place, 0)
    asked_at, asked = time.time(), time.monotonic()
    write(place, "ping")
    left = {f"pong-{host}": host for host in others}
    while left and time.monotonic() - asked < STEP_S:
        for name in wait_for(place, left, POLL_S, enough=1):
            trip, host = time.monotonic() - asked, left.pop(name)
            said = 0.0
            with suppress(OSError, ValueError):
                said = float((place / name).read_text())
            facts.pongs.append(Pong(host, trip, said - asked_at - trip / 2))
    began, number = time.monotonic(), 1
    while time.monotonic() - began < REPLACE_S:
        replace_whole(place, number)
        number += 1
    with holding(place, facts):
        write(place, "held")
        wait_for(place, [f"tried-{host}" for host in others], STEP_S)
    write(place, "go")


def _answer(place: Path, facts: NodeFacts) -> None:
    """Every other node: answer the rename, read the file that is replaced, try the locks."""
    if not wait_for(place, ["ping"], STEP_S):
        return
    write(place, f"pong-{facts.host}", str(time.time()))
    until = time.monotonic() + 2 * STEP_S
    while "held" not in names_in(place) and time.monotonic() < until:
        for _ in range(20):
            facts.reads += 1
            facts.torn += not is_whole(place)
    if "held" in names_in(place):
        facts.locks = {kind: tried(place / f"lock-{kind}", kind) for kind in LOCKS}
    write(place, f"tried-{facts.host}")
    wait_for(place, ["go"], STEP_S)


def write(place: Path, name: str, text: str = "") -> None:
    """Create a file by a rename, as everything in a run is."""
    mine = place / f".{name}.new"
    with mine.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    mine.rename(place / name)


def wait_for(place: Path, names: Collection[str], seconds: float, enough: int = 0) -> set[str]:
    """Those of the files that are there, once `enough` of them (0: all) are or the time is over."""
    until = time.monotonic() + seconds
    while True:
        found = names_in(place) & set(names)
        if len(found) >= (enough or len(names)) or time.monotonic() >= until:
            return found
        time.sleep(POLL_S)


def names_in(place: Path) -> set[str]:
    """Listing makes a network file system ask its server; `exists` may answer from this host's cache."""
    with suppress(OSError):
        return set(os.listdir(place))  # noqa: PTH208 - names alone
    return set()


def replace_whole(place: Path, number: int) -> None:
    mine = place / ".whole.new"
    mine.write_text(LETTERS[number % len(LETTERS)] * WHOLE_BYTES)
    mine.rename(place / "whole")


def is_whole(place: Path) -> bool:
    """Whether a reader finds the file, with the text of one writing. A stale handle of NFS is no answer."""
    try:
        text = (place / "whole").read_text()
    except OSError as error:
        return error.errno == errno.ESTALE
    return len(text) == WHOLE_BYTES and len(set(text)) == 1


def _creates(path: Path) -> bool:
    time.sleep(TURN_S)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    return True


@contextmanager
def holding(place: Path, facts: NodeFacts) -> Iterator[None]:
    """Hold a lock of each kind. A kind that this file system does not have is a fact."""
    files = []
    try:
        for kind, lock in LOCKS.items():
            file = (place / f"lock-{kind}").open("w")
            files.append(file)
            try:
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                facts.locks[kind] = error.strerror or "refused"
        yield
    finally:
        for file in files:
            file.close()


def tried(path: Path, kind: str) -> str:
    """`excluded`, `granted`, or the error, for a lock that another node holds."""
    try:
        with path.open("r+") as file:
            LOCKS[kind](file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        is_held = error.errno in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)
        return "excluded" if is_held else error.strerror or "refused"
    return "granted"
