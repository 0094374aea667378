"""One completion, token by token, for an interactive user: any causal model of transformers, at any temperature.

Rollouts do not use this: their engines keep log-probabilities and never truncate a distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def pick(logits: Tensor, generator: torch.Generator, *, temperature: float, top_k: int = 0, top_p: float = 1.0) -> int:
    """The next token from logits over [V]; at temperature 0 the likeliest, the first among equals.

    top_k: keep only this many of the likeliest; 0: all. top_p: keep only the likeliest whose probabilities first reach
    this sum.
    """
    if temperature == 0:
        return int(logits.argmax())
    ordered, tokens = (logits.double() / temperature).sort(descending=True, stable=True)
    probabilities = ordered.softmax(dim=0)
    before = probabilities.cumsum(dim=0) - probabilities
    allowed = before < top_p
    if top_k:
        allowed[top_k:] = False
    allowed[0] = True
    place = torch.multinomial(probabilities * allowed, 1, generator=generator)
    return int(tokens[place])


@torch.inference_mode()
def tokens_after(
    model: Any, prompt: Sequence[int], limit: int, choose: Callable[[Tensor], int], is_stopped: Callable[[], bool]
) -> Iterator[int]:
    """At most `limit` tokens after a prompt, each as soon as it is chosen. Stops early once `is_stopped()`."""
    ids = torch.tensor([list(prompt)], device=model.device)
    cache: Any = None
    for _ in range(limit):
        if is_stopped():
            return
        found = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = found.past_key_values
        token = choose(found.logits[0, -1].float().cpu())
        yield token
        ids = torch.tensor([[token]], device=model.device)
