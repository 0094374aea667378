"""`run --dry-run`: the path of a profile from end to end, with a tiny model on the CPU, in a run that is then gone.

Every process is a real one: master, train worker, validation worker, checkpoints that are verified and read back.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from orchestrator.commands import run as command
from orchestrator.display.screen import Screen
from orchestrator.display.wording import among, count, duration
from orchestrator.run_directory import make_directory
from orchestrator.schedule import Stop
from orchestrator.streams import say
from profiles.errors import ExitCode, LonghaulError
from profiles.rehearsal import rehearsal_of
from profiles.schema import Profile
from state.layout import RunDir
from state.lock import RunLock
from state.reader import Reader
from state.states import RunState

SHOWN = (
    "reward",
    "loss",
    "grad_norm",
    "entropy",
    "kept_tokens",
    "clip_fraction",
    "kl",
    "mismatch_max",
    "accept_rate",
    "stage",
)
"""Metrics that say most of whether an update was one, as far as the worker reports them."""


def dry_run(profile: Profile, runs: Path) -> int:
    """Rehearse `profile`; prints what was done. Where it fails, the temporary run stays and its logs are named.

    runs: where the run itself would lie.
    """
    folder = Path(tempfile.mkdtemp(prefix="longhaul-dry-run-"))
    code = rehearse(profile, folder, runs)
    shutil.rmtree(folder)
    return code


def rehearse(profile: Profile, folder: Path, runs: Path) -> int:
    """In a run directory below `folder`. Raises LonghaulError where the run does not end as it should."""
    chosen = command.Chosen(RunDir(folder / "rehearsal"), rehearsal_of(profile), is_new=True)
    assert chosen.profile is not None
    say(f"dry run of {profile.name}: small sizes and a tiny model, on the CPU, in {folder}\n")
    make_directory(chosen.run)

    def end(run_dir: RunDir, reader: Reader, small: Profile, screen: Screen, ending: Stop) -> int:
        if ending.state is RunState.FAILED:
            return command.finish(run_dir, reader, small, screen, ending)  # which raises
        screen.close(among(runs, summary_of(profile, run_dir, reader)))
        if ending.state is not RunState.FINISHED:
            raise LonghaulError(
                f"the dry run of {profile.name} ended early: {ending.reason}",
                kept=f"its files are in {folder}",
                next_command=f"python -m orchestrator run --profile {profile.name} --dry-run",
                exit_code=ExitCode.INTERNAL,
            )
        return int(ExitCode.OK)

    with ExitStack() as stack:
        stack.callback(RunLock.acquire(chosen.run).release)
        store = command.open_store(chosen)
        stack.callback(store.close)
        reader = Reader.open(chosen.run)
        stack.callback(reader.close)
        return command.drive(chosen.run, store, reader, chosen.profile, plain=True, end=end)


def summary_of(profile: Profile, run_dir: RunDir, reader: Reader) -> str:
    """What was done, in a few lines."""
    history, steps, validations = reader.history(), reader.steps(), reader.validations()
    tokens = sum(float(one.metrics.get("tokens", 0)) for one in steps)
    lines = [
        "",
        f"dry run of {profile.name}: done",
        f"steps        {len(steps)}, {count(tokens)} tokens trained on, {duration(history.training_s)}",
    ]
    if steps:
        lines.append(f"last step    {measures(steps[-1].metrics)}")
    lines += [
        f"checkpoint   {history.head.path if history.head else 'none'}, verified and read back",
        f"validations  {', '.join(f'{one.suite} at step {one.step} ({one.n} problems)' for one in validations)}",
        "not tried    the real weights, the GPU, its memory (run --plan computes that), the files of data",
        f"next         python -m orchestrator run --profile {profile.name}",
    ]
    return "\n".join(lines)


def measures(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {metrics[name]:.3g}" for name in SHOWN if name in metrics)
