"""The argument tree. A command's module is imported when it is chosen, so that --help starts in a blink."""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator import packages, path_errors, streams
from orchestrator.display.wording import DEFAULT_RUNS, among, harmless, not_text
from orchestrator.signals import SIGNALS
from profiles.errors import ExitCode, LonghaulError
from state.layout import name_problem

COMMANDS = {
    "run": "start or resume a run; without a profile the newest unfinished one, else the pocket model",
    "stop": "finish the step, checkpoint and stop",
    "checkpoint": "make a durable checkpoint at the end of the current step, without stopping",
    "status": "where a run stands",
    "top": "the dashboard of a run that another terminal started",
    "recover": "make the store of a run again from the files beside it, where it was lost or damaged",
    "doctor": "whether this machine can carry a run, check by check, each with its remedy",
    "evaluate": "score a checkpoint or a model directory on held-out suites",
    "data": "import, merge, count, show and export tasks; each one that enters a data set is run again",
    "generate": "complete a prompt with a checkpoint or a model directory, or talk to it; the text comes as it is made",
    "export": "write a checkpoint for other programs: its adapter, a merged model, or one that llama.cpp can convert",
    "report": "write report.html: curves, cycles, examples",
}
"""Name -> the first line of its module's docstring, in lower case; a test compares them."""


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator",
        description="Longhaul: reinforcement learning of reasoning models, for days, on your own hardware.",
        epilog="Exit codes are listed in docs/operations.md.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help_line in COMMANDS.items():
        commands.add_parser(name, help=help_line, add_help=False)
    return parser


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, object]:
    """The chosen command's arguments and its module. Exits with 2 on a wrong command line.

    Raises LonghaulError: INPUT where a package that it needs is not installed, USAGE for an impossible run's name.
    """
    known, rest = build_parser().parse_known_args(arguments)
    packages.check(known.command)
    module = importlib.import_module(f"orchestrator.commands.{known.command}")
    parser = argparse.ArgumentParser(
        prog=f"python -m orchestrator {known.command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", metavar="NAME", help="name of the run (default: the newest, or the profile's name)")
    parser.add_argument("--runs", metavar="DIR", type=Path, default=DEFAULT_RUNS, help="folder of all runs (./runs)")
    parser.add_argument("--json", action="store_true", help="print facts as JSON")
    module.add_arguments(parser)
    args = parser.parse_args(rest)
    if args.run is not None:
        refuse_name(args.run)
    return args, module


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
        code = int(module.run(args))  # type: ignore[attr-defined]
    except LonghaulError as error:
        code = print_error(error, runs)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # `| head -1` has seen enough
        streams.silence(sys.stdout)
        code = 0
    except Exception as error:
        failure = path_errors.failure_of(error) or _unwritten_if_full(error)
        if failure is None:
            raise
        code = print_error(failure, runs)
    lost = streams.settle()
    if lost is not None and code == ExitCode.OK and given[:1] != ["run"]:  # a run says nothing; its log has it all
        return print_error(unwritten(lost), runs)
    return code


def _unwritten_if_full(error: Exception) -> LonghaulError | None:
    return unwritten(error) if isinstance(error, OSError) and error.errno in FULL else None


def unwritten(error: OSError) -> LonghaulError:
    """What a command found could not be written: a full disk behind `>`. (pure)"""
    return LonghaulError(
        f"the output cannot be written: {error.strerror}",
        kept="everything; only the output is lost",
        next_command="the same command, with its output elsewhere",
        exit_code=ExitCode.DISK,
    )


def refuse_other_bytes(words: Sequence[str]) -> None:
    """Raises LonghaulError (USAGE) where a word is not UTF-8: no worker's spec, no store and no terminal takes it."""
    if place := next(filter(None, map(not_text, words)), ""):
        raise LonghaulError(
            f"an argument on the command line is not UTF-8, at �: {place}",
            kept="everything; nothing was started",
            next_command="the same command in UTF-8   (`locale` says what this terminal sends)",
            exit_code=ExitCode.USAGE,
        )


def refuse_name(name: str) -> None:
    """Raises LonghaulError (USAGE) for the name of a run that would lead out of the folder of all runs, or nowhere."""
    if problem := name_problem(name):
        shown = harmless(name if len(name) <= 60 else f"{name[:57]}...")
        raise LonghaulError(
            f"no run can be named '{shown}': {problem}",
            kept="everything; nothing was started",
            next_command="the same command with a name like night-1   (printable, without '/')",
            exit_code=ExitCode.USAGE,
        )


def print_error(error: LonghaulError, runs: Path) -> int:
    """Its three lines on standard error; returns its exit code."""
    with suppress(OSError):  # the terminal may be gone; the exit code still says it
        print(among(runs, error.render()), file=sys.stderr)  # noqa: T201
    return int(error.exit_code)
