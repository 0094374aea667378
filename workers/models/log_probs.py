"""Log-probabilities of sampled tokens under the current policy, with gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from profiles.footprint import MAX_LOGITS, head_rows_of
from profiles.schema import Profile
from profiles.shapes import shape_of
from workers.loss.fused_head import fused_log_probs
from workers.loss.policy import token_entropy
from workers.models import attention, fast_stack, plain
from workers.models.head import logits_of
from workers.models.packing import Pack
from workers.models.recompute import while_learning


class Scored(NamedTuple):
    """log_probs: [N], of the completion tokens. entropy: [N], of the distributions that they were drawn from."""

    log_probs: Tensor
    entropy: Tensor


def head_rows_for(profile: Profile, model: Any) -> int:
    """How many rows of logits the output head computes at a time."""
    try:
        return head_rows_of(profile, shape_of(model.config.to_dict()))
    except (KeyError, AttributeError, TypeError):  # an architecture that names its sizes differently
        return max(1, MAX_LOGITS // int(model.config.vocab_size))


class Places(NamedTuple):
    """The loss's inputs. weight, bias: of the output head, [V, H] and [V]; None if `states` already holds logits.
    scale, cap: as in `fused_log_probs`."""

    states: Tensor
    weight: Tensor | None
    bias: Tensor | None
    scale: float = 1.0
    cap: float | None = None


def read(model: Any, pack: Pack) -> Places:
    """A pass over the pack, with gradient."""
    if plain.reason_of(model):  # its head may scale or cap the logits
        with while_learning(model):
            return Places(plain.logits_of(model, pack), None, None)
    one = plain.described(model)
    scale, cap = (one.logit_scale, one.logit_cap) if one is not None else (1.0, None)
    return Places(places_of(model, pack), model.lm_head.weight, model.lm_head.bias, scale, cap)


def places_of(model: Any, pack: Pack) -> Tensor:
    """Final hidden states that predict the completion tokens, [N, hidden]: the input of the output head."""
    hidden = fast_stack.hidden_of(model, pack.ids, pack.positions, pack.segments)  # [R, T, hidden]
    if hidden is None:
        mask = attention.mask_for(model, pack)
        with while_learning(model):
            hidden = model.model(
                input_ids=pack.ids, position_ids=pack.positions, attention_mask=mask, use_cache=False
            ).last_hidden_state
    return hidden.flatten(0, 1)[pack.predictors]


def score(
    model: Any, pack: Pack, temperature: float, *, entropy_needs_grad: bool = False, max_logits: int = MAX_LOGITS
) -> Scored:
    """Run the pack through `model`, a causal language model of transformers. Both results are float32.

    The output head runs on the completion's positions only; logits over the prompt would be thrown away. Above
    `MAX_LOGITS` it runs in chunks of `max_logits`, and the backward pass recomputes the logits of each chunk. Below
    that, as always with the pocket model, chunks would be slower: 4.9 ms against 4.2 for 1500 positions of 109 words.
    The rule depends on sizes only, so equal steps take the same path; the two paths differ in the last bits.
    """
    places, weight, bias, scale, cap = read(model, pack)
    vocabulary = (places if weight is None else weight).shape[1 if weight is None else 0]
    size = max(1, max_logits // vocabulary)
    if weight is None or len(places) > min(size, MAX_LOGITS // vocabulary):
        log_probs, entropy = fused_log_probs(
            places, weight, pack.targets, temperature=temperature, chunk=size, bias=bias, scale=scale, cap=cap
        )
        return Scored(log_probs.float(), (entropy if entropy_needs_grad else entropy.detach()).float())
    logits = logits_of(model, places, plain.described(model)).float() / temperature  # [N, V]
    log_p = torch.log_softmax(logits, dim=-1)
    log_probs = log_p.gather(1, pack.targets[:, None]).squeeze(1)
    with torch.set_grad_enabled(entropy_needs_grad and torch.is_grad_enabled()):
        entropy = token_entropy(logits)
    return Scored(log_probs, entropy)
