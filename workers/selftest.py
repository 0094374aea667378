"""Checks that the libraries a profile needs work here. Runs in its own process, because some of them crash on failure.

`python -m workers.selftest < profile.json` writes one JSON line per check: name, state (ok, warn, fail), detail, fix.
The last check runs a whole step with a tiny model: 4-bit base model, adapter, rollouts, a backward pass and an
optimiser step.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import metadata
from typing import Any

import msgspec
from msgspec.structs import replace

from profiles.schema import Model, Optimizer, Profile, Sampling, Validation
from profiles.task_kinds import DEDUCTION
from workers.environment import set_environment

Check = dict[str, str]
RANK = 4
TOKENS = 8


def main() -> int:
    profile = msgspec.json.decode(sys.stdin.buffer.read(), type=Profile)
    set_environment()
    answers = sys.stdout
    with redirect_stdout(sys.stderr):  # libraries print banners
        for check in checks(profile):
            answers.write(json.dumps(check) + "\n")
            answers.flush()
    return 0


def checks(profile: Profile) -> Iterator[Check]:
    """Run the checks in the order in which a worker needs the libraries."""
    yield cuda(profile)
    yield from libraries(profile)
    yield triton(profile)
    yield whole_path(profile)


def check(name: str, state: str, detail: str, fix: str = "") -> Check:
    return {"name": name, "state": state, "detail": detail, "fix": fix}


def cuda(profile: Profile) -> Check:
    """Report torch's build, and whether it can use the GPU."""
    import torch

    needed = profile.run.device == "cuda"
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        fix = "make setup   (takes the build that fits the driver); nvidia-smi shows whether the driver works"
        detail = f"torch {torch.__version__}, {built}, sees no GPU"
        return check("cuda", "fail" if needed else "ok", detail, fix if needed else "")
    try:
        product = (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).sum().item()
    except RuntimeError as error:
        return check("cuda", "fail", f"a product fails: {first_line(error)}", "update the driver, then: make setup")
    if product != 64.0**3:
        return check("cuda", "fail", f"a product of ones is {product:g}", "this GPU computes wrongly: take another")
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    detail = f"torch {torch.__version__}, CUDA {torch.version.cuda}, {name}, compute capability "
    detail += ".".join(map(str, capability))
    if profile.model.dtype == "bfloat16" and capability < (8, 0):
        return check("cuda", "warn", f"{detail}: bfloat16 is slow before 8.0", "a GPU of the RTX 30 series or newer")
    return check("cuda", "ok", detail)


def libraries(profile: Profile) -> Iterator[Check]:
    """Check that peft and bitsandbytes are installed and can be imported."""
    for name, is_needed in needed_libraries(profile).items():
        fix = f"pip install -c constraints.txt {name}"
        if importlib.util.find_spec(name) is None:
            yield check(name, "fail" if is_needed else "ok", "not installed", fix if is_needed else "")
            continue
        try:
            importlib.import_module(name)
        except Exception as error:  # importing it runs much code of other libraries
            yield check(name, "fail" if is_needed else "warn", f"does not load: {first_line(error)}", fix)
            continue
        yield check(name, "ok", metadata.version(name))


def needed_libraries(profile: Profile) -> dict[str, bool]:
    """Optional library -> whether the profile needs it. (pure)"""
    has_adapter = profile.adapter.rank > 0 and profile.adapter.implementation == "peft"
    in_few_bits = profile.model.quantization == "nf4" or profile.optimizer.kind != "adamw"
    return {"peft": has_adapter, "bitsandbytes": in_few_bits}


def triton(profile: Profile) -> Check:
    """Check that our Triton kernels work; if not, PyTorch replaces them, more slowly."""
    import torch

    if not torch.cuda.is_available() or profile.run.device == "cpu":
        return check("triton", "ok", "not needed without a GPU")
    from workers.loss.fused_kernels import has_triton

    if importlib.util.find_spec("triton") is not None and has_triton(torch.device("cuda")):
        return check("triton", "ok", metadata.version("triton"))
    return check(
        "triton", "warn", "does not work here: PyTorch in its place, slower", "pip install triton; a C compiler"
    )


def whole_path(profile: Profile) -> Check:
    """Run every part of a training step on a two-layer model."""
    began = time.monotonic()
    tiny = tiny_of(profile)
    what = ", ".join(
        [
            "4 bits" if tiny.model.quantization == "nf4" else tiny.model.dtype,
            f"adapter ({tiny.adapter.implementation})",
            "rollouts",
            "backward",
            tiny.optimizer.kind,
        ]
    )
    try:
        problem = step_of(tiny)
    except Exception as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
    if problem:
        return check("self-test", "fail", f"{what}: {problem}", "see the checks above; if all are ok, please report it")
    return check("self-test", "ok", f"{what}: in {time.monotonic() - began:.1f} s")


def tiny_of(profile: Profile) -> Profile:
    """A profile with a tiny random model and the given one's precision, adapter and optimiser, where installed."""
    import torch

    there = {name: importlib.util.find_spec(name) is not None for name in ("peft", "bitsandbytes")}
    on_gpu = torch.cuda.is_available() and profile.run.device != "cpu"
    kind = profile.optimizer.kind if there["bitsandbytes"] else "adamw"
    knobs = profile.adapter
    if not there["peft"]:
        knobs = replace(knobs, implementation="own")
    return Profile(
        name="selftest",
        run=replace(profile.run, device="cuda" if on_gpu else "cpu", threads=1),
        model=Model(
            random_init="qwen2-tiny",
            dtype=profile.model.dtype,
            gradient_checkpointing=True,
            quantization="nf4" if there["bitsandbytes"] else "none",
        ),
        adapter=replace(knobs, rank=RANK, targets=("q_proj", "down_proj")),
        sampling=Sampling(max_prompt_tokens=TOKENS, max_completion_tokens=TOKENS),
        optimizer=Optimizer(kind="adamw8bit" if kind == "paged_adamw8bit" and not on_gpu else kind, warmup_steps=0),
        validation=Validation(),
    )


def step_of(profile: Profile) -> str:
    """Run a step and describe what is wrong with it; empty: nothing."""
    import torch

    from workers.azr.rows import Row
    from workers.azr.update import PolicyUpdate
    from workers.models import optimizer
    from workers.models.adapters import adapter_of
    from workers.models.policy import open_policy
    from workers.models.torch_setup import device_of, set_up_torch
    from workers.rollout.engine import Request, Sampling
    from workers.rollout.native import NativeEngine

    set_up_torch(profile, isolate=False)
    policy = open_policy(profile, None, device_of(profile))
    requests = [Request((1, 2, 3, number), seed=number) for number in range(4)]
    rollouts = NativeEngine(policy.model).generate(requests, Sampling(max_new_tokens=TOKENS))
    if any(not one.completion_ids for one in rollouts):
        return "a rollout is empty"
    rows = [
        Row(
            task=DEDUCTION,
            role="solve",
            group=0,
            prompt_ids=one.prompt_ids,
            completion_ids=one.completion_ids,
            log_probs=one.log_probs,
            finish_reason=one.finish_reason,
            reward=float(number % 2),
        )
        for number, one in enumerate(rollouts)
    ]
    before = {name: one.detach().clone() for name, one in adapter_of(policy.model).items()}
    update = PolicyUpdate(policy.model, optimizer.build(policy.model, profile.optimizer), profile.optimizer, 1.0)
    is_finite, metrics = update.apply(1, rows, [1.0, -1.0] * 2)
    if not is_finite:
        return "loss or gradients are not finite"
    if metrics["mismatch_max"] > 0.5:
        return f"trainer and rollouts differ by {metrics['mismatch_max']:.2f} nats"
    if not any(
        bool((one != before[name]).any()) for name, one in adapter_of(policy.model).items() if ".lora_B." in name
    ):
        return "no gradient has reached the adapter"
    if not all(bool(torch.isfinite(one).all()) for one in adapter_of(policy.model).values()):
        return "the adapter is not finite"
    return ""


def first_line(error: Any) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


if __name__ == "__main__":
    raise SystemExit(main())
