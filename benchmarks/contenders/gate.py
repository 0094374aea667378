"""Checks our session's log-probs and gradients against a plain float32 model.

The reference computes in float32 with the dequantised NF4 weights, one row at a time, with whole logits and autograd.
The adapter's B matrices get random values first, because their initial zeros would prove nothing. The results of
transformers' own modules in bfloat16 are listed for comparison, without a limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.contenders.ours import Session, advantages_of, rows_of
from benchmarks.contenders.report import Meter
from benchmarks.contenders.workload import Workload

SPREAD = 0.01
"""Standard deviation of the B matrices' elements."""


def run(work: Workload, model: Path, engine: str, overrides: list[str], meter: Meter) -> None:
    """Fill the report's metrics: differences of log-probs in nats, and the cosine of the adapter's gradients."""
    session = Session(work, model, engine, overrides)
    disturb(session.model)
    rollouts = session.rollout(1)
    ours = session.gradients(rollouts)
    reference = reference_of(session, model)
    rows, advantages = rows_of(rollouts), advantages_of(rollouts, session.profile)
    log_probs, theirs = learned(reference, rows, advantages)
    as_is, of_plain = learned(plain_of(session, model, reference), rows, advantages)
    engines = torch.cat([torch.tensor(one.log_probs) for one in rollouts])
    trainers = torch.cat(session.log_probs(rollouts))
    meter.report.settings = session.settings
    meter.report.metrics = {
        "tokens": len(log_probs),
        **compared("engine to reference", engines, log_probs),
        **compared("trainer to reference", trainers, log_probs),
        "gradient cosine": cosine(ours, theirs),
        "least gradient cosine of a matrix": least_cosine(ours, theirs),
        **compared("engine to trainer", engines, trainers),
        **{f"{name} (transformers)": value for name, value in compared("plain to reference", as_is, log_probs).items()},
        "gradient cosine (transformers)": cosine(of_plain, theirs),
        "least gradient cosine of a matrix (transformers)": least_cosine(of_plain, theirs),
    }
    session.close()


def compared(name: str, ours: Tensor, theirs: Tensor) -> dict[str, float]:
    apart = (ours.double() - theirs.double()).abs()
    return {f"{name}, mean": float(apart.mean()), f"{name}, largest": float(apart.max())}


def cosine(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Cosine of all matrices as one vector, in float64. (pure)"""
    pairs = [(ours[name].double().flatten(), theirs[name].double().flatten()) for name in sorted(ours)]
    dot = sum(float(a @ b) for a, b in pairs)
    lengths = [sum(float(one @ one) for one in side) ** 0.5 for side in zip(*pairs, strict=True)]
    return float(dot / (lengths[0] * lengths[1]))


def least_cosine(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return min(cosine({"": ours[name]}, {"": theirs[name]}) for name in ours)


@torch.no_grad()
def disturb(model: Any) -> None:
    from workers.models.adapters import adapter_of

    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapter_of(model).items():
        if ".lora_B." in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * SPREAD)


def reference_of(session: Session, model: Path) -> Any:
    """A float32 model with the session's weights: dequantised base and peft's adapter."""
    from workers.models.adapters import adapter_of
    from workers.rollout.weight_transfer import base_weights

    plain = base_of(session, model, torch.float32, "eager")
    known = dict(plain.named_parameters())
    with torch.no_grad():
        for name, values in base_weights(session.model):
            known.pop(name).copy_(values)
        if known:
            raise ValueError(f"the session's model has no {sorted(known)[0]}")
        inject_peft(session, plain)
        mine = adapter_of(session.model)
        for name, parameter in adapter_of(plain).items():
            parameter.copy_(mine[name])
    return plain


def plain_of(session: Session, model: Path, reference: Any) -> Any:
    """The reference's weights and adapter in transformers and peft, in bfloat16."""
    plain = base_of(session, model, torch.bfloat16, "sdpa")
    inject_peft(session, plain)
    with torch.no_grad():
        theirs = dict(reference.named_parameters())
        for name, parameter in plain.named_parameters():
            parameter.copy_(theirs[name])
    return plain


def base_of(session: Session, model: Path, dtype: torch.dtype, attention: str) -> Any:
    """Load the model's files with transformers."""
    from transformers import AutoModelForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained
    return read(str(model), dtype=dtype, attn_implementation=attention).to(session.model.device).eval()


def inject_peft(session: Session, plain: Any) -> None:
    """Add the session's adapter with peft, with initial matrices."""
    from msgspec.structs import replace

    from workers.models.adapters import inject

    inject(plain, replace(session.profile.adapter, implementation="peft"), 0)


def learned(model: Any, rows: list[Any], advantages: list[float]) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs of all completion tokens, on the CPU, and the gradient of -sum(advantage * log-prob) / tokens.

    This is the gradient of the clipped loss if the old log-probs are the policy's own.
    """
    from workers.models.adapters import adapter_of

    total = sum(len(row.completion_ids) for row in rows)
    found = []
    for row, advantage in zip(rows, advantages, strict=True):
        ids = torch.tensor([*row.prompt_ids, *row.completion_ids], device=model.device)
        logits = model(ids[None], use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1].float()
        log_probs: Any = torch.log_softmax(logits, dim=-1).gather(1, ids[len(row.prompt_ids) :, None])[:, 0]
        (-advantage * log_probs.sum() / total).backward()
        found.append(log_probs.detach().cpu())
    gradients = {name: one.grad for name, one in adapter_of(model).items() if one.grad is not None}
    return torch.cat(found), {name: one.detach().cpu() for name, one in gradients.items()}
