"""Log-probabilities of sampled tokens under the policy as it is now, with gradient."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from workers.loss import token_entropy
from workers.models.packing import Pack
from workers.models.recompute import while_learning

MAX_LOGITS = 1 << 25
"""Logits at one time, 128 MiB in float32: over 150 000 tokens of vocabulary those of all places would fill a card."""


class Scored(NamedTuple):
    """log_probs: [N], of the completion tokens. entropy: [N], of the distributions they were drawn from."""

    log_probs: Tensor
    entropy: Tensor


def score(
    model: Any, pack: Pack, temperature: float, *, entropy_needs_grad: bool = False, max_logits: int = MAX_LOGITS
) -> Scored:
    """Run the pack through `model`, a causal language model of transformers. Both results are float32.

    The output head sees the completion's places only: over the prompt its logits would be thrown away. Where they are
    more than `max_logits`, it sees them in portions, and each portion's logits are computed again in the backward pass.
    """
    with while_learning(model):
        hidden = model.model(
            input_ids=pack.ids, position_ids=pack.positions, attention_mask=pack.mask, use_cache=False
        ).last_hidden_state  # [R, T, hidden]
    places: Any = hidden.flatten(0, 1)[pack.predictors]  # [N, hidden]
    head = partial(_head, model.lm_head, temperature=temperature, entropy_needs_grad=entropy_needs_grad)
    size = max(1, max_logits // model.config.vocab_size)
    if len(places) <= size:
        return Scored(*head(places, pack.targets))
    targets: Any = pack.targets
    portions = [
        checkpoint(head, *portion, use_reentrant=False, preserve_rng_state=False)
        for portion in zip(places.split(size), targets.split(size), strict=True)
    ]
    log_probs, entropy = zip(*portions, strict=True)
    return Scored(torch.cat(log_probs), torch.cat(entropy))


def _head(
    lm_head: Any, places: Tensor, targets: Tensor, *, temperature: float, entropy_needs_grad: bool
) -> tuple[Tensor, Tensor]:
    """places: [N, hidden], targets: [N]; log_probs and entropies, [N] each."""
    logits = lm_head(places).float() / temperature  # [N, V]
    log_p = torch.log_softmax(logits, dim=-1)
    log_probs = log_p.gather(1, targets[:, None]).squeeze(1)
    with torch.set_grad_enabled(entropy_needs_grad and torch.is_grad_enabled()):
        entropy = token_entropy(logits)
    return log_probs, entropy
