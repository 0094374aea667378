"""The tracker process, from the master's side: notifies it of commits and shows its complaints.

The tracker reads the store itself, so the master only wakes it. Its failures never affect the run.
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
"""Prefixes of the variables that a tracker logs in with. No other process gets them."""
PATIENCE_S = 5.0


@contextmanager
def tracked(ledger: Ledger, profile: Profile, say: Callable[[str], None]) -> Iterator[None]:
    """Run the trackers on everything the ledger commits inside the block."""
    tracker = Tracker(ledger.run, ledger.reader.history().run_id, profile, say)
    ledger.on_commit = tracker.nudge
    try:
        yield
    finally:
        tracker.close()


def environment_for(names: Sequence[str], owner: str) -> dict[str, str]:
    """The common environment plus the login variables of these trackers."""
    theirs = [part for name in names for part in THEIR_SECRETS.get(name, ())]
    return without_master(owner, "tracker") | logins(theirs)


class Tracker:
    """One process for all trackers of a run. Reports once if it does not start or ends."""

    def __init__(self, run: RunDir, run_id: str, profile: Profile, say: Callable[[str], None]) -> None:
        """say: shows a line to the user."""
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        names = self._installed(profile)
        if not names:
            return
        try:
            self._process = self._start(run, run_id, profile, names)
        except Exception as error:
            say(f"trackers cannot be started; the run goes on without them: {error}")

    def _installed(self, profile: Profile) -> tuple[str, ...]:
        """The installed trackers. Reports missing ones, except TensorBoard, which is on by default."""
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
        """Tell the tracker that something may have been committed. Never blocks or raises."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):  # a full pipe: it is busy and will look again; a broken one is reported below
            os.write(self._process.stdin.fileno(), b"\n")
        self._hear()

    def _hear(self) -> None:
        """Show its complaints, and report its end."""
        assert self._process is not None and self._process.stdout is not None
        try:
            text = os.read(self._process.stdout.fileno(), 65536)
        except BlockingIOError:
            return
        except OSError:
            text = b""
        self._repeat(text)
        if not text:
            self._say(f"the tracker process ended; the run goes on without it; see {self._log}")
            self._dismiss()

    def close(self) -> None:
        """Give it some seconds to finish, then end it. The next start resumes where it left off."""
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
