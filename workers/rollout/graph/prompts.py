"""Reads prompts, and what follows in a conversation, into slots of the static cache.

Prompts are read by the trainer's written-out layers where it has some, which wait less for the processor; else by the
model's own modules, as what follows in a conversation always is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from workers.models.fast_stack import read
from workers.models.fused_layers import ROUNDED
from workers.rollout.decoder import Attend, Decoder, parts
from workers.rollout.graph.state import State

Prompt = tuple[int, ...]


def read_prompts(
    decoder: Decoder, state: State, prompts: Sequence[Prompt], slots: Sequence[int], shared: Mapping[int, int]
) -> None:
    """Keys and values of each prompt's tokens except the last, which the first decode step reads like any other
    token. Equal prompts are read once. shared: how many tokens at the begin of a slot other rows have read."""
    slots_of: dict[Prompt, list[int]] = {}
    for prompt, slot in zip(prompts, slots, strict=True):
        if len(prompt) > 1:
            slots_of.setdefault(prompt[:-1], []).append(slot)
    for part in parts(list(slots_of), decoder.readable_tokens()):
        _read_part(decoder, state, part, [slots_of[prompt] for prompt in part], shared)


def _read_part(
    decoder: Decoder,
    state: State,
    prompts: Sequence[Prompt],
    slots: Sequence[Sequence[int]],
    shared: Mapping[int, int],
) -> None:
    device, longest = decoder.model.device, max(map(len, prompts))
    # Padded on the right. Under a causal mask no token sees the padding, and a decode step overwrites a position before
    # reading it.
    ids = torch.tensor([list(prompt) + [0] * (longest - len(prompt)) for prompt in prompts], device=device)
    positions = torch.arange(longest, device=device)[None]
    rows = torch.tensor([slot for each in slots for slot in each], device=device)
    which = torch.tensor([number for number, each in enumerate(slots) for _ in each], device=device)
    kept = _kept(state, prompts, slots, shared, rows)

    def keep(number: int, key: Tensor, value: Tensor) -> None:
        if kept is None:
            state.keys[number][rows, :, :longest], state.values[number][rows, :, :longest] = key[which], value[which]
        else:
            of_rows, places = kept
            state.write(number, of_rows, places, key.transpose(1, 2)[which], value.transpose(1, 2)[which])

    # All tokens of one segment: each sees those up to its own place.
    segments = torch.zeros(*ids.shape, 2, dtype=torch.int32, device=device)[:, None]
    if read(decoder.model, ids, positions.expand_as(ids), segments, keep):
        return
    mixed = _over_whole_rows(decoder, positions, segments)

    def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keep(number, key, value)
        return mixed(number, query, key, value)

    decoder.run_layers(ids, positions, attend)


def _over_whole_rows(decoder: Decoder, positions: Tensor, segments: Tensor) -> Attend:
    """Attention of rows that begin at the first position, each token to those before it. positions: [1, T]; segments:
    [R, 1, T, 2], all of one."""
    one, longest = decoder.architecture, positions.shape[1]
    if decoder.model.device.type == "cuda" and decoder.dtype in ROUNDED and decoder.has_attention_kernels:
        from workers.models.attention_kernels import Attention

        # With positions behind, of which a window reads those near a token.
        near = torch.cat((segments, positions.int()[..., None].expand(len(segments), 1, -1, 1)), dim=-1)
        apply: Any = Attention.apply

        def by_kernels(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            window = decoder.layers[number].window
            scale = query.shape[-1] ** -0.5 if one.attention_scale is None else one.attention_scale
            seen = segments if window is None else near
            found: Tensor = apply(query, key, value, seen, scale, window or 0, one.attention_cap or 0.0)
            return found.transpose(1, 2)

        return by_kernels
    masks: dict[int | None, Tensor] = {}
    if any(layer.window is not None and layer.window < longest for layer in decoder.layers) or decoder.has_cap:
        masks = decoder.masks(positions <= positions.T, positions[0], positions[0])

    def by_torch(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if (masks and decoder.layers[number].window is not None) or decoder.has_cap:
            return decoder.attention(query, key, value, masks[decoder.layers[number].window])
        is_grouped, scale = query.shape[1] != key.shape[1], one.attention_scale
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=is_grouped)

    return by_torch


def _kept(
    state: State, prompts: Sequence[Prompt], slots: Sequence[Sequence[int]], shared: Mapping[int, int], rows: Tensor
) -> tuple[Tensor, Tensor] | None:
    """(slots, [R, 1]; which of its tokens each of them keeps, [R, T]). None: all, as the cache is not paged.

    Padding and what others have read go to the place of the last token, which the first decode step overwrites before
    it is read.
    """
    if state.table is None:
        return None
    device, places = rows.device, torch.arange(max(map(len, prompts)), device=rows.device)
    lengths = torch.tensor([len(prompt) for prompt, each in zip(prompts, slots, strict=True) for _ in each])
    firsts = torch.tensor([shared.get(slot, 0) for each in slots for slot in each])
    lengths, firsts = lengths.to(device)[:, None], firsts.to(device)[:, None]
    return rows[:, None], torch.where((places >= firsts) & (places < lengths), places, lengths)


def read_behind(
    decoder: Decoder, state: State, new: Sequence[Sequence[int]], slots: Sequence[int], begins: Sequence[int]
) -> None:
    """Keys and values of the ids that follow those in a slot's cache. begins: position of the first, for each slot."""
    at_once = max(1, decoder.readable_tokens() // max(map(len, new)))
    for low in range(0, len(new), at_once):
        part = slice(low, low + at_once)
        _read_behind(decoder, state, new[part], slots[part], begins[part])


def _read_behind(
    decoder: Decoder, state: State, new: Sequence[Sequence[int]], slots: Sequence[int], begins: Sequence[int]
) -> None:
    device, longest = decoder.model.device, max(map(len, new))
    ids = torch.tensor([list(one) + [0] * (longest - len(one)) for one in new], device=device)
    begin, rows = torch.tensor(begins, device=device), torch.tensor(slots, device=device)
    lengths, offsets = torch.tensor([len(one) for one in new], device=device), torch.arange(longest, device=device)
    is_new = offsets < lengths[:, None]  # [R, K]; padding on the right is read, but not kept
    positions = (begin[:, None] + offsets).clamp(max=state.shape.cache_length - 1)  # [R, K]
    width = max(first + len(one) for first, one in zip(begins, new, strict=True))
    mask = (torch.arange(width, device=device) <= positions[..., None])[:, None]  # [R, 1, K, T]
    slots_of_new, places_of_new = rows[:, None].expand_as(positions)[is_new], positions[is_new]
    near = positions[:, None, :, None] - torch.arange(width, device=device)  # [R, 1, K, T]

    def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        window = decoder.layers[number].window
        new_keys, new_values = (more.transpose(1, 2)[is_new] for more in (key, value))
        state.write(number, slots_of_new, places_of_new, new_keys, new_values)
        keys, values = state.read(number, rows, width)
        return decoder.attention(query, keys, values, mask if window is None else mask & (near < window))

    decoder.run_layers(ids, positions, attend)
