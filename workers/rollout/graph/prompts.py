"""Reads prompts, and what follows in a conversation, into slots of the static cache.

Prompts are read by the trainer's written-out layers where it has some, which wait less for the processor and may
become graphs; else by the model's own modules, as what follows in a conversation always is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from workers.models.attention import of_one_pass
from workers.models.fast_graphs import rounded
from workers.models.fast_stack import has_stack, read
from workers.models.fused_layers import ROUNDED
from workers.rollout.decoder import Attend, Decoder, parts
from workers.rollout.graph.prompt_graphs import Passes
from workers.rollout.graph.state import State

Prompt = tuple[int, ...]
HEAD = 3
"""What stands before the ids in a row: its slot, the first of its tokens that the slot keeps, its length."""


def passes_over(decoder: Decoder, state: State, graph_bytes: int) -> Passes:
    """The passes of `read_prompts` into this cache. graph_bytes: what those that become graphs may hold."""
    return Passes(decoder.model, partial(_read_rows, decoder, state), decoder.tokens_within(graph_bytes))


def read_prompts(
    decoder: Decoder,
    state: State,
    passes: Passes,
    prompts: Sequence[Prompt],
    slots: Sequence[int],
    shared: Mapping[int, int],
) -> None:
    """Keys and values of each prompt's tokens except the last, which the first decode step reads like any other
    token. Equal prompts are read once. shared: how many tokens at the begin of a slot other rows have read."""
    slots_of: dict[Prompt, list[int]] = {}
    for prompt, slot in zip(prompts, slots, strict=True):
        if len(prompt) > 1:
            slots_of.setdefault(prompt[:-1], []).append(slot)
    length_of = rounded if has_stack(decoder.model) else int
    for part in parts(list(slots_of), decoder.readable_tokens(), length_of):
        length = length_of(max(map(len, part)))
        # Padded on the right. Under a causal mask no token sees the padding.
        rows = [
            [slots_of[one][0], shared.get(slots_of[one][0], 0), len(one), *one, *[0] * (length - len(one))]
            for one in part
        ]
        passes(torch.tensor(rows))
        _copy_to_others(state, {prompt: slots_of[prompt] for prompt in part}, shared)


def _read_rows(decoder: Decoder, state: State, rows: Tensor) -> None:
    """One pass over prompts. rows: [R, HEAD + T], on the device."""
    slots, firsts, lengths, ids = rows[:, :1], rows[:, 1:2], rows[:, 2:HEAD], rows[:, HEAD:]
    pages, places = state.at(*_kept(slots, firsts, lengths, ids.shape[1]))

    def keep(number: int, key: Tensor, value: Tensor) -> None:
        state.put(number, pages, places, key, value)

    if has_stack(decoder.model):
        angles = {name: table[:, None, : ids.shape[1]] for name, table in decoder.ropes.items()}
        read(decoder.model, ids, angles, keep)
        return
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    mixed = _over_whole_rows(decoder, positions, len(ids))

    def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keep(number, key, value)
        return mixed(number, query, key, value)

    decoder.run_layers(ids, positions, attend)


def _kept(slots: Tensor, firsts: Tensor, lengths: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Slots, and which of their places the tokens of each row go to, [R, longest] each. All given: [R, 1].

    Padding and what others have read go to the place of the last token, which the first decode step overwrites before
    it is read.
    """
    places = torch.arange(longest, device=slots.device)
    kept = torch.where((places >= firsts) & (places < lengths), places, lengths)
    return slots.expand_as(kept).contiguous(), kept


def _copy_to_others(state: State, slots_of: Mapping[Prompt, Sequence[int]], shared: Mapping[int, int]) -> None:
    """Copy what the first slot of each prompt holds to the others. Their number varies, so a graph cannot do it."""
    copies = [
        (slots[0], slot, shared.get(slot, 0), len(prompt)) for prompt, slots in slots_of.items() for slot in slots[1:]
    ]
    if not copies:
        return
    sources, targets, firsts, lengths = torch.tensor(copies, device=state.tokens.device).T
    longest = max(length for *_, length in copies)
    pages, places = state.at(*_kept(targets[:, None], firsts[:, None], lengths[:, None], longest))
    for layer in range(len(state.keys)):
        state.put(layer, pages, places, *state.read(layer, sources, longest))


def _over_whole_rows(decoder: Decoder, positions: Tensor, rows: int) -> Attend:
    """Attention of rows that begin at the first position, each token to those before it. positions: [1, T]."""
    one, longest = decoder.architecture, positions.shape[1]
    if decoder.model.device.type == "cuda" and decoder.dtype in ROUNDED and decoder.has_attention_kernels:
        from workers.models.attention_kernels import Attention

        segments = torch.zeros(rows, 1, longest, 2, dtype=torch.int32, device=positions.device)
        # With positions behind, of which a window reads those near a token.
        near = torch.cat((segments, positions.int()[..., None].expand(len(segments), 1, -1, 1)), dim=-1)
        apply: Any = Attention.apply
        for_all, for_windows = of_one_pass(segments), of_one_pass(near)

        def by_kernels(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            window = decoder.layers[number].window
            scale = query.shape[-1] ** -0.5 if one.attention_scale is None else one.attention_scale
            seen: Any = for_all if window is None else for_windows
            found: Tensor = apply(query, key, value, seen, scale, window or 0, one.attention_cap or 0.0, seen.lists)
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
