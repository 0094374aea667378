"""Write a systemd user unit that starts a run and keeps it alive, and print a recipe for tmux.

Nothing is started. The unit restarts the run after a crash or a hang of the master, and not after an ending that a
restart cannot mend (docs/away.md).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from orchestrator.arguments import OF_A_RUN, add_overrides
from orchestrator.commands.run import Chosen, choose, stored_with
from orchestrator.display.wording import DEFAULT_RUNS
from orchestrator.runs import find_run
from orchestrator.systemd.unit import tmux_recipe, unit_name, unit_text
from profiles.errors import ExitCode, LonghaulError
from state import durable, python


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", metavar="NAME|FILE", help="begin a new run with this profile")
    add_overrides(parser, OF_A_RUN)
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the unit, and write nothing")
    parser.add_argument("--force", action="store_true", help="overwrite a unit that differs")


def run(args: argparse.Namespace) -> int:
    if args.run is None and args.profile is None:
        args.run = find_run(args).name
    chosen = choose(args)
    profile = chosen.profile or stored_with(chosen.run, [])
    command, place = command_of(chosen, args), Path.cwd()
    text = unit_text(chosen.run.name, profile, [*command, "--plain"], place, os.environ)
    if args.only_print:
        sys.stdout.write(text)
        return int(ExitCode.OK)
    file = folder() / unit_name(chosen.run.name)
    write(file, text, force=args.force)
    recipe = tmux_recipe(chosen.run.name, command, place)
    if args.json:
        sys.stdout.write(json.dumps({"unit": str(file), "command": command, "tmux": recipe.splitlines()}) + "\n")
    else:
        sys.stdout.write(what_next(file, recipe))
    return int(ExitCode.OK)


def folder() -> Path:
    """Where systemd looks for a user's units."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(given) if given else Path.home() / ".config") / "systemd/user"


def command_of(chosen: Chosen, args: argparse.Namespace) -> list[str]:
    """What starts the run, and goes on with it: a run that has begun has its profile in its store."""
    words = [*python.command("orchestrator"), "run", "--run", chosen.run.name]
    if args.runs != DEFAULT_RUNS:
        words += ["--runs", str(args.runs.absolute())]
    if args.profile:
        file = Path(args.profile)
        words += ["--profile", str(file.absolute()) if file.suffix == ".toml" else args.profile]
    for override in args.overrides:
        words += ["--set", override]
    return words


def write(file: Path, text: str, *, force: bool) -> None:
    """Raises LonghaulError (INPUT) if there is another unit of that name."""
    there = file.read_text(encoding="utf-8") if file.exists() else text
    if there != text and not force:
        raise LonghaulError(
            f"{file} is there already and differs",
            kept="the unit as it was",
            next_command="the same command with --force   (or --print, to compare)",
            exit_code=ExitCode.INPUT,
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    durable.write_file(file, text.encode())


def what_next(file: Path, recipe: str) -> str:
    """What to type, for a person."""
    name = shlex.quote(file.name)
    return (
        f"wrote {file}\n\n"
        "start it, also after each boot:\n"
        "  systemctl --user daemon-reload\n"
        f"  systemctl --user enable --now {name}\n"
        "  loginctl enable-linger            # it goes on after you log out\n\n"
        "look, and stop:\n"
        f"  systemctl --user status {name}\n"
        f"  journalctl --user -u {name} -f\n"
        f"  systemctl --user stop {name}      # finishes the step and saves\n\n"
        "without systemd, in tmux:\n" + "".join(f"  {line}\n" for line in recipe.splitlines())
    )
