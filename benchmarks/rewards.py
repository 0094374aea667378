"""Measures what slow reward functions add to a step of GRPO: seconds of steps with and without, in turns.

Each line is one run of `python -m orchestrator run` with 64 rollouts a step; --profile and --set choose the model and
the length of completions. `sleeps` waits for --sleep seconds for each rollout, as a call to another server would; the
others wait as long in other forms. `judge` is what a step waits for after its last token.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median

from state.history import StepFacts
from state.layout import RunDir
from state.reader import Reader

FUNCTIONS = """
import asyncio, time
SLEEP = {sleep}

def quick(problem, completion, facts):
    return 0.0

def sleeps(problem, completion, facts):
    time.sleep(SLEEP)
    return 0.0

async def awaits(problem, completion, facts):
    await asyncio.sleep(SLEEP)
    return 0.0

async def awaits_groups(completions, **columns):
    await asyncio.gather(*(asyncio.sleep(SLEEP) for _ in completions))
    return [0.0 for _ in completions]
"""
FORMS = ("", "quick", "sleeps", "awaits", "awaits_groups")
"""Functions beside the part `correct`; empty: none."""
ROWS = ("grpo.groups_per_step=8", "grpo.group_size=8", "optimizer.updates_per_step=1")
SKIPPED = 2
"""First steps of a run, which are slower."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks rewards", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="pocket-grpo", help="of GRPO, such as grpo-1.5b-8gb-debug (pocket-grpo)")
    parser.add_argument("--forms", nargs="+", choices=FORMS[1:], default=FORMS[1:], help="beside none (all)")
    parser.add_argument("--sleep", type=float, default=0.2, metavar="S", help="seconds for each rollout (0.2)")
    parser.add_argument("--steps", type=int, default=12, help="steps of each run (12)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each form, in turns (2)")
    parser.add_argument("--threads", type=int, default=64, help="grpo.reward.threads (64)")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    args = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="longhaul-rewards-"))
    (folder / "my_rewards.py").write_text(FUNCTIONS.format(sleep=args.sleep))
    found: dict[str, list[StepFacts]] = {form: [] for form in ("", *args.forms)}
    for number in range(args.rounds):
        for form in found:
            found[form] += steps_of(folder, f"{form or 'none'}-{number}".replace("_", "-"), form, args)
    print(f"reproduce: python -m benchmarks rewards {' '.join(sys.argv[2:])}\n")
    print(f"{'function':<15}{'step s':>8}{'rollout':>9}{'judge':>8}{'update':>8}{'longer':>9}")
    base = median(one.seconds for one in found[""])
    for form, steps in found.items():
        whole = median(one.seconds for one in steps)
        parts = [median(one.metrics.get(f"seconds/{stage}", 0.0) for one in steps) for stage in STAGES]
        print(
            f"{form or 'none':<15}{whole:>8.2f}{parts[0]:>9.2f}{parts[1]:>8.2f}{parts[2]:>8.2f}{whole / base - 1:>9.0%}"
        )
    return 0


STAGES = ("rollout", "judge", "update")


def steps_of(folder: Path, name: str, form: str, args: argparse.Namespace) -> list[StepFacts]:
    """The steps of one run, without the first ones."""
    rewards = ["correct", f"{folder}/my_rewards.py:{form}"] if form else ["correct"]
    settings = [
        f"grpo.rewards={rewards}".replace("'", '"'),
        f"grpo.reward.threads={args.threads}",
        f"run.steps_per_cycle={args.steps}",
        "run.max_cycles=1",
        "validation.examples_per_task=12",
        *ROWS,
        *args.overrides,
    ]
    command = [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", args.profile, "--run", name]
    command += ["--runs", str(folder), *(word for setting in settings for word in ("--set", setting))]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    with closing(Reader.open(RunDir(folder / name))) as reader:
        return list(reader.steps(1_000_000))[SKIPPED:]
