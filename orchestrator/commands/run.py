"""Start or resume a run; without a profile, the newest unfinished run or else the pocket model.

Ctrl+C (SIGINT, SIGTERM) finishes the step, checkpoints and exits with 0; a second one within ten seconds stops at
once. Ctrl+X (SIGUSR1) makes a checkpoint and goes on. SIGHUP makes the run go on without the terminal.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import secrets
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.arguments import OF_A_RUN, add_overrides
from orchestrator.attach import find_running
from orchestrator.clock import Clock
from orchestrator.commit import Ledger
from orchestrator.copies import noticed
from orchestrator.disk import disk_line, room_for, too_full
from orchestrator.display.plain import Plain
from orchestrator.display.screen import Display, Screen
from orchestrator.display.summary import summary
from orchestrator.display.terminal import Keyboard
from orchestrator.display.wording import among, harmless
from orchestrator.engine_check import check_engine
from orchestrator.foreground import FOREGROUND
from orchestrator.full_disk import wait_for_room, waits
from orchestrator.hours.prediction import Prediction, predict, steps_in, time_line
from orchestrator.hours.records import keep, known_step
from orchestrator.hours.room import is_out_of_memory, memory_lines, too_little_memory
from orchestrator.launchers.registry import launcher_named
from orchestrator.loop import Master
from orchestrator.notifying import notified
from orchestrator.own_code import with_own_code
from orchestrator.pages import Pages
from orchestrator.preflight import engine_kept, examined, too_small
from orchestrator.recovery import raise_oom_priority, recover_run
from orchestrator.resume_profile import has_begun, profile_to_resume
from orchestrator.run_directory import behind_link, give_up_ballast, make_ballast, make_directory, make_folders
from orchestrator.runs import newest_unfinished
from orchestrator.schedule import Stop
from orchestrator.signals import SIGNALS
from orchestrator.steering import ON_REQUEST
from orchestrator.streams import say
from orchestrator.systemd.manager import MANAGER
from orchestrator.tracking import tracked
from profiles.changes import with_profile
from profiles.errors import ExitCode, LonghaulError
from profiles.hub_model import hub_model
from profiles.load import from_json, load_profile, override_profile, profile_sha256, resolved_json
from profiles.schema import Profile
from state.crash import crash_point
from state.layout import RunDir
from state.lock import RunLock
from state.opening import unexpected
from state.reader import Reader, is_born
from state.states import RunState
from state.store import NewRun, Store

PR_SET_CHILD_SUBREAPER = 36
DEFAULT_PROFILE = "pocket"
End = Callable[[RunDir, Reader, Profile, Screen, Stop], int] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", metavar="NAME|FILE", help="a shipped profile's name, or a TOML file")
    add_overrides(parser, OF_A_RUN)
    phases = parser.add_mutually_exclusive_group()
    phases.add_argument("--phases", metavar="LIST", help="seed, or seed,train (run.phases)")
    phases.add_argument("--seeding-only", action="store_const", const="seed", dest="phases", help="--phases seed")
    phases.add_argument(
        "--full-pipeline", action="store_const", const="seed,train", dest="phases", help="--phases seed,train"
    )
    parser.add_argument("--max-hours", metavar="H", help="hours of seeding and training until the run is finished")
    parser.add_argument("--max-cycles", metavar="N", help="cycles after which the run is finished")
    parser.add_argument("--until", metavar="GOAL", help="score at which the run is finished, as in 'mean>=0.9'")
    parser.add_argument("--accept-changes", action="store_true", help="resume with a profile that differs")
    parser.add_argument("--dry-run", action="store_true", help="walk the whole path with a tiny model; keep nothing")
    parser.add_argument("--plain", action="store_true", help="lines instead of the dashboard, also on a terminal")


@dataclass(frozen=True)
class Chosen:
    """The run, and the requested profile (None: the stored one)."""

    run: RunDir
    profile: Profile | None
    is_new: bool


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    args.overrides += shorthands(args)
    chosen = choose(args)
    if args.dry_run:
        from orchestrator.rehearsal import dry_run

        return dry_run(chosen.profile or stored_with(chosen.run, []), args.runs, args.profile or "")
    chosen = with_model_here(chosen)
    is_begun = has_begun(chosen.run)
    verdict = examined(chosen.profile or stored_with(chosen.run, []), args, is_new=not is_begun)
    room = room_for(verdict.profile, chosen.run)
    launcher_named(verdict.profile.launch.launcher, verdict.profile)  # refused before anything is written
    check_engine(verdict.profile)
    if verdict.is_refused:
        raise too_small(verdict, args)
    if room.is_refused:
        raise too_full(room, verdict.profile, chosen.run, args)
    if chosen.profile is not None:
        chosen = replace(chosen, profile=verdict.profile)
    prediction = predict(verdict, room, time.time(), known_step(verdict, chosen.run, args.runs))
    if is_out_of_memory(prediction, verdict):
        raise too_little_memory(prediction, verdict, args)
    is_changed_early = chosen.profile is not None and not chosen.is_new and not is_begun and not args.profile
    path = f"model: {verdict.path}" if verdict.is_plain else ""
    kept = engine_kept(verdict, args) if is_changed_early else ""
    lines = (memory_lines(verdict, prediction), disk_line(room), time_line(prediction, steps_in(verdict.profile)))
    for line in filter(None, (*lines, path, kept)):
        say(f"{line}\n")
    if sys.stdin is not None and sys.stdin.isatty():
        FOREGROUND.fork()
    return hold_and_drive(replace(chosen, run=behind_link(chosen.run)), args, prediction)


def hold_and_drive(chosen: Chosen, args: argparse.Namespace, prediction: Prediction | None = None) -> int:
    """Hold the run's lock, and drive the run to its end; returns the exit code. prediction: noted if the run is new."""
    make_directory(chosen.run)
    lock = RunLock.acquire(chosen.run)
    try:
        # Another master may have begun the run, and even finished it, since it was looked for.
        chosen = replace(chosen, is_new=chosen.is_new and not is_born(chosen.run))
        if prediction is not None:
            keep(chosen.run, prediction)
        while (code := run_once(chosen, lock, args)) is None:
            chosen = Chosen(chosen.run, profile=None, is_new=False)
        return code
    except (LonghaulError, OSError, sqlite3.Error):
        lock.guard(anew=True)  # files that another host swept look like a failure of our own
        raise
    finally:
        lock.release()


def run_once(chosen: Chosen, lock: RunLock, args: argparse.Namespace) -> int | None:
    """Drive the run to its end; returns the exit code. None: its disk was full, and there is room again."""
    make_ballast(chosen.run)
    store = open_store(chosen)
    store.guard, store.incarnation = lock.guard, lock.incarnation
    try:
        reader = Reader.open(chosen.run)
        try:
            profile = profile_to_resume(chosen.run, chosen.profile, store, reader, args)
            with notified(chosen.run, reader.history(), profile.notify, say):
                try:
                    return drive(chosen.run, store, reader, profile, plain=args.plain)
                except LonghaulError as error:
                    if not waits(error, chosen.run, profile):
                        raise
                    wait_for_room(chosen.run, profile, store, reader.history().step, error)
                    return None
        finally:
            reader.close()
    finally:
        store.close()


def shorthands(args: argparse.Namespace) -> list[str]:
    """Options that are short names for knobs, as overrides. (pure)"""
    phases = None if args.phases is None else str([part.strip() for part in args.phases.split(",")]).replace("'", '"')
    knobs = {
        "phases": phases,
        "max_hours": args.max_hours,
        "max_cycles": args.max_cycles,
        "until": args.until if args.until is None else json.dumps(args.until),
    }
    return [f"run.{name}={value}" for name, value in knobs.items() if value is not None]


# --- run and profile -----------------------------------------------------------------------------------------


def choose(args: argparse.Namespace) -> Chosen:
    """Find the run and the profile for the command line.

    A run with a store is resumed with its stored profile unless --profile or --set says otherwise.
    """
    root: Path = args.runs
    if args.run is None and args.profile is None and (unfinished := newest_unfinished(root)) is not None:
        return Chosen(unfinished, overridden(unfinished, args.overrides), is_new=False)
    if args.run is not None and args.profile is None and is_born(RunDir(root / args.run)):
        run_dir = RunDir(root / args.run)
        return Chosen(run_dir, overridden(run_dir, args.overrides), is_new=False)
    profile = load_profile(args.profile or DEFAULT_PROFILE, args.overrides).profile
    profile = with_own_code(profile, Path.cwd())
    name = args.run or (profile.name if args.profile else free_name(root, profile.name))
    run_dir = RunDir(root / name)
    return Chosen(run_dir, profile, is_new=not is_born(run_dir))


def with_model_here(chosen: Chosen) -> Chosen:
    """Fetch the model if it is one of the hub. A run that has begun stays with the commit that it has."""
    stored = None if chosen.is_new else stored_with(chosen.run, [])
    wanted = chosen.profile or stored
    assert wanted is not None
    if not wanted.model.revision and hub_model(wanted.model.path) is None:
        return chosen
    from orchestrator.hub_fetch import with_hub_model  # slow to import, and seldom needed

    found = with_hub_model(wanted, stored)
    return chosen if found == wanted else replace(chosen, profile=found)


def overridden(run_dir: RunDir, overrides: list[str]) -> Profile | None:
    """The stored profile with overrides, and with the hashes of the user's files as they are now; None if both leave it
    as it is."""
    stored = stored_with(run_dir, [])
    wanted = with_own_code(stored_with(run_dir, overrides) if overrides else stored, Path.cwd())
    return wanted if overrides or wanted != stored else None


def stored_with(run_dir: RunDir, overrides: list[str]) -> Profile:
    """The stored profile with overrides."""
    reader = Reader.open(run_dir)
    try:
        return override_profile(from_json(reader.profile_json()), overrides)
    finally:
        reader.close()


def free_name(root: Path, name: str) -> str:
    """The first free of name, name-2, name-3 ..., so that no finished run is resumed by accident."""
    number, candidate = 1, name
    while (root / candidate / "state.db").exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def open_store(chosen: Chosen) -> Store:
    """Open the run's store, or create the store and folders of a new run."""
    if not chosen.is_new:
        return Store.open(chosen.run)
    if chosen.run.checkpoints.exists() and any(chosen.run.checkpoints.iterdir()):
        raise LonghaulError(
            f"{chosen.run.root} holds checkpoints but no store (state.db)",
            kept="all files, unchanged",
            next_command=f"python -m orchestrator recover --run {chosen.run.name}   (rebuilds the store from them)",
            exit_code=ExitCode.STORE,
        )
    assert chosen.profile is not None
    make_folders(chosen.run)
    new = NewRun(
        run_id=secrets.token_hex(8),
        name=chosen.run.name,
        profile=resolved_json(chosen.profile).decode(),
        profile_sha256=profile_sha256(chosen.profile),
        seed=chosen.profile.run.seed,
        program_version=program_version(),
        now=time.time(),
    )
    return Store.open(chosen.run, new)


def program_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("longhaul")
    except PackageNotFoundError:
        return "source"


# --- running -------------------------------------------------------------------------------------------------


def drive(run_dir: RunDir, store: Store, reader: Reader, profile: Profile, *, plain: bool, end: End = None) -> int:
    """Recover, then run the master until it ends, and print the summary. end: called instead of `finish`."""
    become_subreaper()
    raise_oom_priority()
    clock = Clock()
    ledger = Ledger(run_dir, store, reader, profile.retention)
    running = find_running(run_dir, reader, profile)
    token = running.attempt.token if running is not None else ""
    repairs = [*noticed(run_dir), *recover_run(run_dir, store, reader, ledger, clock.utc(), token)]
    screen = open_screen(run_dir, profile, plain=plain)
    screen.judge = Pages(run_dir, reader)
    screen.reload(reader)
    store.say = screen.say
    try:
        for line in repairs:
            screen.say(line)
        screen.say(opening(run_dir, reader))
        master = Master(run_dir, store, reader, profile, clock, SIGNALS, screen, running)
        # Only now: a run that ended in a crash loop is forgiven once, by the Master above.
        is_paused = master.history.paused_at is not None
        store.set_run_state(*((RunState.PAUSED, ON_REQUEST) if is_paused else (RunState.RUNNING, "")), clock.utc())
        crash_point("master.ready")
        with tracked(master.attempts.ledger, profile, screen.say):
            ending = master.run()
    except (LonghaulError, OSError, sqlite3.Error) as error:
        screen.close("")
        failure = error if isinstance(error, LonghaulError) else unexpected(run_dir, error)
        leave_reason(run_dir, store, failure, clock)
        raise failure from error
    except BaseException:
        screen.close("")
        raise
    return (end or finish)(run_dir, reader, master.profile, screen, ending)


def opening(run_dir: RunDir, reader: Reader) -> str:
    history = reader.history()
    if history.head is None:
        return f"run '{run_dir.name}' begins"
    return f"run '{run_dir.name}' resumes from step {history.head.step} ({history.head.path})"


def open_screen(run_dir: RunDir, profile: Profile, *, plain: bool) -> Screen:
    """The dashboard on a terminal, else one-line progress."""
    display: Display = Plain(sys.stdout)
    if not plain and sys.stdout.isatty():
        from orchestrator.display.dashboard import open_dashboard

        display = open_dashboard(sys.stdout) or display
    keyboard = Keyboard() if sys.stdin is not None and sys.stdin.isatty() else None
    return Screen(run_dir, display, keyboard, profile, on_terminal=sys.stdout.isatty())


def finish(run_dir: RunDir, reader: Reader, profile: Profile, screen: Screen, ending: Stop) -> int:
    """Write the report and print the summary. Raises LonghaulError if the run failed."""
    from orchestrator.data_sets.hand_on import hand_on, is_due
    from orchestrator.report.page import write_report

    try:
        write_report(run_dir)
    except Exception as error:  # a broken report must not change how the run ended
        screen.say(f"the report could not be written: {error!r}")
    history = reader.history()
    handed_on = ""
    if is_due(history, profile):
        handed_on = hand_on(run_dir, history, profile, screen.say, is_stop_asked)
    rows = (reader.steps(), reader.validations())
    rendered = summary(history, *rows, profile, report=str(run_dir.report), handed_on=handed_on)
    screen.close(among(run_dir.folder, rendered))
    if ending.state == RunState.FAILED:
        head = f"head is step {history.head.step} ({history.head.path})" if history.head else "no checkpoint yet"
        log = last_log(run_dir, history.current.cycle if history.current else 0)
        seen = last_lines(log) if ending.exit_code == ExitCode.INTERNAL else []
        # A known remedy becomes the next command; otherwise that is the log.
        remedies = ending.exit_code != ExitCode.INTERNAL and ending.advice
        advice = with_profile(ending.advice, profile)
        lines = [ending.reason, *([advice] if advice and not remedies else []), *seen]
        raise LonghaulError(
            f"run '{run_dir.name}' stopped: " + "\n       ".join(lines),
            kept=head,
            next_command=advice if remedies else f"tail -n 40 {log}",
            exit_code=ending.exit_code,
        )
    return int(ending.exit_code)


def is_stop_asked() -> bool:
    """Whether somebody wants to stop what is done after the last step. It may take long: the service manager hears that
    we live."""
    MANAGER.alive(time.monotonic(), "writes the tasks for the next run")
    return bool(SIGNALS.stops)


def last_log(run_dir: RunDir, cycle: int) -> Path:
    logs = sorted(run_dir.cycle(cycle).glob("*/worker.log"), key=lambda path: path.stat().st_mtime)
    return logs[-1] if logs else run_dir.log


def last_lines(log: Path, count: int = 5) -> list[str]:
    """The last lines of a worker's log, so that the user need not open it."""
    try:
        return [f"| {harmless(line)}" for line in log.read_text(errors="replace").splitlines()[-count:]]
    except OSError:
        return []


def leave_reason(run_dir: RunDir, store: Store, error: LonghaulError, clock: Clock) -> None:
    """Try to store why the run ends; on a full disk, free the ballast first."""
    if error.exit_code == ExitCode.LOCKED:
        return  # waiting for the lock has already failed
    if error.exit_code == ExitCode.DISK:
        give_up_ballast(run_dir)
    with suppress(LonghaulError, Exception):
        store.guard(anew=True)
        store.set_run_state(RunState.FAILED, error.what, clock.utc())


def become_subreaper() -> None:
    """Adopt orphans of our workers, so that none outlives the run or becomes a zombie."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
