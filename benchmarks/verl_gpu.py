"""What one or two GPUs show of verl and of our own ranks: weights that arrive, memory as planned, scaling.

    python -m benchmarks verl_gpu                          every part that this machine can do
    python -m benchmarks verl_gpu --only weights ranks --shape qwen2.5-1.5b
    python -m benchmarks verl_gpu --only train --gpus 2 --set vllm.enforce_eager=true --runs DIR

weights  vLLM holds each tensor as our table of parts says, on one GPU and on two; a swapped row and a zeroed shard are
         found by digests, and what log-probs of fixed tokens see of them is printed.
train    verl trains some steps with vLLM through the daemon, which compares digests after each sync; the peak of a
         GPU's allocator beside the plan's figure.
ranks    `benchmarks ranks` on one GPU and on two: efficiency of rollouts and updates.

Weights are random and have a real model's shape. A part that cannot run here is named with the reason. The exit code
is 1 if a part that ran went wrong.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.verl_job import job_of
from profiles.footprint import GIB
from profiles.load import load_profile
from profiles.schema import Profile
from profiles.shapes import ARCHITECTURES, shape_of
from state.layout import RunDir
from state.reader import Reader

SHAPE = "qwen2.5-0.5b"
VLLM_SHARE = 0.3
"""Of each card."""
PLANNED_WITHIN = 0.1
"""The error of a plan that is still well."""
FAULTY = "model.layers.0.mlp.gate_up_proj.weight"
"""vLLM's name; both halves are divided by rows."""
NAMED = "model.layers.0.mlp.gate_proj.weight"


@dataclass(frozen=True)
class Part:
    gpus: int
    """The fewest that it needs."""
    packages: tuple[str, ...] = ()


PARTS = {"weights": Part(1, ("vllm",)), "train": Part(1, ("verl", "ray", "vllm")), "ranks": Part(2)}


def reason_against(part: Part, gpus: int, installed: Collection[str]) -> str:
    """Why a part cannot run here; empty if it can. (pure)"""
    if missing := [name for name in part.packages if name not in installed]:
        return f"{' and '.join(missing)} not installed (bash scripts/install-verl.sh; pip install vllm==0.26.0)"
    if gpus < part.gpus:
        return f"needs {part.gpus} NVIDIA GPU{'s' * (part.gpus > 1)}, and PyTorch finds {gpus or 'none'}"
    return ""


def main(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    if args.inside:
        return int(inspect_weights(Path(args.model), args.inside))
    gpus, installed = gpus_here(), [name for name in ("verl", "ray", "vllm") if is_installed(name)]
    print(f"reproduce: python -m benchmarks verl_gpu {' '.join(arguments)}\n", flush=True)
    failed = []
    made = tempfile.TemporaryDirectory(prefix="longhaul-verl-gpu-") if args.runs is None else nullcontext(args.runs)
    with made as folder:
        for name in args.only or PARTS:
            print(f"== {name}", flush=True)
            if reason := reason_against(PARTS[name], gpus, installed):
                print(f"skipped: {reason}\n", flush=True)
            elif not RUN[name](args, Path(folder), [n for n in args.gpus if n <= gpus]):
                failed.append(name)
    if failed:
        print(f"wrong: {', '.join(failed)}")
    return int(bool(failed))


def parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser("python -m benchmarks verl_gpu", description=__doc__, formatter_class=plain)
    made.add_argument("--only", nargs="+", choices=PARTS, default=[])
    made.add_argument("--shape", choices=ARCHITECTURES, default=SHAPE)
    made.add_argument(
        "--gpus", type=int, nargs="+", default=[1, 2], help="numbers of GPUs to try, where there are as many"
    )
    made.add_argument("--steps", type=int, default=4, help="of verl (%(default)s)")
    made.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override one knob of `train`")
    made.add_argument("--runs", metavar="DIR", help="keep the runs of `train` there, and go on with what is there")
    made.add_argument("--inside", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--model", default="", help=argparse.SUPPRESS)
    return made


def gpus_here() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def is_installed(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


# --- weights ----------------------------------------------------------------------------------------------------------


def weights(args: argparse.Namespace, folder: Path, counts: list[int]) -> bool:
    """A process for each number of GPUs of one engine, as vLLM leaves its GPUs only at its end."""
    from benchmarks.ranks import made_once

    (model := folder / "model").mkdir()
    made_once(args.shape, str(model))
    command = [sys.executable, "-m", "benchmarks", "verl_gpu", "--shape", args.shape, "--model", str(model), "--inside"]
    # Whatever reads the model may have touched CUDA, after which a fork of vLLM could not.
    environment = {**os.environ, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    return all([subprocess.run([*command, str(n)], env=environment).returncode == 0 for n in counts])


class Inspecting:
    """A part of each worker of vLLM, which loads it by its name."""

    def longhaul_differences(self, sent: list[dict[str, int]], layout: tuple[int, int, int, bool], rows: int) -> str:
        from vllm.distributed import get_tensor_model_parallel_rank

        from workers.verl.digests import SyncMismatch
        from workers.verl.slices import Layout
        from workers.verl.vllm_check import compare

        model: Any = self.model_runner.model  # type: ignore[attr-defined]
        try:
            compare(model, sent, Layout(*layout), rows, get_tensor_model_parallel_rank(), "vllm")
        except SyncMismatch as error:
            return str(error)
        return ""

    def longhaul_fault(self, fault: str) -> None:
        """`swap` two rows, which done twice changes nothing, or `zero` one layer's part."""
        model: Any = self.model_runner.model  # type: ignore[attr-defined]
        tensor = dict(model.named_parameters())[FAULTY].data
        if fault == "swap":
            tensor[[0, 1]] = tensor[[1, 0]]
        else:
            tensor.zero_()


def inspect_weights(model: Path, ranks: int) -> bool:
    """True if something is wrong. Prints what digests and log-probs find of each fault."""
    import torch
    import vllm
    from transformers import AutoConfig

    from workers.verl.digests import Sent
    from workers.verl.probe import BOUND, MOST_TOKENS, known_layout, sequences

    config = AutoConfig.from_pretrained(model)
    layout = known_layout(config, ranks)
    assert layout is not None, "no table for this shape"
    sent = Sent(layout, torch.bfloat16)
    for _ in sent.watch(tensors_of(model)):
        pass
    told = (layout.heads, layout.kv_heads, layout.ranks, layout.is_tied)
    texts = [range(start, config.vocab_size, 997) for start in range(13)]  # any do: the weights are random
    rows = sequences(texts, 4, MOST_TOKENS)
    truth = true_log_probs(model, rows)
    engine = vllm.LLM(
        str(model),
        dtype="bfloat16",
        tensor_parallel_size=ranks,
        gpu_memory_utilization=VLLM_SHARE,
        max_model_len=2 * MOST_TOKENS,
        enforce_eager=True,
        skip_tokenizer_init=True,
        worker_extension_cls=f"{__name__}.{Inspecting.__name__}",
    )

    def found() -> str:
        said: list[str] = engine.collective_rpc("longhaul_differences", args=(sent.by_rank, told, sent.vocabulary))
        return "; ".join(filter(None, said))

    def off() -> float:
        asked = vllm.SamplingParams(max_tokens=1, prompt_logprobs=0)
        outputs = engine.generate([vllm.TokensPrompt(prompt_token_ids=row) for row in rows], asked, use_tqdm=False)
        scored: list[list[float]] = [
            [next(iter(one.values())).logprob for one in output.prompt_logprobs[1:]]  # that of the first is None
            for output in outputs
        ]
        return max(
            sum(abs(a - b) for a, b in zip(mine, true, strict=True)) / len(true)
            for mine, true in zip(scored, truth, strict=True)
        )

    wrong = False
    for what, fault, is_fault in (
        ("weights as loaded", "", False),
        ("a swapped row", "swap", True),
        ("swapped back", "swap", False),
        ("a zeroed shard", "zero", True),
    ):
        if fault:
            engine.collective_rpc("longhaul_fault", args=(fault,))
        differences = found()
        is_right = (NAMED in differences) if is_fault else not differences
        wrong |= not is_right
        print(
            f"{ranks} GPUs, {what}: digests {'find ' + differences[:160] if differences else 'agree'}"
            f"{'' if is_right else '   WRONG'}; log-probs off by {off():.2g} nats a token (bound {BOUND:g})",
            flush=True,
        )
    print()
    return wrong


def tensors_of(model: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  it is no dict
                yield name, tensors.get_tensor(name)


def true_log_probs(model: Path, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """By transformers in bfloat16, as verl's trainer computes, on the CPU: the card is vLLM's."""
    import torch
    from transformers import AutoModelForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained
    ids = torch.tensor(rows)
    with torch.no_grad():
        scores = torch.log_softmax(read(model, dtype=torch.bfloat16)(ids).logits[:, :-1].float(), -1)
    return [[float(one) for one in row] for row in scores.gather(2, ids[:, 1:, None])[:, :, 0]]


# --- train ------------------------------------------------------------------------------------------------------------


def settings(shape: str, steps: int, gpus: int) -> list[str]:
    """What `verl-debug` becomes on GPUs, as `KEY=VALUE`. (pure)"""
    return [
        "run.device=cuda",
        f"run.gpus={gpus}",
        "run.max_cycles=1",
        f"run.steps_per_cycle={steps}",
        f"run.checkpoint_every={steps}",
        "model.path=pocket",
        f"model.random_init={shape}",
        "model.dtype=bfloat16",
        "model.gradient_checkpointing=true",
        "sampling.engine=vllm",
        "sampling.max_prompt_tokens=128",  # so that rows are nearly as long as the plan takes them
        "sampling.max_completion_tokens=512",
        "verl.tokens_per_gpu=5120",
        "grpo.groups_per_step=8",
        "grpo.group_size=8",
        f"vllm.gpu_memory_utilization={VLLM_SHARE}",
    ]


def profile_of(knobs: list[str]) -> Profile:
    return load_profile("verl-debug", knobs).profile


def planned_bytes(profile: Profile, shape: str, card_bytes: int) -> int:
    """Of the allocator of one GPU while it trains. (pure)"""
    return job_of(profile, shape_of(ARCHITECTURES[shape]), card_bytes).demand.phases["train"]


def train(args: argparse.Namespace, folder: Path, counts: list[int]) -> bool:
    return all([train_on(args, folder, count) for count in counts])


def train_on(args: argparse.Namespace, folder: Path, gpus: int) -> bool:
    """Right if the run ended well, so every digest was equal, and the plan was within its error."""
    import torch

    name = f"verl-{gpus}"
    command = [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", "verl-debug", "--run", name]
    command += ["--runs", str(folder)]
    knobs = [*settings(args.shape, args.steps, gpus), *args.set]
    command += [word for one in knobs for word in ("--set", one)]
    if code := subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
        print(f"{gpus} GPUs: the run ended with {code}; its output is above   WRONG\n", flush=True)
        return False
    reader = Reader.open(RunDir(folder / name))
    try:
        steps = [step.metrics for step in reader.steps(args.steps)]
    finally:
        reader.close()
    for place, step in enumerate(steps, 1):
        told = {"s": "seconds", "sync s": "seconds/sync", "rollouts tokens/s": "tokens_per_s", "loss": "loss"}
        print(f"step {place}: " + ", ".join(f"{what} {step.get(key, float('nan')):.4g}" for what, key in told.items()))
    measured = max(float(step["memory/train/allocated"]) for step in steps)
    card = torch.cuda.get_device_properties(0).total_memory
    planned = planned_bytes(profile_of(knobs), args.shape, card)
    error = planned / measured - 1
    is_right = abs(error) <= PLANNED_WITHIN
    print(
        f"{gpus} GPUs: {len(steps)} steps, digests equal after each sync; peak of a GPU's allocator "
        f"{measured / GIB:.2f} GiB, planned {planned / GIB:.2f} ({error:+.0%}){'' if is_right else '   WRONG'}\n",
        flush=True,
    )
    return is_right


# --- ranks ------------------------------------------------------------------------------------------------------------


def ranks(args: argparse.Namespace, folder: Path, counts: list[int]) -> bool:
    from benchmarks import ranks as measuring

    return measuring.main(["--shape", args.shape, "--gpus", *map(str, counts)]) == 0


RUN = {"weights": weights, "train": train, "ranks": ranks}
