"""Output head, log-probabilities, entropy and their loss, chunk by chunk: no N x V tensor ever exists.

The logits of 8 completions of 512 tokens over 151 936 words are 2.3 GiB in float32, and a plain loss holds several such
tensors. Here `chunk` rows are computed, used and overwritten: two buffers of chunk x V (0.15 GiB for 128 rows) whatever
N.

Two forms of the same mathematics, both exact up to rounding (no approximation, no sampling): - `fused_log_probs`
returns log-probabilities and entropies with gradient, for any loss. Its backward computes the logits a second time. -
`fused_loss` takes the loss of a token, so it computes the gradient of the hidden states while the logits are there, and
computes logits once. Only that gradient, N x H, stays until `backward`.

A frozen head (LoRA, QLoRA) has no weight gradient. That of a trainable or tied head is summed over the chunks in
float32 (V x H), and added to the weight once. Sums and exponentials are in float32 also for 16-bit inputs, which are
rounded only as factors of products (float64 for float64).

Source: computing the gradient of a chunked loss in the forward pass is Liger-Kernel's idea, arXiv 2410.10989.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from workers.loss.fused_kernels import accumulator, add_outer, chunk_for, logits_into, times_weight

CHUNK = 128
"""Rows of logits at a time. Fewer save memory; more read the head's weights less often, which suits large cards."""


class Shaping(NamedTuple):
    """What becomes of the products with the head before the softmax: cap(scale * y) / temperature."""

    temperature: float
    scale: float = 1.0
    cap: float | None = None


TokenLosses = Callable[[Tensor, Tensor, slice], Tensor]
"""(log_probs, entropy, which) -> weighted losses, [c] each, for the tokens `which`. Their sum is the loss."""


def fused_log_probs(
    hidden: Tensor,
    weight: Tensor | None,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    bias: Tensor | None = None,
    scale: float = 1.0,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution in nats: [N] each, float32, with gradient.

    hidden: [N, H]; weight: [V, H]; bias: [V]; targets: [N] token ids. Logits are scale * (hidden weight^T + bias);
    under a soft cap a logit x becomes cap * tanh(x / cap). Distributions are softmax(logits / temperature). If weight
    is None, `hidden` holds the logits of the model's own head, [N, V]. Detach the entropy if you need no gradient of
    it; then none is computed. Raises ValueError for shapes that do not fit.
    """
    if weight is None:
        return _log_probs_of(hidden, targets, temperature, chunk)
    _check(hidden, weight, targets, chunk)
    log_probs, entropy = _LogProbs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, Shaping(temperature, scale, cap), chunk
    )
    return log_probs, entropy


def fused_entropy(
    hidden: Tensor,
    weight: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    bias: Tensor | None = None,
    scale: float = 1.0,
    cap: float | None = None,
) -> Tensor:
    """Entropies only, [N] in nats, without gradient. A percentile over the whole minibatch needs them first."""
    with torch.no_grad():
        targets = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
        how: dict[str, Any] = {"temperature": temperature, "chunk": chunk, "bias": bias, "scale": scale, "cap": cap}
        return fused_log_probs(hidden, weight, targets, **how)[1]


def fused_loss(
    hidden: Tensor,
    weight: Tensor | None,
    targets: Tensor,
    token_losses: TokenLosses,
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    bias: Tensor | None = None,
    scale: float = 1.0,
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of `token_losses`, with gradient; and log-probabilities and entropies, [N] each, without.

    `token_losses` is called once per chunk and differentiated by autograd, so it may be any function of these tokens'
    log-probabilities and entropies. Shapes and errors are those of `fused_log_probs`.
    """
    if weight is None:
        log_probs, entropy = _log_probs_of(hidden, targets, temperature, chunk)
        loss = token_losses(log_probs, entropy, slice(0, len(targets))).sum()
        return loss, log_probs.detach(), entropy.detach()
    _check(hidden, weight, targets, chunk)
    loss, log_probs, entropy = _OnePass.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, Shaping(temperature, scale, cap), chunk, token_losses, torch.is_grad_enabled()
    )
    return loss, log_probs, entropy


def _log_probs_of(logits: Tensor, targets: Tensor, temperature: float, chunk: int) -> tuple[Tensor, Tensor]:
    """`fused_log_probs` for existing logits, [N, V]; float32 copies exist for `chunk` rows at a time."""

    def read(part: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(part.to(accumulator(part.dtype)) / temperature, dim=-1)
        # Some models exclude words with -inf; such a word contributes nothing to the entropy.
        entropy = -(log_p.exp() * log_p.clamp(min=-1e30)).sum(-1)
        return log_p.gather(1, chosen[:, None]).squeeze(1), entropy

    parts = zip(torch.split(logits, chunk), torch.split(targets, chunk), strict=True)
    found = [checkpoint(read, *one, use_reentrant=False, preserve_rng_state=False) for one in parts]
    log_probs, entropy = (torch.cat(each) for each in zip(*found, strict=True))
    return log_probs, entropy


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shaping: Shaping, chunk: int
    ) -> Any:
        ctx.set_materialize_grads(False)  # a gradient of None: the loss does not depend on that result
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.settings = shaping, chunk
        head = _Head(hidden, weight, bias, targets, shaping, chunk)
        log_probs, entropy = head.results()
        for part in head.parts():
            log_probs[part], entropy[part] = head.read(part)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_probs: Tensor | None, of_entropy: Tensor | None) -> Any:
        head = _Head(*ctx.saved_tensors, *ctx.settings)
        head.prepare(ctx.needs_input_grad)
        for part in head.parts():
            head.read(part)
            head.add_gradient(part, *(None if one is None else one[part] for one in (of_log_probs, of_entropy)))
        return *_rounded(head.sums, head.inputs), None, None, None


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        shaping: Shaping,
        chunk: int,
        token_losses: TokenLosses,
        is_learning: bool,
    ) -> Any:
        head = _Head(hidden, weight, bias, targets, shaping, chunk)
        is_learning = is_learning and any(ctx.needs_input_grad)
        if is_learning:
            head.prepare(ctx.needs_input_grad)
        log_probs, entropy = head.results()
        total = log_probs.new_zeros(())
        for part in head.parts():
            log_probs[part], entropy[part] = head.read(part)
            with torch.enable_grad():
                given = [one[part].clone().requires_grad_() for one in (log_probs, entropy)]
                loss = token_losses(given[0], given[1], part).sum()
            total += loss.detach()
            if is_learning and loss.requires_grad:
                head.add_gradient(part, *torch.autograd.grad(loss, given, allow_unused=True))
        ctx.save_for_backward(hidden, weight, bias)
        ctx.sums = head.sums  # not the head itself, so that its buffers are freed
        ctx.mark_non_differentiable(log_probs, entropy)
        return total, log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor, *_: Any) -> Any:
        sums = (None if one is None else one * of_loss for one in ctx.sums)
        return *_rounded(sums, ctx.saved_tensors), None, None, None, None, None


class _Head:
    """The output head over N positions: reads them chunk by chunk, and sums gradients of the inputs that need them."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shaping: Shaping, chunk: int
    ) -> None:
        self.inputs, self._targets, self._shaping = (hidden, weight, bias), targets, shaping
        self._size = chunk
        self._chunk = chunk_for(min(chunk, len(hidden)), weight)
        self.sums: list[Tensor | None] = [None, None, None]

    def results(self) -> tuple[Tensor, Tensor]:
        log_probs = self.inputs[0].new_empty(len(self._targets), dtype=accumulator(self.inputs[1].dtype))
        return log_probs, torch.empty_like(log_probs)

    def parts(self) -> Iterator[slice]:
        for begin in range(0, len(self._targets), self._size):
            yield slice(begin, min(begin + self._size, len(self._targets)))

    def read(self, part: slice) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, [c] each."""
        hidden, weight, bias = self.inputs
        targets = self._targets[part]
        logits, (temperature, scale, cap) = self._chunk.logits[: len(targets)], self._shaping
        logits_into(logits, hidden[part], weight, bias, (temperature if cap is None else cap) / scale)
        if cap is not None:
            self._slopes = 1 - logits.tanh_() ** 2
            logits *= cap / temperature
        return self._chunk.read(targets)

    def prepare(self, needs: tuple[bool, ...]) -> None:
        """needs: whether hidden, weight and bias want a gradient."""
        for number, one in enumerate(self.inputs):
            if needs[number] and one is not None:
                self.sums[number] = torch.zeros_like(one, dtype=accumulator(one.dtype))

    def add_gradient(self, part: slice, of_log_probs: Tensor | None, of_entropy: Tensor | None) -> None:
        """Call it after `read` of the same part; it overwrites those logits. of_log_probs, of_entropy: [c]; None:
        zero."""
        if of_log_probs is None:
            if of_entropy is None:
                return
            of_log_probs = torch.zeros_like(of_entropy)
        # Scale rows to about 1 before rounding to 16 bits: float16 would lose a gradient of 1e-6.
        scale = of_log_probs.abs() if of_entropy is None else of_log_probs.abs() + of_entropy.abs()
        safe = torch.where(scale == 0, 1.0, scale)
        e = None if of_entropy is None else of_entropy / safe
        dz = self._chunk.gradient(self._targets[part], of_log_probs / safe, e)  # [c, V]
        if self._shaping.cap is not None:
            dz *= self._slopes
        factor = (scale * self._shaping.scale / self._shaping.temperature)[:, None]
        hidden, weight, _ = self.inputs
        of_hidden, of_weight, of_bias = self.sums
        if of_hidden is not None:
            torch.mul(times_weight(dz, weight), factor, out=of_hidden[part])
        if of_weight is not None:
            add_outer(of_weight, dz, (hidden[part] * factor).to(hidden.dtype))
        if of_bias is not None:
            of_bias += factor.t().mm(dz.to(of_bias.dtype))[0]


def _rounded(sums: Iterable[Tensor | None], inputs: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
    """Gradients in the dtypes of the inputs. Rounded only now: with float16, loss scaling keeps small ones alive."""
    for total, one in zip(sums, inputs, strict=True):
        yield None if total is None or one is None else total.to(one.dtype)


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1] or targets.shape != hidden.shape[:1]:
        shapes = " ".join(str(list(one.shape)) for one in (hidden, weight, targets))
        raise ValueError(f"hidden, weight and targets are {shapes}; they must be [N, H] [V, H] [N]")
    if hidden.dtype != weight.dtype:
        raise ValueError(f"hidden states are {hidden.dtype} and the head's weights {weight.dtype}; make them the same")
    if chunk < 1:
        raise ValueError(f"a chunk of {chunk} rows is empty")
