"""Waits with a run whose disk is full, until there is room for its next attempt."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from orchestrator.control import Server
from orchestrator.disk import Room, room_for
from orchestrator.display.wording import harmless, size
from orchestrator.ready import wait_for_any
from orchestrator.run_directory import give_up_ballast
from orchestrator.signals import SIGNALS
from orchestrator.streams import say
from orchestrator.systemd.manager import MANAGER
from profiles.disk import BALLAST_BYTES
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state.layout import RunDir
from state.states import RunState
from state.store import Store

LOOK_EVERY_S = 2.0
WRITTEN_BY_AN_ATTEMPT = ("in flight", "rollouts")
"""Parts of the disk plan that the next attempt writes before anything is deleted."""


def needed(room: Room) -> int:
    """Free bytes with which a run goes on: what its next attempt writes, and twice the ballast, which is made first.
    (pure)"""
    parts = room.plan.parts if room.plan is not None else {}
    return sum(parts.get(name, 0) for name in WRITTEN_BY_AN_ATTEMPT) + 2 * BALLAST_BYTES


def waits(error: LonghaulError, run: RunDir, profile: Profile) -> bool:
    """Whether a run that ended like this waits for room. A disk that has room and cannot be written ends it."""
    if error.exit_code != ExitCode.DISK or profile.retention.on_full_disk != "pause":
        return False
    give_up_ballast(run)
    room = room_for(profile, run)
    return room.free < needed(room)


def wait_for_room(run: RunDir, profile: Profile, store: Store, step: int, error: LonghaulError) -> None:
    """Return once there is room. step: of the head. Raises `error` if somebody stops the run meanwhile."""
    room = room_for(profile, run)
    least = size(needed(room))
    place = harmless(str(room.place))
    reason = f"the disk is full: {least} are needed in {place}"
    with suppress(LonghaulError):  # the ballast has left room for it
        store.set_run_state(RunState.PAUSED, reason, time.time())
    say(
        f"paused: {error.what}\n"
        f"paused: {least} are needed in {place}, {size(room.free)} are free; the run goes on by itself once there is "
        "room (Ctrl+C ends it)\n"
    )
    server: Server | None = None
    with suppress(OSError):  # a full disk may have no room for a socket
        server = Server(run)
    try:
        while room.free < needed(room):
            if _is_stopped(server, step, reason):
                with suppress(LonghaulError):
                    store.set_run_state(RunState.FAILED, error.what, time.time())
                raise error
            sockets = server.sockets(time.monotonic()) if server is not None else []
            wait_for_any([SIGNALS.wake_reader, *sockets], LOOK_EVERY_S)
            MANAGER.alive(time.monotonic(), reason)
            SIGNALS.drain()
            room = room_for(profile, run)
    finally:
        if server is not None:
            server.close()
    say(f"{size(room.free)} are free now; the run goes on\n")


def _is_stopped(server: Server | None, step: int, reason: str) -> bool:
    """Answer what is asked. True if it is to stop."""
    is_stopped = bool(SIGNALS.take_stops())
    SIGNALS.checkpoint = SIGNALS.hangup = 0
    for client in server.poll(time.monotonic()) if server is not None else ():
        if client.command in ("stop", "abort"):
            is_stopped = True
            client.answer(ok=True, step=step, until_exit=True)
        elif client.command == "status":
            client.answer(ok=True, master_pid=os.getpid(), state=RunState.PAUSED)
        else:
            client.answer(ok=False, error=f"{reason}; the last checkpoint is the head, and nothing trains")
    return is_stopped
