"""Parses the command line. Imports only the chosen command's module, so that --help is fast."""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator import packages, path_errors, streams
from orchestrator.display.wording import DEFAULT_RUNS, among, harmless, not_text
from orchestrator.examples import epilog
from orchestrator.signals import SIGNALS
from profiles.errors import ExitCode, LonghaulError
from state.layout import name_problem

COMMANDS = {
    "init": "begin a job on your own data: write a profile and a reward file, try them, and say how to start",
    "run": "start or resume a run; without a profile the newest unfinished one, else the pocket model",
    "plan": "tell what a profile needs and what would fit; or what is wrong with a YAML of open-instruct, in numbers",
    "stop": "finish the step, checkpoint and stop",
    "checkpoint": "make a durable checkpoint at the end of the current step, without stopping",
    "pause": "pause a run after its current step; it stays paused until `resume`",
    "resume": "go on with a paused run",
    "validate": "score the model on the held-out problems after the current step, without waiting for the cycle's end",
    "cycles": "show how many cycles a run has left, or change it: `cycles +2`, `cycles -1`, `cycles 40`, `cycles none`",
    "status": "show where a run stands",
    "explain": "say in plain sentences whether a run lives and learns, what limits it, and what to do next",
    "logs": "show the last lines of a run's log, and follow it",
    "compare": "compare runs: figures and curves, a paired test on held-out problems, differences of the profiles",
    "events": "show the newest events of a run, or those that contain a text",
    "samples": "show what the model wrote lately: tasks with their programs, and rollouts with verdict and reward",
    "metrics": "show the metrics of a run's newest steps by name: last value, mean, curve",
    "top": "show the dashboard of a run started in another terminal, and steer it with the same keys",
    "web": "serve a page of all runs: curves, events, tasks and rollouts, live, for a browser or a phone",
    "recover": "rebuild a lost or damaged store from its newest back-up and the run's files",
    "backup": "copy a run into a folder, also while it trains; `restore` makes a run of the copy",
    "restore": "make a run of a back-up or an archive, after every byte was checked",
    "archive": "pack a run into one file for another machine, also while it trains",
    "prune": "delete old checkpoints of a stopped run, and say which",
    "doctor": "check whether this machine, or a cluster's nodes, can run a profile, and say how to fix each problem",
    "evaluate": "score a checkpoint or a model directory on held-out suites",
    "data": "import, merge, count, show and export tasks; every task added to a data set is verified again",
    "rewards": "test reward functions of your own on rows and completions, and say what most often goes wrong",
    "generate": "complete a prompt, or chat, with a checkpoint or a model directory; the text is streamed",
    "export": "export a checkpoint as an adapter, a merged model, or a model that llama.cpp can convert",
    "report": "write report.html with curves, cycles and examples; of several runs, a page that compares them",
    "notify": "show the messages that a run has sent; `--test` tries every target",
    "service": "write a systemd user unit that starts a run and keeps it alive, and print a recipe for tmux",
    "completion": "print a script that completes commands, options, runs, profiles and knobs in bash, zsh or fish",
}
"""Name -> the first line of its module's docstring, in lower case; a test compares them."""


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator",
        description="Longhaul: train reasoning models with reinforcement learning for days, on your own hardware.",
        epilog="Exit codes are listed in docs/operations.md.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help_line in COMMANDS.items():
        commands.add_parser(name, help=help_line, add_help=False)
    return parser


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Any]:
    """Parse the chosen command's arguments and import its module. Exits with 2 on a wrong command line.

    Raises LonghaulError: INPUT if a package it needs is not installed, USAGE for an invalid run name.
    """
    known, rest = build_parser().parse_known_args(arguments)
    packages.check(known.command)
    parser, module = parser_of(known.command)
    args = parser.parse_args(rest)
    if args.run is not None:
        refuse_name(args.run)
    return args, module


def parser_of(command: str) -> tuple[argparse.ArgumentParser, Any]:
    """The parser of a command's arguments, and its module, which this imports."""
    module: Any = importlib.import_module(f"orchestrator.commands.{command}")
    parser = argparse.ArgumentParser(
        prog=f"python -m orchestrator {command}",
        description=module.__doc__,
        epilog=epilog(command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", metavar="NAME", help="name of the run (default: the newest, or the profile's name)")
    parser.add_argument("--runs", metavar="DIR", type=Path, default=DEFAULT_RUNS, help="folder of all runs (./runs)")
    parser.add_argument("--json", action="store_true", help="print facts as JSON")
    module.add_arguments(parser)
    return parser, module


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    runs = DEFAULT_RUNS
    if given[:1] == ["run"]:
        SIGNALS.install()
    try:
        refuse_other_bytes(given)
        args, module = parse(given)
        runs = args.runs
        code = int(module.run(args))
    except LonghaulError as error:
        code = print_error(error, runs)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # as in `| head -1`
        streams.silence(sys.stdout)
        code = 0
    except Exception as error:
        failure = _unwritten_if_full(error) or path_errors.failure_of(error)
        if failure is None:
            raise
        code = print_error(failure, runs)
    lost = streams.settle()
    if lost is not None and code == ExitCode.OK and given[:1] != ["run"]:  # a run has everything in its log
        return print_error(unwritten(lost), runs)
    return code


def _unwritten_if_full(error: Exception) -> LonghaulError | None:
    """Of a full disk, an error without a path is one of our own output: files are named."""
    return unwritten(error) if isinstance(error, OSError) and error.errno in FULL and not error.filename else None


def unwritten(error: OSError) -> LonghaulError:
    """The output could not be written, for example to a full disk behind `>`. (pure)"""
    return LonghaulError(
        f"the output cannot be written: {error.strerror}",
        kept="everything; only the output is lost",
        next_command="the same command, with its output sent elsewhere",
        exit_code=ExitCode.DISK,
    )


def refuse_other_bytes(words: Sequence[str]) -> None:
    """Raises LonghaulError (USAGE) for an argument that is not UTF-8: specs and the store cannot hold it."""
    if place := next(filter(None, map(not_text, words)), ""):
        raise LonghaulError(
            f"an argument on the command line is not UTF-8, at �: {place}",
            kept="everything; nothing was started",
            next_command="the same command in UTF-8   (`locale` shows this terminal's encoding)",
            exit_code=ExitCode.USAGE,
        )


def refuse_name(name: str) -> None:
    """Raises LonghaulError (USAGE) for an invalid run name, such as one that leads out of the folder of all runs."""
    if problem := name_problem(name):
        shortened = harmless(name if len(name) <= 60 else f"{name[:57]}...")
        raise LonghaulError(
            f"no run can be named '{shortened}': {problem}",
            kept="everything; nothing was started",
            next_command="the same command with a name like night-1   (printable, without '/')",
            exit_code=ExitCode.USAGE,
        )


def print_error(error: LonghaulError, runs: Path) -> int:
    """Print the error to standard error and return its exit code."""
    with suppress(OSError):  # the terminal may be gone
        print(among(runs, error.render()), file=sys.stderr)  # noqa: T201
    return int(error.exit_code)
