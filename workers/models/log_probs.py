"""Log-probabilities of sampled tokens under the policy as it is now, with gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from workers.loss import token_entropy
from workers.models.packing import Pack


class Scored(NamedTuple):
    """log_probs: [N], of the completion tokens. entropy: [N], of the distributions they were drawn from."""

    log_probs: Tensor
    entropy: Tensor


def score(model: Any, pack: Pack, temperature: float, *, entropy_needs_grad: bool = False) -> Scored:
    """Run the pack through `model`, a causal language model of transformers. Both results are float32.

    The output head sees the completion's places only: over the prompt its logits would be thrown away.
    """
    hidden = model.model(
        input_ids=pack.ids, position_ids=pack.positions, attention_mask=pack.mask, use_cache=False
    ).last_hidden_state  # [R, T, hidden]
    logits = model.lm_head(hidden.flatten(0, 1)[pack.predictors]).float() / temperature  # [N, V]
    log_p = torch.log_softmax(logits, dim=-1)
    log_probs = log_p.gather(1, pack.targets[:, None]).squeeze(1)  # [N]
    with torch.set_grad_enabled(entropy_needs_grad and torch.is_grad_enabled()):
        entropy = token_entropy(logits)
    return Scored(log_probs, entropy)
