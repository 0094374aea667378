"""Memory and time of a profile's real shapes with random weights, by phase, within the memory of its card.

Each profile runs in its own process: load, rollouts at full length, one micro-batch at full length (scored if the
profile needs that, then trained on), an optimiser step, a checkpoint, and loading that checkpoint. On a GPU the
allocator is limited to what such a card has left beside a context (`set_per_process_memory_fraction`), so what fits
here fits there; times are those of this GPU. A step of self-play is then made with every rollout at full length; of
one whose rows are alike, a part, from which the seconds of a step are computed. Both are upper bounds. The seconds of
each phase are also written to stderr as it ends.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.footprint import demand_of, group_of, is_grpo, rollouts_of
from profiles.load import load_profile
from profiles.passes import is_scored
from profiles.schema import Profile
from profiles.shapes import ARCHITECTURES, shape_of

CARDS: dict[str, tuple[str, int]] = {
    "azr-0.5b": ("qwen2.5-0.5b", 12),
    "azr-3b-qlora": ("qwen2.5-3b", 16),
    "azr-3b-qlora-8gb": ("qwen2.5-3b", 8),
    "azr-qwen3-4b-12gb": ("qwen3-4b", 12),
    "azr-7b-24gb": ("qwen2.5-7b", 24),
    "grpo-1.5b-8gb": ("r1-qwen-1.5b", 8),
    "grpo-1.5b-12gb-long": ("r1-qwen-1.5b", 12),
    "grpo-qwen3-1.7b-8gb": ("qwen3-1.7b", 8),
    "grpo-qwen3-4b-12gb": ("qwen3-4b", 12),
    "grpo-llama3.2-3b-12gb": ("llama-3.2-3b", 12),
    "grpo-8b-24gb": ("qwen3-8b", 24),
}
"""Profile -> shape of its model, and GB of its card. Other profiles run unchanged, without a limit."""
EXPECTED = {
    "load": "load",
    "rollout": "rollout",
    "rollout 2": "rollout",
    "score": "score",
    "score 2": "score",
    "micro-batch": "train",
    "micro-batch 2": "train",
}
"""Phase here -> phase of the planner."""
USABLE = 0.95
"""Share of a card's nominal memory that the driver gives to programs."""
GIB = 1 << 30


@dataclass
class Phase:
    """Bytes and seconds of one phase; None without a GPU, or if the kernel does not report it."""

    name: str
    seconds: float
    allocated: int | None = None
    reserved: int | None = None
    host: int | None = None
    expected: int | None = None
    """The planner's estimate for the allocator, including moments, which here appear with the first update."""


@dataclass
class Report:
    """The demand of one profile. context: highest use of the GPU's memory outside the allocator."""

    profile: str
    device: str
    limit: int | None = None
    context: int | None = None
    kept: int = 0
    """Bytes of the rollout cache that stay allocated while the trainer works."""
    phases: list[Phase] = field(default_factory=list)
    step_s: float | None = None
    error: str = ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("profiles", nargs="*", metavar="PROFILE", help=f"by default {', '.join(CARDS)}")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override one knob")
    parser.add_argument("--card", type=float, metavar="GB", help="limit memory to another card's; 0: no limit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--inside", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.inside is not None:
        print(json.dumps(measured(args.profiles[0], args.set, args.card, args.inside), default=vars))
        return 0
    reports = []
    print(f"reproduce: python -m benchmarks memory {' '.join(arguments)}\n")
    with tempfile.TemporaryDirectory(prefix="longhaul-memory-") as folder:
        for name in args.profiles or CARDS:
            reports.append(in_a_process(name, args.set, args.card, model_for(name, Path(folder))))
            print_report(reports[-1])
    if args.json:
        args.json.write_text(json.dumps(reports, indent=2) + "\n")
    return int(any(report["error"] for report in reports))


def model_for(name: str, folder: Path) -> str:
    """The directory of a model with the shape of this profile's and random weights; empty: the profile says itself."""
    from benchmarks.ranks import made_once

    shape, _ = CARDS.get(name, ("", 0))
    if shape and not (folder / shape).exists():
        for other in folder.iterdir():  # one at a time: the largest has 16 GB
            shutil.rmtree(other)
        (folder / shape).mkdir()
        made_once(shape, str(folder / shape))
    return str(folder / shape) if shape else ""


def in_a_process(name: str, overrides: list[str], card: float | None, model: str) -> dict[str, Any]:
    """Measure in a child process, so that one profile's leftovers do not count for the next."""
    command = [sys.executable, "-m", "benchmarks", "memory", name, "--inside", model]
    command += [word for override in overrides for word in ("--set", override)]
    command += [] if card is None else ["--card", str(card)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return vars(Report(name, "?", error=f"the process ended with {done.returncode}; its words are above"))
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def print_report(report: dict[str, Any]) -> None:
    limit = f", limit {gib(report['limit'])} + context {gib(report['context'])} GiB" if report["limit"] else ""
    print(f"{report['profile']} on {report['device']}{limit}")
    print("  phase          seconds   allocated    expected    reserved        host   (peaks, GiB)")
    for phase in report["phases"]:
        figures = "".join(f"{gib(phase[key]):>12}" for key in ("allocated", "expected", "reserved", "host"))
        print(f"  {phase['name']:<13}{phase['seconds']:>9.2f}{figures}")
    if report["step_s"]:
        print(f"  a step of full-length rollouts: {report['step_s']:.0f} s (computed)")
    if report["error"]:
        print(f"  failed: {report['error']}")
    print()


def gib(number: int | None) -> str:
    return "-" if number is None else f"{number / GIB:.2f}"


# --- inside the child ----------------------------------------------------------------------------------------------


def measured(name: str, overrides: list[str], card: float | None, model: str) -> Report:
    from workers.environment import set_environment
    from workers.models.torch_setup import device_of, set_up_torch

    set_environment()
    shape, gigabytes = CARDS.get(name, ("", 0))
    if shape:
        # No cache of the base, which would outlive the model.
        overrides = [f"model.path={model}", "model.cache_gib=0", *overrides]
    profile = load_profile(name, overrides).profile
    device = device_of(profile)
    set_up_torch(profile, isolate=False)
    report = Report(name, str(device))
    try:
        if device.type == "cuda":
            limit_memory(report, gigabytes if card is None else card)
        rehearsal(profile, device, report)
        if device.type == "cuda" and (shape := shape or profile.model.random_init) != "off":
            compare(profile, shape, report)
    except Exception as error:  # the result: in which phase memory runs out
        report.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return report


def compare(profile: Profile, shape: str, report: Report) -> None:
    """Add the planner's estimates to the measured figures."""
    phases = demand_of(profile, shape_of(ARCHITECTURES[shape])).phases
    for one in report.phases:
        one.expected = phases.get(EXPECTED.get(one.name, ""))
        if one.expected and EXPECTED[one.name] in ("score", "train"):
            one.expected += report.kept


def limit_memory(report: Report, gigabytes: float) -> None:
    """Limit the allocator to what a card of this size has left beside a context like this one."""
    import torch

    from workers.memory import cap

    cap.limit(gigabytes * USABLE)
    report.device = f"cuda ({torch.cuda.get_device_name()})"
    look_beside(report)


def look_beside(report: Any) -> None:
    """Fill `context` (memory outside the allocator) and `limit` (what a cap leaves for it)."""
    import torch

    from workers.memory import cap

    cap.tighten()
    torch.cuda.synchronize()  # creates the context
    free, total = torch.cuda.mem_get_info()
    report.context = max(report.context or 0, total - free - torch.cuda.memory_reserved())
    held = cap.held()
    report.limit = held.allocator if held else None


def rehearsal(profile: Profile, device: Any, report: Report) -> None:
    """The phases of a worker, each at its largest."""
    from workers.azr.importance import rescore
    from workers.azr.update import PolicyUpdate, Sums
    from workers.models import optimizer
    from workers.models.log_probs import head_rows_for
    from workers.models.policy import open_policy
    from workers.rollout.engine import Sampling
    from workers.rollout.select import engine_of

    with phase("load", report):
        policy = open_policy(profile, None, device)
        optimiser = optimizer.build(policy.model, profile.optimizer)
    state = [*policy.items, optimizer.OptimizerState(optimiser, policy.model)]
    engine = engine_of(policy.model, profile, policy.tokenizer)
    update = PolicyUpdate(
        policy.model,
        optimiser,
        profile.optimizer,
        profile.sampling.temperature,
        head_rows=head_rows_for(profile, policy.model),
    )
    draws = random.Random(0)
    vocabulary = policy.model.config.vocab_size
    own = [ids(profile.sampling.max_prompt_tokens, vocabulary, draws) for _ in range(update.micro_batch_size)]
    rows = rows_of(own, vocabulary, profile, draws)
    how = Sampling(temperature=profile.sampling.temperature, max_new_tokens=profile.sampling.max_completion_tokens)
    # Of self-play, whose rollouts have prompts of their own here, no more than the cache holds at full length.
    overcommit = 1.0 if is_self_play(profile) else profile.sampling.overcommit
    side_by_side = min(int(engine.max_rows * overcommit), rollouts_of(profile))
    requests = requests_of(side_by_side, policy.model.config.vocab_size, profile, draws)
    with phase("rollout", report):
        engine.generate(requests, how)
    engine.rest()
    report.kept = engine.cache_bytes
    for again in ("", " 2"):  # the first one chooses and compiles kernels
        if is_scored(profile):
            with phase(f"score{again}", report):
                rescore(
                    policy.model,
                    rows,
                    profile.sampling.temperature,
                    micro_batch_size=len(rows),
                    row_tokens=profile.optimizer.row_tokens,
                    max_logits=update.head_rows * policy.model.config.vocab_size,
                )
        with phase(f"micro-batch{again}", report):
            update.accumulate(rows, [1.0, -1.0] * len(rows), Sums())
    with phase("optimiser", report):
        optimizer.clip(optimiser, policy.model, profile.optimizer.max_grad_norm)
        optimiser.step()
        update.forget_gradients()
    with phase("rollout 2", report):
        engine.generate(requests, how)
    engine.rest()
    with tempfile.TemporaryDirectory(prefix="longhaul-memory-") as directory:
        with phase("save", report):
            for item in state:
                item.save(Path(directory) / item.filename)
        with phase("restore", report):
            for item in state:
                item.load(Path(directory) / item.filename)
    if is_self_play(profile):
        play(profile, policy.model, engine, update, report)
    report.step_s = step_seconds(profile, report, len(requests), len(rows))


def is_self_play(profile: Profile) -> bool:
    """Whether a step is one of proposals and of the answers to them, all trained on."""
    return not is_grpo(profile) and profile.azr.train_on_estimates


def play(profile: Profile, model: Any, engine: Any, update: Any, report: Report) -> None:
    """A step of self-play at full length, as the worker makes it: proposals, each with a prompt of its own, then the
    answers to each task, which share one; and the rows of one of its updates."""
    from workers.azr.importance import rescore
    from workers.azr.update import Sums
    from workers.rollout.engine import Request, Sampling

    draws, vocabulary, azr = random.Random(1), model.config.vocab_size, profile.azr
    count, longest = len(azr.tasks) * azr.proposals_per_task, profile.sampling.max_prompt_tokens
    how = Sampling(
        temperature=profile.sampling.temperature,
        max_new_tokens=profile.sampling.max_completion_tokens,
        ignore_stop=True,
    )
    proposing, solving = ([ids(longest, vocabulary, draws) for _ in range(count)] for _ in range(2))
    answered = [prompt for prompt in solving for _ in range(azr.group_size)]
    side_by_side = int(engine.max_rows * profile.sampling.overcommit)
    for name, prompts in (("proposals", proposing), ("answers", answered)):
        requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts)]
        # Steps of all rows, and of the last ones, are captured before, as they are in any step but a worker's first.
        for some in (requests, requests[: len(requests) % side_by_side]):
            if some and model.device.type == "cuda":
                engine.rehearse(some, how)
        with phase(name, report):
            engine.generate(requests, how)
    engine.rest()
    share = count // profile.optimizer.updates_per_step
    rows = rows_of([*proposing[:share], *answered[: share * azr.group_size]], vocabulary, profile, draws)
    # Once before, so that kernels are compiled and passes captured, as they are in any step but a worker's first.
    update.accumulate(rows, [1.0, -1.0] * len(rows), Sums())
    update.forget_gradients()
    if is_scored(profile):
        with phase("scored rows", report):
            rescore(
                model,
                rows,
                profile.sampling.temperature,
                micro_batch_size=update.micro_batch_size,
                row_tokens=profile.optimizer.row_tokens,
                max_logits=update.head_rows * vocabulary,
            )
    with phase("update", report):
        update.accumulate(rows, [1.0, -1.0] * len(rows), Sums())
    update.forget_gradients()


def step_seconds(profile: Profile, report: Report, side_by_side: int, in_micro_batch: int) -> float:
    """Seconds of a step in which each rollout has full length: generated, scored if needed, trained on.

    Of GRPO computed from one batch of rollouts, and from one micro-batch in which each has a prompt of its own.
    """
    seconds = {one.name: one.seconds for one in report.phases}
    count = rollouts_of(profile)
    updates = profile.optimizer.updates_per_step
    if is_self_play(profile):
        of_update = seconds.get("scored rows", 0.0) + seconds["update"] + seconds["optimiser"]
        return seconds["proposals"] + seconds["answers"] + updates * of_update
    return (
        count / side_by_side * seconds["rollout 2"]
        + count / in_micro_batch * (seconds.get("score 2", 0.0) + seconds["micro-batch 2"])
        + updates * seconds["optimiser"]
    )


def requests_of(count: int, vocabulary: int, profile: Profile, draws: random.Random) -> list[Any]:
    """As the worker asks: a group of GRPO shares its prompt, in self-play each rollout has its own."""
    from workers.rollout.engine import Request

    group = group_of(profile) if is_grpo(profile) else 1
    prompts = [ids(profile.sampling.max_prompt_tokens, vocabulary, draws) for _ in range(-(-count // group))]
    return [Request(prompts[seed // group], seed) for seed in range(count)]


def rows_of(prompts: Sequence[tuple[int, ...]], vocabulary: int, profile: Profile, draws: random.Random) -> list[Any]:
    from workers.azr.rows import Row

    length = profile.sampling.max_completion_tokens
    return [
        Row(
            task=profile.azr.tasks[0],
            role="solve",
            group=number,
            finish_reason="length",
            reward=0.0,
            prompt_ids=prompt,
            completion_ids=ids(length, vocabulary, draws),
            log_probs=(-12.0,) * length,
        )
        for number, prompt in enumerate(prompts)
    ]


def ids(length: int, vocabulary: int, draws: random.Random) -> tuple[int, ...]:
    return tuple(draws.randrange(vocabulary) for _ in range(length))


@contextmanager
def phase(name: str, report: Report) -> Iterator[None]:
    """Measure the block. Keeps its figures even if it fails, to show how far it came."""
    import torch

    is_gpu = report.device.startswith("cuda")
    if is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    reset_host_peak()
    began = time.perf_counter()
    try:
        yield
        if is_gpu:
            torch.cuda.synchronize()
    finally:
        found = Phase(name, time.perf_counter() - began, host=host_peak())
        if is_gpu:
            found.allocated, found.reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            look_beside(report)
        report.phases.append(found)
        print(f"{report.profile}, {name}: {found.seconds:.2f} s", file=sys.stderr, flush=True)


def reset_host_peak() -> None:
    unless_refused(lambda: Path("/proc/self/clear_refs").write_text("5"))


def host_peak() -> int | None:
    """Peak resident memory of this process since the last reset, if the kernel reports it."""
    text = unless_refused(lambda: Path("/proc/self/status").read_text()) or ""
    found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Vm")}
    return found.get("VmHWM", found.get("VmRSS"))


def unless_refused(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except OSError:
        return None
