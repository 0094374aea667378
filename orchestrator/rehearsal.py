"""`run --dry-run` and `doctor --one-step`: run a profile, or a tiny form of it, end to end in a temporary run.

Everything is real: the master, the train and validation workers, and checkpoints that are verified and read back.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from orchestrator.commands import run as command
from orchestrator.display.screen import Screen
from orchestrator.display.wording import among, count, duration
from orchestrator.engine_check import check_engine
from orchestrator.preflight import examined, too_small
from orchestrator.run_directory import make_directory
from orchestrator.schedule import Stop
from orchestrator.streams import say
from profiles.errors import ExitCode, LonghaulError
from profiles.metrics import (
    ACCEPT_RATE,
    CLIP_FRACTION,
    ENTROPY,
    GRAD_NORM,
    KEPT_TOKENS,
    KL,
    LOSS,
    MISMATCH_MAX,
    REWARD,
    STAGE,
    TOKENS,
)
from profiles.rehearsal import one_step_of, rehearsal_of
from profiles.schema import Profile
from state import durable
from state.layout import RunDir
from state.lock import RunLock
from state.reader import Reader
from state.states import RunState

SHOWN = (
    REWARD,
    LOSS,
    GRAD_NORM,
    ENTROPY,
    KEPT_TOKENS,
    CLIP_FRACTION,
    KL,
    MISMATCH_MAX,
    ACCEPT_RATE,
    STAGE,
)
"""Metrics that best show whether an update happened, if the worker reports them."""


@dataclass(frozen=True)
class Rehearsal:
    """What is run in place of `profile`, and how it is told."""

    profile: Profile
    small: Profile
    title: str
    how: str
    again: str
    """The command that repeats it."""
    wanted: str
    """The profile as one types it after --profile."""
    untried: str
    """What it says nothing about; empty: nothing is left out."""


def dry_run(profile: Profile, runs: Path, wanted: str = "") -> int:
    """Rehearse `profile` and print a summary. After a failure, the temporary run stays and the error names its logs.

    runs: the folder of the real run. wanted: the profile as it was typed, by name or file.
    """
    wanted = shlex.quote(wanted or profile.name)
    tasks = profile.data.tasks
    has_data = isinstance(tasks, str) and bool(tasks) and Path(tasks).expanduser().exists()
    small = rehearsal_of(profile, has_data=has_data)
    data = "all of the data but a few rows" if small.data.tasks == tasks else "the files of data"
    return in_a_folder(
        Rehearsal(
            profile,
            small,
            "dry run",
            "small sizes and a tiny model, on the CPU",
            f"python -m orchestrator run --profile {wanted} --dry-run",
            wanted,
            f"the real weights, the GPU, its memory (plan computes that), {data}",
        ),
        runs,
    )


def one_step(profile: Profile, runs: Path, args: argparse.Namespace) -> int:
    """One step of `profile` itself with its checkpoint, under its launcher; otherwise as `dry_run`.

    args: of the command line, for the advice of a refusal. Raises LonghaulError.
    """
    verdict = examined(profile, args, is_new=True)
    check_engine(verdict.profile)
    if verdict.is_refused:
        raise too_small(verdict, args)
    return in_a_folder(
        Rehearsal(
            profile,
            one_step_of(verdict.profile),
            "one step",
            f"its own model, data and sizes, by the launcher {profile.launch.launcher}",
            f"python -m orchestrator doctor --one-step --profile {shlex.quote(args.profile)}",
            args.profile,
            "",
        ),
        runs,
    )


def in_a_folder(rehearsal: Rehearsal, runs: Path, take: Callable[[Reader], None] | None = None) -> int:
    """Rehearse in a temporary folder; where nodes of a cluster have to see it, among the runs. take: gets the store of
    a rehearsal that went well."""
    is_here = rehearsal.profile.launch.launcher == "local"
    if not is_here:
        durable.make_dir(runs)
    prefix = f"longhaul-{rehearsal.title.replace(' ', '-')}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=None if is_here else runs.absolute()))
    code = rehearse(rehearsal, folder, runs, take)
    shutil.rmtree(folder, ignore_errors=not is_here)  # a thread of the launcher may write there while it ends
    return code


def rehearse(rehearsal: Rehearsal, folder: Path, runs: Path, take: Callable[[Reader], None] | None = None) -> int:
    """Rehearse in a run directory below `folder`. Raises LonghaulError unless the run finishes."""
    profile, title = rehearsal.profile, rehearsal.title
    chosen = command.Chosen(RunDir(folder / "rehearsal"), rehearsal.small, is_new=True)
    assert chosen.profile is not None
    say(f"{title} of {profile.name}: {rehearsal.how}, in {folder}\n")
    make_directory(chosen.run)

    def end(run_dir: RunDir, reader: Reader, small: Profile, screen: Screen, ending: Stop) -> int:
        if ending.state is RunState.FAILED:
            return command.finish(run_dir, reader, small, screen, ending)  # which raises
        screen.close(among(runs, summary_of(rehearsal, run_dir, reader)))
        if ending.state is not RunState.FINISHED:
            raise LonghaulError(
                f"the {title} of {profile.name} ended early: {ending.reason}",
                kept=f"its files are in {folder}",
                next_command=rehearsal.again,
                exit_code=ExitCode.ABORTED if ending.state is RunState.STOPPED else ExitCode.INTERNAL,
            )
        if take is not None:
            take(reader)
        return int(ExitCode.OK)

    with ExitStack() as stack:
        stack.callback(RunLock.acquire(chosen.run).release)
        store = command.open_store(chosen)
        stack.callback(store.close)
        reader = Reader.open(chosen.run)
        stack.callback(reader.close)
        return command.drive(chosen.run, store, reader, chosen.profile, plain=True, end=end)


def summary_of(rehearsal: Rehearsal, run_dir: RunDir, reader: Reader) -> str:
    """A summary in a few lines."""
    profile = rehearsal.profile
    history, steps, validations = reader.history(), reader.steps(), reader.validations()
    tokens = sum(float(one.metrics.get(TOKENS.name, 0)) for one in steps)
    lines = [
        "",
        f"{rehearsal.title} of {profile.name}: done",
        f"steps        {len(steps)}, {count(tokens)} tokens trained on, {duration(history.training_s)}",
    ]
    if steps:
        lines.append(f"last step    {measures(steps[-1].metrics)}")
    lines += [
        f"checkpoint   {history.head.path if history.head else 'none'}, verified and read back",
        f"validations  {', '.join(f'{one.suite} at step {one.step} ({one.n} problems)' for one in validations)}",
        *([f"not tried    {rehearsal.untried}"] if rehearsal.untried else []),
        f"next         python -m orchestrator run --profile {rehearsal.wanted}",
    ]
    return "\n".join(lines)


def measures(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{one.label} {metrics[one.name]:.3g}" for one in SHOWN if one.name in metrics)
