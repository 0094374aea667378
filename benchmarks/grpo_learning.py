"""Tests that GRPO learns: the pocket model on word problems, with and without entropy mask and SENT.

Each run is `python -m orchestrator run --profile pocket-grpo` on two CPUs; `--parallel 6` runs six at a time, on 12.
Training minutes exclude validation, and with SENT the measurement of the problems; wall minutes include everything.

Others run only if named. `own` is rewarded by a function of the user's, `_reward.py`, in place of the verifier. `code`
trains the other built-in model to write small programs that pass tests in the sandbox (`_programs.py`); accuracy is the
share of held-out rows whose program passes all of them. `guess` and `calculator` are the built-in environments, where
it is the share of held-out episodes that earn 1. `random`, and all that end in `-random`, are controls: rewards are
random, and accuracy must not rise.

A run has risen if the 95 % interval of its last greedy accuracy lies above that of the untrained model. `to .9` is the
first validated step with a sampled accuracy (T=1) of at least 0.9. `kept` is the share of tokens with a gradient in the
previous 20 steps, `uniform` that of groups that taught nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _programs
from benchmarks._runs import Job, add_options, chosen, lanes_of, run_all

EPISODES = (
    'grpo.rewards=["environment"]',
    "sampling.max_completion_tokens=60",
    "optimizer.row_tokens=512",
    'validation.suites=["held-out"]',
)
GUESS = (*EPISODES, "grpo.environment.name=guess", "grpo.environment.max_turns=4", "data.tasks=", "data.held_out=0.2")
CALCULATOR = (*EPISODES, "grpo.environment.name=calculator", "grpo.environment.max_turns=6", "data.held_out=0.25")
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": ("grpo.entropy_mask=off", "grpo.sent.enabled=false"),
    "mask": ("grpo.entropy_mask=percentile", "grpo.sent.enabled=false"),
    "sent": ("grpo.entropy_mask=off", "grpo.sent.enabled=true"),
    "mask+sent": ("grpo.entropy_mask=percentile", "grpo.sent.enabled=true"),
    "own": (f'grpo.rewards=["{Path(__file__).parent / "_reward.py"}:accuracy"]',),
    "random": ("grpo.variants.random_rewards=true",),
    "code": (),
    "code-random": ("grpo.variants.random_rewards=true",),
    "guess": GUESS,
    "guess-random": (*GUESS, "grpo.variants.random_rewards=true"),
    "calculator": CALCULATOR,
    "calculator-random": (*CALCULATOR, "grpo.variants.random_rewards=true"),
}
ON_PROGRAMS = ("code", "code-random")
"""Variants with the rows and the model of `_programs.py`."""
COMPARED = ("plain", "mask", "sent", "mask+sent")
TASKS = ("ops1", "ops2", "ops3", "mean")
Curves = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""variant -> seed -> curve."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks grpo_learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, minutes=3.0)
    parser.add_argument("--read", type=Path, nargs="+", help="only show a table of the curves in these files")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=COMPARED)
    parser.add_argument("--profile", default="pocket-grpo", help="what to run (pocket-grpo)")
    args = parser.parse_args(arguments)
    curves = read(args.read) if args.read else run(args)
    shown = f"reproduce: python -m benchmarks grpo_learning {' '.join(arguments)}\n\n{tables(curves)}"
    print(shown)
    if args.json:
        args.json.write_text(json.dumps(curves, indent=1))
        args.json.with_suffix(".txt").write_text(shown + "\n")
    return int(not all(curve["points"] for seeds in curves.values() for curve in seeds.values()))


def run(args: argparse.Namespace) -> Curves:
    root = args.runs or Path(tempfile.mkdtemp(prefix="longhaul-grpo-learning-"))
    more = _programs.settings(root / "programs") if {*args.variants} & {*ON_PROGRAMS} else ()
    jobs = {
        (variant, seed): job_of(args, variant, seed, more if variant in ON_PROGRAMS else ())
        for seed in args.seeds
        for variant in args.variants
    }
    found = run_all(list(jobs.values()), lanes_of(args), args.minutes, root)
    return {variant: {str(seed): found[jobs[variant, seed].name] for seed in args.seeds} for variant in args.variants}


def read(paths: Sequence[Path]) -> Curves:
    """The curves of several `--json` files together."""
    curves: dict[str, dict[str, Any]] = {}
    for path in paths:
        for variant, seeds in json.loads(path.read_text()).items():
            curves.setdefault(variant, {}).update(seeds)
    return curves


def job_of(args: argparse.Namespace, variant: str, seed: int, more: Sequence[str] = ()) -> Job:
    settings = (f"run.seed={seed}", "run.device=cpu", *more, *VARIANTS[variant], *args.overrides)
    return Job(f"{args.profile}-{variant.replace('+', '-')}-{seed}", args.profile, settings)


def tables(curves: Curves) -> str:
    """The curves of all runs, then one line per run. (pure)"""
    return f"{courses(curves)}\n\n{outcomes(curves)}"


def courses(curves: Curves) -> str:
    """Held-out greedy accuracy by number of operations, about once a minute. (pure)"""
    tasks = "".join(f"{name:<20}" for name in TASKS)
    lines = [f"{'variant':<11} seed  step  train s  {tasks}T=1    worked  tokens  kept  uniform"]
    for variant, seed, curve in runs_of(curves):
        lines += [f"{variant:<11} {seed:>4} {line(entry)}" for entry in chosen(curve["points"])]
    return "\n".join(lines)


def runs_of(curves: Curves) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(variant, seed, curve) of each run. (pure)"""
    for variant, seeds in curves.items():
        for seed, curve in sorted(seeds.items()):
            yield variant, seed, curve


def line(entry: Mapping[str, Any]) -> str:
    before = entry["before"]
    means = f"  {before.get('kept_tokens', 1.0):.2f}  {before.get('uniform_share', 0.0):>6.2f}" if before else ""
    return scores(entry, TASKS) + means


def scores(entry: Mapping[str, Any], tasks: Sequence[str]) -> str:
    """One validation: step, training time, greedy accuracy by task, and means over the tasks. (pure)"""
    metrics = entry["metrics"]
    cells = "  ".join(cell(metrics[task]) if task in metrics else f"{'-':<18}" for task in tasks)
    parts = [name for name in metrics if name != "mean"]
    worked = sum(metrics[name]["worked_share"] for name in parts) / len(parts)
    tokens = sum(metrics[name]["mean_tokens"] for name in parts) / len(parts)
    sampled = metrics["mean"]["sampled_accuracy"]
    return f"{entry['step']:>5} {entry['training_s']:>8.0f}  {cells}  {sampled:.3f}  {worked:>6.2f}  {tokens:>6.1f}"


def cell(score: Mapping[str, float]) -> str:
    return f"{score['accuracy']:.3f} [{score['low']:.2f}, {score['high']:.2f}]"


def outcomes(curves: Curves) -> str:
    """Accuracy before and after, with intervals, and whether it rose. (pure)"""
    lines = [
        f"{'variant':<11} seed  {'before':<18}  {'after':<18}  risen  T=1 before  after  to .9  steps  train min  wall"
    ]
    for variant, seeds in curves.items():
        for seed, curve in sorted(seeds.items()):
            lines.append(f"{variant:<11} {seed:>4}  {outcome(curve)}")
        lines.append(f"{variant:<11}  all  {verdict(list(seeds.values()))}")
    return "\n".join(lines)


def outcome(curve: Mapping[str, Any]) -> str:
    if not curve["points"]:
        return f"no validation: {curve['state']} ({curve['reason']})"
    first, last = (curve["points"][n] for n in (0, -1))
    before, after = first["metrics"]["mean"], last["metrics"]["mean"]
    return (
        f"{cell(before)}  {cell(after)}  {'yes' if is_risen(curve) else 'NO':<5}  "
        f"{before['sampled_accuracy']:>10.3f}  {after['sampled_accuracy']:.3f}  {steps_to(curve, 0.9):>5}  "
        f"{last['step']:>5}  {curve['training_s'] / 60:>9.1f}  {curve['wall_s'] / 60:>4.1f}"
    )


def steps_to(curve: Mapping[str, Any], accuracy: float) -> str:
    """The first validated step with that sampled accuracy; a dash if there is none. (pure)"""
    found = [one["step"] for one in curve["points"] if one["metrics"]["mean"]["sampled_accuracy"] >= accuracy]
    return str(found[0]) if found else "-"


def is_risen(curve: Mapping[str, Any]) -> bool:
    """Whether the interval of the last greedy mean lies above that of the first. (pure)"""
    if not curve["points"]:
        return False
    first, last = (curve["points"][n]["metrics"]["mean"] for n in (0, -1))
    return bool(last["low"] > first["high"])


def verdict(curves: Sequence[Mapping[str, Any]]) -> str:
    risen = sum(is_risen(curve) for curve in curves)
    return f"{risen} of {len(curves)} seeds rose beyond their interval"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
