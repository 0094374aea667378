"""Self-play's heavy work on one and several GPUs of this host: time, memory of each rank, and equal losses.

Each number of GPUs has its own process, which starts followers as a worker does. A step is rollouts at full length from
random prompts, then an update over random rows. The rows do not depend on the number of GPUs, so losses and gradient
norms must agree up to rounding. The first step, which compiles and captures kernels, is not timed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from profiles.footprint import GIB
from profiles.load import load_profile
from profiles.schema import Profile
from profiles.task_kinds import ABDUCTION
from workers.process import leave

LEARNING_RATE = 1e-3
"""Large enough for a wrong step to show in the next loss."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ranks", description=__doc__)
    parser.add_argument("--profile", default="azr-3b-qlora", help="a self-play profile; on a CPU its -debug twin")
    parser.add_argument(
        "--shape", default="qwen2.5-3b", help="random weights of this shape; `as-is`: the profile's own model"
    )
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override one knob")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts per step, four per prompt")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--completion", type=int, default=256, help="tokens of a completion")
    parser.add_argument("--steps", type=int, default=2, help="timed steps, after one untimed")
    parser.add_argument("--inside", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.inside:
        print(json.dumps(measured(args, args.inside)))
        leave(0)  # as a worker does: NCCL's own teardown waits for ranks that have ended
    print(f"reproduce: python -m benchmarks ranks {' '.join(arguments)}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="longhaul-shape-") as folder:
        made = [] if args.shape == "as-is" else ["--model", made_once(args.shape, folder)]
        reports = []
        for gpus in args.gpus:
            reports.append(in_a_process([*arguments, *made], gpus))
            print_report(reports[-1])
    if all("error" not in report for report in reports) and len(reports) > 1:
        compare(reports)
    return int(any("error" in report for report in reports))


def made_once(shape: str, folder: str) -> str:
    """Create the model directory once, because generating billions of weights takes longer than the measurement.

    In a process of its own, which leaves no memory of a GPU taken. A GPU draws in seconds what takes a core minutes.
    """
    code = (
        "import sys, torch; from pathlib import Path; from workers.models import random_init\n"
        "with torch.device('cuda' if torch.cuda.is_available() else 'cpu'):\n"
        "    random_init.write(sys.argv[1], 0, 'bfloat16', Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", code, shape, folder], check=True)
    return folder


def in_a_process(arguments: list[str], gpus: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", "ranks", *arguments, "--inside", str(gpus)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode or not done.stdout.strip():
        return {"gpus": gpus, "error": f"the process ended with {done.returncode}; its output is above"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def profile_of(args: argparse.Namespace, gpus: int) -> Profile:
    shape = [f"model.path={args.model}"] if args.model else []
    sizes = [f"sampling.max_prompt_tokens={args.prompt}", f"sampling.max_completion_tokens={args.completion}"]
    learns = [f"optimizer.learning_rate={LEARNING_RATE}", "optimizer.warmup_steps=0"]
    return load_profile(args.profile, [*shape, *sizes, *learns, *args.set, f"run.gpus={gpus}"]).profile


def measured(args: argparse.Namespace, gpus: int) -> dict[str, Any]:
    """Time and memory of this process and its followers."""
    from workers.azr.replica import Apply, AzrReplica
    from workers.environment import set_environment
    from workers.rank_group.calls import Rest, TakeFigures
    from workers.rank_group.leader import RankGroup

    set_environment()
    profile = profile_of(args, gpus)
    with tempfile.TemporaryDirectory(prefix="longhaul-ranks-") as folder:
        rank_group = RankGroup(attempt_in(Path(folder), profile))
        with rank_group:
            began = time.perf_counter()
            rank_group.start(None)
            replica = rank_group.lead(AzrReplica, None)
            steps, load_s = [], time.perf_counter() - began
            vocabulary = replica.model.config.vocab_size
            for step in range(1, args.steps + 2):
                requests, how = requests_of(args, vocabulary, step)
                rows, advantages = rows_of(args, vocabulary, step)
                began = time.perf_counter()
                with replica.memory.phase("rollout"):
                    rank_group.engine.generate(requests, how)
                rank_group.call(Rest())
                rollout_s, began = time.perf_counter() - began, time.perf_counter()
                with replica.memory.phase("train"):
                    is_finite, learned = rank_group.call(Apply(step, rows, advantages))[0]
                update_s = time.perf_counter() - began
                steps.append(
                    {
                        "rollout_s": rollout_s,
                        "update_s": update_s,
                        "finite": is_finite,
                        "memory": [figures.metrics for figures in rank_group.call(TakeFigures())],
                    }
                    | {name: learned[name] for name in ("loss", "grad_norm", "entropy", "mismatch_mean")}
                )
            return {
                "gpus": gpus,
                "device": device_name(replica),
                "load_s": load_s,
                "steps": steps,
                "tokens": args.rollouts * args.completion,
            }


def attempt_in(root: Path, profile: Profile) -> Any:
    """An attempt without a master."""
    import msgspec

    from workers.contract import WorkerSpec
    from workers.control import Control
    from workers.runtime import Attempt

    spec = WorkerSpec(
        run_id="benchmark",
        run_dir=str(root),
        role="train",
        cycle=1,
        attempt=1,
        token="ranks",
        attempt_dir="attempt",
        first_step=1,
        end_step=2,
        head=None,
        profile=profile,
        profile_sha256="",
    )
    (root / "attempt").mkdir()
    (root / "attempt" / "spec.json").write_bytes(msgspec.json.encode(spec))
    return Attempt(spec, Control(None, "ranks"))


def device_name(replica: Any) -> str:
    import torch

    return torch.cuda.get_device_name() if replica.model.device.type == "cuda" else "cpu"


def requests_of(args: argparse.Namespace, vocabulary: int, step: int) -> tuple[list[Any], Any]:
    from workers.rollout.engine import Request, Sampling

    draws = random.Random(step)
    prompts = [ids(args.prompt, vocabulary, draws) for _ in range(-(-args.rollouts // 4))]
    how = Sampling(max_new_tokens=args.completion, ignore_stop=True)
    return [Request(prompts[number // 4], number) for number in range(args.rollouts)], how


def rows_of(args: argparse.Namespace, vocabulary: int, step: int) -> tuple[list[Any], list[float]]:
    from workers.azr.rows import Row

    draws = random.Random(1000 + step)
    prompts = [ids(args.prompt, vocabulary, draws) for _ in range(-(-args.rollouts // 4))]
    rows = [
        Row(
            task=ABDUCTION,
            role="solve",
            group=number // 4,
            prompt_ids=prompts[number // 4],
            completion_ids=ids(args.completion, vocabulary, draws),
            log_probs=(-12.0,) * args.completion,
            finish_reason="length",
            reward=0.0,
        )
        for number in range(args.rollouts)
    ]
    return rows, [draws.choice((-1.0, 1.0)) for _ in rows]


def ids(length: int, vocabulary: int, draws: random.Random) -> tuple[int, ...]:
    return tuple(draws.randrange(vocabulary) for _ in range(length))


def print_report(report: dict[str, Any]) -> None:
    if "error" in report:
        print(f"{report['gpus']} GPUs: {report['error']}\n")
        return
    print(f"{report['gpus']} x {report['device']}, loaded in {report['load_s']:.1f} s")
    print("  step   rollouts s   tokens/s   update s   step s           loss   gradient norm")
    for number, step in enumerate(report["steps"]):
        rollout, update = step["rollout_s"], step["update_s"]
        print(
            f"  {number or 'first':>5}   {rollout:>9.2f}   {report['tokens'] / rollout:>8.0f}   {update:>8.2f}   "
            f"{rollout + update:>6.2f}   {step['loss']:>12.6f}   {step['grad_norm']:>12.6f}"
            + ("" if step["finite"] else "   NOT FINITE")
        )
    for rank in range(report["gpus"]):
        print(f"  peak of rank {rank}: {peaks([step['memory'][rank] for step in report['steps']])}")
    print(flush=True)


def peaks(figures: list[dict[str, float]]) -> str:
    """Peak memory by phase in GiB: allocated on the GPU, or of this process without a GPU."""
    found: dict[str, float] = {}
    for one in figures:
        for name, value in one.items():
            _, phase, what = name.split("/")
            if what in ("allocated", "host"):
                found[phase] = max(found.get(phase, 0.0), value)
    return ", ".join(f"{phase} {value / GIB:.2f} GiB" for phase, value in found.items())


def compare(reports: list[dict[str, Any]]) -> None:
    first = reports[0]

    def mean(report: dict[str, Any], name: str) -> float:
        return sum(float(step[name]) for step in report["steps"][1:]) / max(1, len(report["steps"]) - 1)

    for other in reports[1:]:
        worst = {
            name: max(
                abs(a[name] - b[name]) / max(abs(a[name]), 1e-12)
                for a, b in zip(first["steps"], other["steps"], strict=True)
            )
            for name in ("loss", "grad_norm")
        }
        faster = {name: mean(first, name) / mean(other, name) for name in ("rollout_s", "update_s")}
        share = {name: one * first["gpus"] / other["gpus"] for name, one in faster.items()}
        print(
            f"{other['gpus']} beside {first['gpus']}: rollouts {faster['rollout_s']:.2f} times as fast "
            f"({share['rollout_s']:.0%} efficient), updates {faster['update_s']:.2f} times ({share['update_s']:.0%}); "
            f"losses differ by {worst['loss']:.2%} at most, gradient norms by "
            f"{worst['grad_norm']:.2%}"
        )
