"""Show the messages that a run has sent; `--test` tries every target.

Which events are told, and by what, stands in [notify] of the profile (docs/away.md).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from typing import Any

from orchestrator.arguments import OF_A_RUN, add_overrides
from orchestrator.commands.run import choose, stored_with
from orchestrator.display.wording import duration, harmless
from orchestrator.line_worker import LineWorker, start
from orchestrator.notifying import MODULE, environment_for
from orchestrator.runs import find_run
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state.layout import RunDir
from workers.line_contract import Delivered, Note, NotifySpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--test", action="store_true", help="send a test to every target, once")
    parser.add_argument("--profile", metavar="NAME|FILE", help="with --test: the profile, for a run not yet begun")
    add_overrides(parser, OF_A_RUN)


def run(args: argparse.Namespace) -> int:
    if args.test:
        return try_targets(args)
    if args.profile or args.overrides:
        raise LonghaulError(
            "--profile and --set are for --test: what a run has sent depends on the run alone",
            kept="everything; nothing was sent",
            next_command="python -m orchestrator notify --test   (with the same options)",
            exit_code=ExitCode.USAGE,
        )
    return show(find_run(args), as_json=args.json)


# --- what was sent ---------------------------------------------------------------------------------------------------


def show(run: RunDir, *, as_json: bool) -> int:
    messages = _messages(run)
    if as_json:
        sys.stdout.write(json.dumps(messages, indent=2) + "\n")
    elif not messages:
        sys.stdout.write(f"run '{run.name}' has sent no message\n")
    for message in [] if as_json else messages:
        sys.stdout.write(rendered(message, time.time()))
    return int(ExitCode.OK)


def _messages(run: RunDir) -> list[dict[str, Any]]:
    """Those in the outbox, oldest first; a torn file counts as none."""
    try:
        found = json.loads((run.notify / "outbox.json").read_bytes())["messages"]
    except (OSError, ValueError, KeyError):
        return []
    return list(found)


def rendered(message: dict[str, Any], now: float) -> str:
    """A message and what became of it, in a few lines. (pure)"""
    event = message["event"]
    lines = [
        f"{duration(now - event['at'])} ago  {event['kind']:<10}  {harmless(event['title'])}: {harmless(event['text'])}"
    ]
    for target, delivery in message["deliveries"].items():
        tries = f", {delivery['tries']} tries" if delivery["tries"] > 1 else ""
        error = f": {harmless(delivery['error'])}" if delivery["error"] else ""
        lines.append(f"    {harmless(target)}: {delivery['state']}{tries}{error}")
    return "\n".join(lines) + "\n"


# --- a test ----------------------------------------------------------------------------------------------------------


def try_targets(args: argparse.Namespace) -> int:
    """Send a test to each target. Raises LonghaulError (INPUT) if there is none, or one did not take it."""
    if args.run is None and args.profile is None and not args.overrides:
        args.run = find_run(args).name
    chosen = choose(args)
    profile = chosen.profile or stored_with(chosen.run, [])
    if not profile.notify.is_used:
        raise LonghaulError(
            f"profile {profile.name!r} names no target: notify.command, notify.urls_env or notify.urls_file",
            kept="everything; nothing was sent",
            next_command="python -m orchestrator notify --test --set 'notify.command=[\"cat\"]'   (docs/away.md)",
            exit_code=ExitCode.INPUT,
        )
    tried, problems = _tried(profile, chosen.run.name)
    if args.json:
        facts = [{"target": one.target, "error": one.error, "seconds": one.seconds} for one in tried]
        sys.stdout.write(json.dumps({"tried": facts, "problems": problems}) + "\n")
    else:
        for problem in problems:
            sys.stdout.write(f"{problem}\n")
        for one in tried:
            sys.stdout.write(
                f"{one.target}: {f'failed: {one.error}' if one.error else 'taken'} ({one.seconds:.1f} s)\n"
            )
    failed = [one.target for one in tried if one.error]
    if failed or not tried:
        raise LonghaulError(
            f"{', '.join(failed)} did not take the test" if failed else "there was nothing to send it to",
            kept="everything",
            next_command="the same command, once [notify] is mended   (docs/away.md)",
            exit_code=ExitCode.INPUT,
        )
    return int(ExitCode.OK)


def _tried(profile: Profile, name: str) -> tuple[list[Delivered], list[str]]:
    """What each target did, and what is wrong with the settings. Raises LonghaulError if the process fails."""
    spec = NotifySpec(store="", folder="", name=name, run_id="test", notify=profile.notify, is_test=True)
    tried: list[Delivered] = []
    problems: list[str] = []
    with tempfile.TemporaryFile() as log:
        worker = LineWorker(
            start(MODULE, log, environment_for(profile.notify)), "notify", "everything", "see above", log
        )
        try:
            worker.tell(spec)
            for message in worker.hear():
                match message:
                    case Delivered():
                        tried.append(message)
                    case Note(text=text):
                        problems.append(text)
        finally:
            worker.end()
    return tried, problems
