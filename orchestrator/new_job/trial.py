"""Tries a written profile as a person would: the plan, the rows as the model will see them, and a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.new_job.settings import Job
from orchestrator.signals import SIGNALS
from orchestrator.streams import say
from profiles.errors import ExitCode, LonghaulError

INTERRUPTED = 130


def tried(job: Job, runs: Path, card: str, *, with_dry_run: bool) -> int:
    """The exit code of the first command that refuses, or 0. card: GB to plan for; empty: what is here.

    Raises LonghaulError, which says that the files stay.
    """
    file, among_runs = str(job.profile_file), ["--runs", str(runs)]
    steps = [("plan", ["plan", "--profile", file, *(["--card", card] if card else [])])]
    steps.append(("data preview", ["data", "preview", "--profile", file]))
    if with_dry_run:
        steps.append(("dry run", ["run", "--profile", file, "--dry-run", "--plain"]))
    try:
        for title, words in steps:
            say(f"\n-- {title}\n")
            if title == "dry run":
                SIGNALS.install()
            if code := _command([*words, *among_runs]):
                return code
    except LonghaulError as error:
        if error.exit_code == ExitCode.ABORTED:
            say(f"\n{error.what}; {_files(job)} are complete\n")
            return INTERRUPTED
        kept = f"{_files(job)}; {error.kept}"
        raise LonghaulError(
            error.what, kept=kept, next_command=error.next_command, exit_code=error.exit_code
        ) from error
    return int(ExitCode.OK)


def _command(words: Sequence[str]) -> int:
    from orchestrator.cli import parse  # it imports this command

    args, module = parse(words)
    return int(module.run(args))


def _files(job: Job) -> str:
    return f"{job.profile_file} and {job.reward_file}"
