"""Time, throughput and memory of a GRPO step: this project's engines and TRL on one GPU, each in its own process.

One step is one prompt, G completions of a forced length, rewards that differ by construction, and one update. With
--lengths real, completions end at different lengths, the same for every contender. All contenders read the same random
model (bfloat16, from a fixed seed), quantise its linear layers to NF4 with double quantisation, and train LoRA of rank
16 on q, k, v and o with gradient checkpointing. A contender that is not installed or fails gets a row with the reason.
--decode: rollouts alone, with vLLM; --profile-time: where the time of our own step goes; --check: whether its numbers
are right. A cap limits torch's allocator; memory outside it, such as vLLM's sleepable part, shows in `device`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.contenders import tables
from benchmarks.contenders.lengths import distribution_text
from benchmarks.contenders.watch import device_peak
from benchmarks.contenders.workload import SHAPES

STEPS = ("native", "hf", "trl", "trl-vllm", "trl-vllm-sleep", "trl-vllm-bf16")
DECODE = ("native", "hf", "vllm-nf4", "vllm-bf16")
NEEDS = {"trl": ("trl", "datasets", "bitsandbytes", "peft"), "vllm": ("vllm", "peft")}
"""Part of a contender's name -> libraries it needs."""
OURS = ("native", "hf")


def main(arguments: list[str]) -> int:
    args = parsed(arguments)
    if args.show:
        print("\n\n".join(together([json.loads(path.read_text()) for path in args.show])))
        return 0
    with tempfile.TemporaryDirectory(prefix="longhaul-grpo-") as made:
        return compare(args, Path(args.model or made), arguments)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks grpo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        metavar="NAME",
        help=f"of {', '.join(STEPS)}; all by default. With --decode of {', '.join(DECODE)}",
    )
    parser.add_argument("--shape", choices=SHAPES, default="r1-qwen-1.5b", help="of the random model (r1-qwen-1.5b)")
    parser.add_argument("--group-size", type=int, nargs="+", default=[8], metavar="G")
    parser.add_argument("--prompt", type=int, default=128, metavar="TOKENS")
    parser.add_argument("--completion", type=int, default=512, metavar="TOKENS")
    parser.add_argument(
        "--lengths",
        choices=("forced", "real"),
        default="forced",
        help="real: other lengths in each step, --completion at most (forced)",
    )
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps (2)")
    parser.add_argument("--steps", type=int, default=10, help="maximum number of timed steps (10)")
    parser.add_argument("--seconds", type=float, default=60.0, help="time after which two timed steps are enough (60)")
    parser.add_argument("--launches", type=int, default=1, help="processes per contender, one row each (1)")
    parser.add_argument("--cap", type=float, default=0.0, metavar="GIB", help="memory of the card to emulate")
    parser.add_argument("--vllm-share", type=float, default=0.3, help="share of the GPU's memory for vLLM (.3)")
    parser.add_argument("--timeout", type=float, default=540.0, metavar="S", help="limit per contender (540)")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="knob of our own contenders")
    parser.add_argument("--model", type=Path, help="folder for the random model; kept and reused")
    parser.add_argument("--decode", action="store_true", help="rollouts alone")
    parser.add_argument("--profile-time", action="store_true", help="kernels of our own step by family")
    parser.add_argument("--check", action="store_true", help="compare our log-probs and gradients with float32")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="only show tables of earlier --json files")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    args = parser.parse_args(arguments)
    known = DECODE if args.decode else OURS if args.profile_time or args.check else STEPS
    args.contenders = args.contenders or (["native"] if args.profile_time or args.check else list(known))
    if unknown := sorted(set(args.contenders) - set(known)):
        parser.error(f"there is no contender {', '.join(unknown)}; known here: {', '.join(known)}")
    if args.lengths == "real" and (args.check or args.profile_time):
        parser.error("--lengths real cannot be combined with --check or --profile-time")
    if min(args.group_size) < 2:
        parser.error("--group-size must be at least 2: rewards of one completion cannot differ")
    return args


def compare(args: argparse.Namespace, model: Path, arguments: list[str]) -> int:
    prefix = "decode " if args.decode else "profile " if args.profile_time else "check " if args.check else ""
    reports: list[dict[str, Any]] = []
    kind = "decode" if args.decode else "profile_time" if args.profile_time else "check" if args.check else "steps"
    workload = {name: getattr(args, name) for name in ("shape", "prompt", "completion", "cap", "lengths")}
    facts = {"command": f"python -m benchmarks grpo {' '.join(arguments)}", "kind": kind, "workload": workload}
    facts |= {"gpu": gpu_facts()}
    print(f"reproduce: {facts['command']}\n{facts['gpu'] or 'no NVIDIA GPU'}", flush=True)
    for size in args.group_size:
        for name in [name for name in args.contenders for _ in range(args.launches)]:
            print(f"\n--- {prefix}{name}, G={size}", flush=True)
            reports.append(measured(prefix + name, size, args, model))
            one = reports[-1]
            print(f"{one['status']} {one['reason']}".strip(), flush=True)
            if args.json:
                args.json.write_text(json.dumps(facts | {"reports": reports}, indent=1))
    print("\n" + report_text(reports, args))
    return 0


def report_text(reports: list[dict[str, Any]], args: argparse.Namespace) -> str:
    named: dict[str, str] = {}
    for one in reports:
        named |= one["versions"]
    facts = ", ".join(f"{name} {version}" for name, version in named.items())
    cap = f", allocator capped at a card of {args.cap:g} GiB" if args.cap else ""
    lengths = f"completion {args.completion} (forced)"
    if args.lengths == "real":
        lengths = distribution_text(args.completion)
    head = f"{args.shape}, prompt {args.prompt}, {lengths}{cap}\n{facts}\n"
    if args.profile_time:
        return head + "\n" + "\n\n".join(tables.time_table(one) for one in reports)
    if args.check:
        return head + "\n" + tables.check_table(reports)
    if args.decode:
        return head + "\n" + tables.decode_table(reports)
    return f"{head}\n{tables.steps_table(reports)}\n\n{tables.ratios(reports)}"


def together(files: list[dict[str, Any]]) -> list[str]:
    """Tables of several result files, one per kind and workload. (pure)"""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        file = file | {"workload": {"lengths": "forced"} | file["workload"]}  # missing in older files
        kinds.setdefault(json.dumps([file["kind"], file["gpu"], file["workload"]]), []).append(file)
    found = []
    for same in kinds.values():
        args = argparse.Namespace(**same[0]["workload"], **dict.fromkeys(("check", "decode", "profile_time"), False))
        setattr(args, same[0]["kind"], True)
        commands = "\n".join(f"reproduce: {file['command']}" for file in same)
        reports = [one for file in same for one in file["reports"]]
        found.append(f"{commands}\n{same[0]['gpu'] or 'no NVIDIA GPU'}\n{report_text(reports, args)}")
    return found


def measured(name: str, size: int, args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """The report of one contender. Starts a process only if its libraries exist, and first creates the model."""
    wanted = [library for part, group in NEEDS.items() if part in name for library in group]
    if missing := [library for library in wanted if importlib.util.find_spec(library) is None]:
        return failed(name, size, f"not installed here: {', '.join(missing)}")
    if not (model / "config.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        made = in_a_process("model", size, args, model)
        if made["status"] != "ok":
            return failed(name, size, f"the model could not be made: {made['reason']}")
    return in_a_process(name, size, args, model)


def in_a_process(name: str, size: int, args: argparse.Namespace, model: Path) -> dict[str, Any]:
    work = {
        "shape": args.shape,
        "group_size": size,
        "prompt": args.prompt,
        "completion": args.completion,
        "real_lengths": args.lengths == "real",
    }
    budget = {"warmup": args.warmup, "steps": args.steps, "seconds": args.seconds}
    with tempfile.TemporaryDirectory(prefix="longhaul-job-") as folder:
        job, report = Path(folder) / "job.json", Path(folder) / "report.json"
        facts = {
            "contender": name,
            "workload": work,
            "budget": budget,
            "model": str(model),
            "began": time.time(),
            "cap_gib": args.cap,
            "vllm_share": args.vllm_share,
            "overrides": args.set,
        }
        job.write_text(json.dumps(facts))
        command = [sys.executable, "-m", "benchmarks.contenders", str(job), str(report)]
        environment = environment_of(name) | os.environ
        with device_peak() as peak:
            try:
                done = subprocess.run(command, timeout=args.timeout, env=environment, check=False)
            except subprocess.TimeoutExpired:
                return failed(name, size, f"took more than {args.timeout:g} s") | {"on_device": peak.bytes}
        if not report.exists():
            return failed(name, size, f"the process ended with {done.returncode}") | {"on_device": peak.bytes}
        found: dict[str, Any] = json.loads(report.read_text())
        return found | {"on_device": peak.bytes}


def environment_of(name: str) -> dict[str, str]:
    """Variables that our own workers set before loading a tensor library; empty for other contenders."""
    from workers.environment import ENVIRONMENT

    return ENVIRONMENT if set(name.split()) & set(OURS) else {}


def failed(name: str, size: int, reason: str) -> dict[str, Any]:
    return {
        "contender": name,
        "group_size": size,
        "status": "failed",
        "reason": reason,
        "steps": [],
        "tables": {},
        "versions": {},
    }


def gpu_facts() -> str:
    """Name, driver, power limit and clocks from the driver's tool; empty without it."""
    fields = "name,driver_version,memory.total,power.limit,clocks.max.sm"
    try:
        query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
