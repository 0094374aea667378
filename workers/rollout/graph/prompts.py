"""Reads prompts into slots of the static cache with the model's own modules, each distinct prompt once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from workers.rollout.decoder import Decoder, parts
from workers.rollout.graph.state import State

Prompt = tuple[int, ...]


def read_prompts(decoder: Decoder, state: State, prompts: Sequence[Prompt], slots: Sequence[int]) -> None:
    """Keys and values of each prompt's tokens except the last, which the first decode step reads like any other
    token."""
    slots_of: dict[Prompt, list[int]] = {}
    for prompt, slot in zip(prompts, slots, strict=True):
        if len(prompt) > 1:
            slots_of.setdefault(prompt[:-1], []).append(slot)
    for part in parts(list(slots_of), decoder.readable_tokens()):
        _read_part(decoder, state, part, [slots_of[prompt] for prompt in part])


def _read_part(decoder: Decoder, state: State, prompts: Sequence[Prompt], slots: Sequence[Sequence[int]]) -> None:
    device, longest = decoder.model.device, max(map(len, prompts))
    # Padded on the right. Under a causal mask no token sees the padding, and a decode step overwrites a position before
    # reading it.
    ids = torch.tensor([list(prompt) + [0] * (longest - len(prompt)) for prompt in prompts], device=device)
    cos, sin = decoder.rope[:, None, None, :longest]  # [1, 1, T, head_dim]
    rows = torch.tensor([slot for each in slots for slot in each], device=device)
    which = torch.tensor([number for number, each in enumerate(slots) for _ in each], device=device)
    layers = iter(zip(state.keys, state.values, strict=True))

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        for cache, new in zip(next(layers), (key, value), strict=True):
            cache[rows, :, :longest] = new[which]
        return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=decoder.group > 1)

    decoder.run_layers(ids, cos, sin, attend)
