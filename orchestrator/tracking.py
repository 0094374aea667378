"""The tracker process, from the master's side: nudged when something was committed, heard when it complains.

It reads the store by itself, so the master gives it bytes and no facts. Whatever becomes of it, the run goes on.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from orchestrator.commit import Ledger
from orchestrator.copies import owner_of
from orchestrator.launchers.environment import logins, without_master
from orchestrator.line_worker import start
from profiles.load import resolved_json
from profiles.schema import Profile
from state import durable
from state.layout import RunDir
from workers.line_contract import Error, Note, TrackSpec, read_line

LIBRARIES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "trackio": ("trackio",)}
THEIR_SECRETS = {"wandb": ("WANDB_",), "trackio": ("TRACKIO_", "HF_")}
"""Beginnings of the variables that a tracker logs in with; other processes never get them."""
PATIENCE_S = 5.0


@contextmanager
def tracked(ledger: Ledger, profile: Profile, say: Callable[[str], None]) -> Iterator[None]:
    """Trackers follow what the ledger commits inside the block."""
    tracker = Tracker(ledger.run, ledger.reader.history().run_id, profile, say)
    ledger.on_commit = tracker.nudge
    try:
        yield
    finally:
        tracker.close()


def environment_for(names: Sequence[str], owner: str) -> dict[str, str]:
    """What every process gets, and what these trackers log in with."""
    theirs = [part for name in names for part in THEIR_SECRETS.get(name, ())]
    return without_master(owner, "tracker") | logins(theirs)


class Tracker:
    """One process for all trackers of a run; one that does not start, or ends, is told once."""

    def __init__(self, run: RunDir, run_id: str, profile: Profile, say: Callable[[str], None]) -> None:
        """say: shows a line to the person."""
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        names = self._installed(profile)
        if not names:
            return
        try:
            self._process = self._start(run, run_id, profile, names)
        except Exception as error:
            say(f"trackers cannot be started, the run goes on without them: {error}")

    def _installed(self, profile: Profile) -> tuple[str, ...]:
        """Those that can work. TensorBoard is wanted by default, so nothing is said where it is missing."""
        found = []
        for name in profile.trackers.use:
            if any(importlib.util.find_spec(library) for library in LIBRARIES[name]):
                found.append(name)
            elif name != "tensorboard":
                self._say(f"trackers.use names {name}, which is not installed; the run goes on without it")
        return tuple(found)

    def _start(self, run: RunDir, run_id: str, profile: Profile, names: tuple[str, ...]) -> subprocess.Popen[bytes]:
        durable.make_dir(run.trackers)
        with (run.trackers / "tracker.log").open("ab") as log:
            process = start("workers.track", log, environment_for(names, owner_of(run, run_id)))
        assert process.stdin is not None and process.stdout is not None
        self._log = run.trackers / "tracker.log"
        trackers = msgspec.structs.replace(profile.trackers, use=names)
        spec = TrackSpec(
            run_dir=str(run.root.resolve()),
            run_id=run_id,
            name=run.name,
            folder=str(run.trackers.resolve()),
            tensorboard=str(run.tensorboard.resolve()),
            trackers=trackers,
            config=msgspec.json.decode(resolved_json(profile)),
        )
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        process.stdin.flush()
        for stream in (process.stdin, process.stdout):
            os.set_blocking(stream.fileno(), False)
        return process

    def nudge(self) -> None:
        """Something may have been committed. Never waits, never raises."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):  # full: it is busy, and looks again when it is done; broken: told below
            os.write(self._process.stdin.fileno(), b"\n")
        self._hear()

    def _hear(self) -> None:
        """Show what it complains about, and its end."""
        assert self._process is not None and self._process.stdout is not None
        try:
            text = os.read(self._process.stdout.fileno(), 65536)
        except BlockingIOError:
            return
        except OSError:
            text = b""
        self._repeat(text)
        if not text:
            self._say(f"the tracker process ended, the run goes on without it; see {self._log}")
            self._dismiss()

    def close(self) -> None:
        """Let it send what is left, for some seconds; then it is ended, and the next start goes on from there."""
        if self._process is None:
            return
        process = self._process
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
            if process.stdout is not None:
                with suppress(OSError):
                    self._repeat(os.read(process.stdout.fileno(), 65536))
        self._dismiss()

    def _repeat(self, text: bytes) -> None:
        for line in text.splitlines():
            with suppress(msgspec.ValidationError):
                match read_line(line):
                    case Note(text=said) | Error(what=said):
                        self._say(f"tracker: {said}")

    def _dismiss(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
