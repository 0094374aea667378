"""Tests that the path of the large profiles learns on one GPU: NF4, adapters, captured steps, kill -9 in the middle.

Pretrains a Qwen3 of 55 million parameters on both languages of the pocket models, within the minutes that are given.
Then it trains an adapter over that base in 4 bits, through the real daemon: by self-play on the little language, and by
GRPO on word problems. Each run has a control whose rewards are random. In the middle of each run that is not a control,
the master is killed with SIGKILL and started again.

Held-out problems were never in the corpus. A run has risen if the 95 % interval of its last greedy accuracy lies above
that of the untrained model, which is step 0. The exit code is 1 if a run has not risen, or if a control has.

    python -m benchmarks gpu_learning                              all of it, one run after another
    python -m benchmarks gpu_learning --parallel 4 --runs DIR      four at a time; again: with the model in DIR
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks._runs import Job, command_of, curve_or_why_not
from benchmarks.grpo import gpu_facts
from benchmarks.grpo_learning import Curves, cell, is_risen, runs_of, scores
from profiles.errors import LonghaulError
from state.layout import RunDir
from state.reader import Reader

SHAPE = {
    "family": "qwen3",
    "hidden": 512,
    "layers": 14,
    "heads": 8,
    "kv-heads": 4,
    "head-dim": 128,
    "feed-forward": 1536,
}
"""Half of Qwen3-0.6B's width and depth."""
PRETRAINING = {"course": "both", "batch-size": 512, "corpus-sequences": 1_500_000, "direct-weight": 0.03}
POLL_S = 0.5


@dataclass(frozen=True)
class Kind:
    """profile: what it starts from. settings: of its own. control: rewards are random."""

    profile: str
    settings: tuple[str, ...] = ()
    control: bool = False


SELF_PLAY = ("run.steps_per_cycle=20",)
GRPO = ("run.steps_per_cycle=40", "run.max_cycles=8")
"""GRPO solves every held-out problem after 40 steps; with an end it leaves the GPU to self-play."""
KINDS = {
    "self-play": Kind("pocket", SELF_PLAY),
    "self-play-random": Kind("pocket", (*SELF_PLAY, "azr.variants.random_rewards=true"), control=True),
    "grpo": Kind("pocket-grpo", GRPO),
    "grpo-random": Kind("pocket-grpo", (*GRPO, "grpo.variants.random_rewards=true"), control=True),
}


def settings(model: Path, device: str) -> tuple[str, ...]:
    """What each run has of a large profile. (pure)"""
    return (
        f"model.path={model}",
        "model.dtype=bfloat16",
        "model.quantization=nf4",
        "model.gradient_checkpointing=true",
        "adapter.rank=32",
        "adapter.alpha=64.0",
        f"run.device={device}",
        "run.checkpoint_every=10",
        "sampling.engine=native",
        "optimizer.learning_rate=3e-4",
        "optimizer.final_learning_rate=3e-5",
        "optimizer.micro_batch_size=16",
        "optimizer.row_tokens=1024",
        "memory.cap_gib=7.6",  # all of it fits an 8 GB card
    )


def main(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    root = args.runs or Path(tempfile.mkdtemp(prefix="longhaul-gpu-learning-"))
    root.mkdir(parents=True, exist_ok=True)
    model = args.model or root / "model"
    shown = [f"reproduce: python -m benchmarks gpu_learning {' '.join(arguments)}", gpu_facts() or "no NVIDIA GPU"]
    print("\n".join(shown), flush=True)
    if not (model / "config.json").exists():
        shown.append(pretrain(model, args))
        print(shown[-1], flush=True)
    jobs = {
        (kind, seed): Job(
            f"{kind}-{seed}",
            KINDS[kind].profile,
            (f"run.seed={seed}", *settings(model.absolute(), args.device), *KINDS[kind].settings, *args.overrides),
        )
        for seed in args.seeds
        for kind in args.kinds
    }
    curves: dict[str, dict[str, Any]] = {kind: {} for kind in args.kinds}
    with ThreadPoolExecutor(args.parallel) as pool:
        running = {pool.submit(run, job, root, args.minutes, KINDS[key[0]]): key for key, job in jobs.items()}
        for done in as_completed(running):  # written at each end: a call that is cut off keeps what it has
            kind, seed = running[done]
            curves[kind][str(seed)] = done.result()
            if args.json:
                args.json.write_text(json.dumps(curves, indent=1))
                args.json.with_suffix(".txt").write_text("\n".join([*shown, tables(curves)]) + "\n")
    print(tables(curves))
    return int(not all(is_as_wanted(kind, curve) for kind, _, curve in runs_of(curves)))


def parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser("python -m benchmarks gpu_learning", description=__doc__, formatter_class=plain)
    add = made.add_argument
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="the runs (all)")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--pretraining", type=float, default=6.0, metavar="MINUTES", help="of training the base (%(default)g)")
    add("--minutes", type=float, default=5.0, help="of training in each run, validations excluded (%(default)g)")
    add("--parallel", type=int, default=1, metavar="N", help="runs at a time on the GPU (%(default)s)")
    add("--device", default="cuda")
    add("--model", type=Path, help="this model in place of a pretrained one")
    add("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    add("--runs", type=Path, metavar="DIR", help="keep model and runs there")
    add("--json", type=Path, help="also write all curves to this file, and the tables to FILE.txt")
    return made


def pretrain(model: Path, args: argparse.Namespace) -> str:
    """Makes the model; returns how. Exits with its output if it fails."""
    options = {**SHAPE, **PRETRAINING, "minutes": args.pretraining, "device": args.device, "out": model}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    # The gate is that of the shipped models, which are far smaller. Here the curves show what there is to learn.
    command = [sys.executable, "-m", "workers.pocket.pretrain", *words, "--ship-anyway"]
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not (model / "config.json").exists():
        raise SystemExit(f"pretraining ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return f"{done.stdout}pretrained in {time.monotonic() - began:.0f} s, corpus included"


def run(job: Job, root: Path, minutes: float, kind: Kind) -> dict[str, Any]:
    """The curve of one run; `killed_at` is the step after which its master was killed, if it was."""
    command = command_of(job, root, (f"run.max_hours={minutes / 60}", *job.settings))
    killed_at = None
    with (root / f"{job.name}.log").open("ab") as log:
        master = start(command, log)
        if not kind.control:
            while master.poll() is None and progress(root / job.name)[1] < minutes * 30:
                time.sleep(POLL_S)
            if master.poll() is None:
                os.kill(master.pid, signal.SIGKILL)
                master.wait()
                killed_at = progress(root / job.name)[0]
                master = start(command, log)
        master.wait()
    curve = curve_or_why_not(root, job) | {"killed_at": killed_at}
    print(f"{job.name}: {curve['state']}", file=sys.stderr, flush=True)
    return curve


def start(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def progress(directory: Path) -> tuple[int, float]:
    """(last step, seconds of training) of a run; zeros before it has a store."""
    with suppress(LonghaulError):
        reader = Reader.open(RunDir(directory))
        try:
            last = reader.steps(1)
            return (last[-1].step if last else 0), reader.history().training_s
        finally:
            reader.close()
    return 0, 0.0


def tables(curves: Curves) -> str:
    """Each validation of each run, then one line per run. (pure)"""
    return f"{courses(curves)}\n\n{outcomes(curves)}"


def courses(curves: Curves) -> str:
    """Held-out greedy accuracy of each validation, with 95 % intervals. (pure)"""
    lines = []
    for kind, seed, curve in runs_of(curves):
        if points := curve["points"]:
            tasks = in_order(points[0]["metrics"])
            heads = "".join(f"{name:<20}" for name in tasks)
            lines.append(f"{'run':<16} seed  step  train s  {heads}T=1    worked  tokens")
            lines += [f"{kind:<16} {seed:>4} {scores(point, tasks)}" for point in points]
    return "\n".join(lines)


def in_order(metrics: Mapping[str, Any]) -> list[str]:
    """The tasks, and their mean last. (pure)"""
    return [*(name for name in metrics if name != "mean"), "mean"]


def outcomes(curves: Curves) -> str:
    """Accuracy before and after, and whether the run did what it should. (pure)"""
    lines = [f"{'run':<16} seed  {'untrained':<18}  {'trained':<18}  risen  steps  s a step  killed after step"]
    for kind, seed, curve in runs_of(curves):
        lines.append(f"{kind:<16} {seed:>4}  {outcome(curve)}{'' if is_as_wanted(kind, curve) else '   WRONG'}")
    return "\n".join(lines)


def outcome(curve: Mapping[str, Any]) -> str:
    if not curve["points"]:
        return f"no validation: {curve['state']} ({curve['reason']})"
    first, last = (curve["points"][place] for place in (0, -1))
    before, after = (cell(point["metrics"]["mean"]) for point in (first, last))
    step_s = last["training_s"] / max(1, last["step"])
    risen = "yes" if is_risen(curve) else "no"
    return f"{before}  {after}  {risen:<5}  {last['step']:>5}  {step_s:>8.2f}  {curve['killed_at'] or '-'}"


def is_as_wanted(kind: str, curve: Mapping[str, Any]) -> bool:
    """Whether a run has risen, or a control has not. (pure)"""
    return bool(curve["points"]) and is_risen(curve) != KINDS[kind].control


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
