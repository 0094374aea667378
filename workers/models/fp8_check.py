"""Decides at the start of every attempt whether a run trains with products in 8 bits (`fp8.py`).

The gradient of the same loss is computed in bfloat16 and in 8 bits, and compared over all matrices of the adapters. The
loss is that of fixed tokens with an adapter of fixed values, so an attempt that resumes, or that loads before it knows
its head, decides as the first one did, and a run keeps its bits. What changes while a run trains is in `mismatch_mean`
of each step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from profiles.written_out import supports
from workers.models import fp8, packing, plain
from workers.models.log_probs import head_rows_for, score
from workers.ranks.group import ALONE, Group

PROMPT_TOKENS, COMPLETION_TOKENS, GROUPS, ANSWERS = 64, 32, 2, 4
"""Of the loss, at most: 256 tokens that count."""
OF_PRODUCT = 0.037
"""How far a product of two rounded factors is off, by norm (`fp8.py`)."""
BOUND = 0.45
"""Largest accepted difference of the gradients, by norm. There the cosine is about .9: a step of the same length would
descend nine tenths as far.

What rounding makes: both branches of a layer round anew, so independent errors of `OF_PRODUCT` add up over twice the
layers: .037 * sqrt(2 * layers), if branches are as large as the stream that they are added to. On a CPU, with random
weights in bfloat16 and NF4: .074 for 2 layers, measured .052 to .075 (Qwen2, Qwen3, Llama); .13 for 6, .15 to .16
(Gemma 3, which has norms behind its branches too); .26 for 24, .30 (Qwen2.5-0.5B); .28 for 28, .19 (Qwen3-0.6B).
Weights that amplify roundings give more, although each product is as near: trained ones of the built-in model (4 layers
of width 96) .42 on these tokens and .50 on tokens that it drew itself.
"""


@dataclass(frozen=True)
class Compared:
    """Two gradients: the norm of their difference, as a share of that of the exact one, and their cosine."""

    off: float
    cosine: float

    @property
    def is_right(self) -> bool:
        return self.off <= BOUND  # False for NaN

    @property
    def metrics(self) -> dict[str, float]:
        return {"fp8/used": float(self.is_right), "fp8/gradient_off": self.off, "fp8/gradient_cosine": self.cosine}

    @property
    def text(self) -> str:
        found = f"in 8 bits the gradient is off that in bfloat16 by {self.off:.1%} (cosine {self.cosine:.4f})"
        if self.is_right:
            return f"{found}, and updates are computed in 8 bits"
        return f"{found}, and {BOUND:.0%} are accepted: updates are computed in bfloat16"


def require_device(device: torch.device) -> None:
    """Raises LonghaulError (GPU) if `device` cannot compute products in 8 bits."""
    if problem := fp8.problem_on(device):
        raise _refused(f"model.fp8 cannot be used on this device: {problem}", ExitCode.GPU)


def require_layers(model: Any) -> None:
    """Raises LonghaulError (INPUT) if the layers of `model` are not written out."""
    if getattr(model, "fast_runner", None) is None:
        name = type(model).__name__
        why = plain.reason_of(model) or supports(plain.described(model)) or "more than their adapters is trained"
        raise _refused(f"model.fp8 needs written-out layers, which {name} does not get: {why}", ExitCode.INPUT)


def _refused(what: str, exit_code: ExitCode) -> LonghaulError:
    return LonghaulError(
        what,
        kept="the run, unchanged",
        next_command="python -m orchestrator run --set model.fp8=false --accept-changes",
        exit_code=exit_code,
    )


def choose(model: Any, profile: Profile, row_tokens: int, group: Group = ALONE) -> Compared:
    """Compare, and let `model` train in 8 bits if these are right on every rank; else in bfloat16. Leaves weights,
    gradients and random generators as they are. row_tokens: the trainer's. Returns the worst of all ranks."""
    with group.agreed():
        mine = compared(model, profile, row_tokens)
    # A maximum does not see NaN.
    is_finite = math.isfinite(mine.off)
    off, behind = group.largest([mine.off, 1 - mine.cosine] if is_finite else [math.inf, 1.0])
    found = Compared(off, 1 - behind)
    model.fast_runner.stack.in_fp8 = found.is_right
    return found


def compared(model: Any, profile: Profile, row_tokens: int) -> Compared:
    """The gradient in 8 bits beside that in bfloat16. Leaves `model` training in bfloat16."""
    stack = model.fast_runner.stack
    matrices, found = stack.matrices(), []
    with _launched(model), _fixed(matrices):
        packs = _packs(model, profile, row_tokens)
        for in_fp8 in (False, True):
            stack.in_fp8 = in_fp8
            try:
                found.append(gradients_of(model, matrices, packs, profile))
            finally:
                stack.in_fp8 = False
    return Compared(*distance(found[1], found[0]))


def distance(found: Sequence[Tensor], exact: Sequence[Tensor]) -> tuple[float, float]:
    """The norm of the difference as a share of that of `exact`, and the cosine, over all tensors together; summed in
    float64. NaN if a number is not finite, or all are zero."""
    sums = torch.zeros(4, dtype=torch.float64, device=exact[0].device)
    for pair in zip(found, exact, strict=True):
        one, other = (tensor.double().flatten() for tensor in pair)
        apart = one - other
        sums += torch.stack([apart @ apart, one @ one, other @ other, one @ other])
    apart, of_found, of_exact, both = sums
    return float((apart / of_exact).sqrt()), float(both / (of_found * of_exact).sqrt())


def gradients_of(
    model: Any, matrices: Sequence[Tensor], packs: Sequence[packing.Pack], profile: Profile
) -> list[Tensor]:
    """Of the mean over tokens of their log-prob, with the sign of their answer's advantage."""
    rows = head_rows_for(profile, model)
    total = sum(len(pack.targets) for pack in packs)
    for pack in packs:
        scored = score(model, pack, profile.sampling.temperature, max_logits=rows * model.config.vocab_size)
        advantages = 1 - 2 * (pack.owners % 2)  # half of a group's answers were better than its mean, half were worse
        (scored.log_probs * advantages).sum().div(total).backward()  # type: ignore[no-untyped-call]
    found = []
    for matrix in matrices:
        assert matrix.grad is not None
        found.append(matrix.grad.clone())
        matrix.grad = None
    return found


def _packs(model: Any, profile: Profile, row_tokens: int) -> list[packing.Pack]:
    """Passes over tokens that depend on the profile and the vocabulary alone."""
    knobs, vocabulary = profile.sampling, model.config.vocab_size
    prompt = min(PROMPT_TOKENS, knobs.max_prompt_tokens)
    completion = min(COMPLETION_TOKENS, knobs.max_completion_tokens)

    def ids(factor: int, count: int) -> tuple[int, ...]:
        return tuple((factor * place + 13) % vocabulary for place in range(count))

    members = [(group, number) for group in range(GROUPS) for number in range(ANSWERS)]
    prompts = [ids(7919 + 2 * group, prompt) for group, _ in members]
    completions = [ids(7907 + 2 * (ANSWERS * group + number), completion) for group, number in members]
    units = packing.units_of(prompts, completions, row_tokens)
    batches = packing.micro_batches(units, profile.optimizer.micro_batch_size, row_tokens)
    return [packing.pack(batch).to(model.device) for batch in batches]


@contextmanager
def _fixed(matrices: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the matrices have values that depend on their shapes and order alone: A as LoRA begins, and B a tenth of
    that, so that both get a gradient."""
    kept = [matrix.detach().to("cpu", copy=True) for matrix in matrices]
    generator = torch.Generator(matrices[0].device).manual_seed(0)
    with torch.no_grad():
        for number, matrix in enumerate(matrices):
            is_b = number % 2
            bound = (0.1 if is_b else 1.0) / matrix.shape[1] ** 0.5
            matrix.uniform_(-bound, bound, generator=generator)
    try:
        yield
    finally:
        with torch.no_grad():
            for matrix, values in zip(matrices, kept, strict=True):
                matrix.copy_(values)


@contextmanager
def _launched(model: Any) -> Iterator[None]:
    """Inside, passes are launched: what is compared must not count as passes that may become graphs."""
    runner = model.fast_runner
    model.fast_runner = getattr(runner, "plain", runner)
    try:
        yield
    finally:
        model.fast_runner = runner
