"""A small and fast decoder that calls the model's own layers over its own key/value cache.

Weights are never copied, so the next rollout sees an optimiser step at once. Equal prompts are read once, and finished
rows leave the batch. On a CPU two threads each decode requests of their own: a token's tensors are so small that
threads sharing one spend their time waiting for each other. Not done: paged caches, sliding windows.
"""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from workers.rollout.decoder import Decoder, parts
from workers.rollout.engine import (
    Decode,
    OnEnd,
    Request,
    Rollout,
    Sampling,
    choose,
    draw_uniforms,
    stop_ids_of,
)
from workers.rollout.stopping import StopTexts, rollout_of, stops_of

COMPACT_BELOW = 0.8
"""Compact the batch when less than this share of its rows still run. Compacting copies the cache, which costs too."""
MAX_SHARES = 2
"""Threads that decode on a CPU. More would wait for Python's lock."""


@dataclass
class _Batch:
    """The rows still running. All prompts end at the same column; `start` is where a row's own tokens begin."""

    rows: Tensor  # [B] number of the request
    start: Tensor  # [B] padding columns on the left
    tokens: Tensor  # [B] to read next
    keys: list[Tensor]  # per layer: [B, heads, T, head_dim]
    values: list[Tensor]

    def keep(self, kept: Tensor) -> None:
        """Drop all other rows, one layer at a time: old and new caches of all layers would take twice the memory."""
        self.rows, self.start, self.tokens = self.rows[kept], self.start[kept], self.tokens[kept]
        for caches in (self.keys, self.values):
            for layer, cache in enumerate(caches):
                caches[layer] = cache.index_select(0, kept)


class NativeEngine:
    """A `RolloutEngine` for any model that the `Decoder` runs, with or without adapters in its linear layers."""

    has_queue = False

    def __init__(self, model: Any, decode: Decode | None = None, stop_ids: Iterable[int] | None = None) -> None:
        """decode: needed where a sampling has stop texts. stop_ids: tokens that end a completion; None: the model's.

        Raises EngineUnavailable for a model that it cannot run."""
        self.model = model
        self.decode = decode
        self.decoder = Decoder(model)
        stops = stop_ids_of(model) if stop_ids is None else stop_ids
        self._stop_ids = torch.tensor(sorted(stops), device=model.device)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """One rollout per request, in order."""
        return self.stream(requests, sampling, None)

    def stream(self, requests: Sequence[Request], sampling: Sampling, on_end: OnEnd | None) -> list[Rollout]:
        """The same; calls `on_end` for each rollout when it ends, from the thread that decodes it."""
        if not requests:
            return []
        self.decoder.grow_rope(max(len(request.prompt_ids) for request in requests) + sampling.max_new_tokens)
        threads = torch.get_num_threads() if self.model.device.type == "cpu" else 1
        shares = share_out(requests, min(threads, MAX_SHARES))
        if len(shares) == 1:
            return self._generate_together(requests, sampling, on_end)
        try:
            with ThreadPoolExecutor(len(shares), "rollout", torch.set_num_threads, (threads // len(shares),)) as pool:
                chosen = [[requests[number] for number in share] for share in shares]
                tell = [_renumbered(on_end, share) for share in shares]
                done = list(pool.map(self._generate_together, chosen, [sampling] * len(shares), tell))
        finally:
            torch.set_num_threads(threads)  # the libraries below share one setting among all threads
        pairs = zip(chain(*shares), chain(*done), strict=True)
        return [rollout for _, rollout in sorted(pairs, key=lambda pair: pair[0])]

    @torch.inference_mode()
    def _generate_together(
        self, requests: Sequence[Request], sampling: Sampling, on_end: OnEnd | None
    ) -> list[Rollout]:
        width = max(len(request.prompt_ids) for request in requests)
        limit = sampling.max_new_tokens
        device = self.model.device
        uniforms = draw_uniforms([request.seed for request in requests], limit).to(device)  # [N, limit]
        ids = torch.zeros(len(requests), limit, dtype=torch.long, device=device)
        log_probs = torch.zeros(len(requests), limit, device=device)
        entropies = torch.zeros(len(requests), limit if sampling.entropies else 0, device=device)
        lengths = torch.full((len(requests),), limit, device=device)
        stops = stops_of(sampling, self.decode, self._stop_ids.tolist())
        stop_ids = self._stop_ids[:0] if sampling.ignore_stop else self._stop_ids
        batch, logits = self._read_prompts(requests, width, limit)

        def found(row: int) -> Rollout:
            length = int(lengths[row])
            numbers = (drawn[row, :length].tolist() for drawn in (ids, log_probs, entropies))
            return rollout_of(requests[row], next(numbers), next(numbers), stops, limit, next(numbers))

        told: set[int] = set()
        for step in range(limit):
            tokens, drawn, entropy = choose(logits, uniforms[batch.rows, step], sampling)
            ids[batch.rows, step], log_probs[batch.rows, step] = tokens, drawn
            if entropy is not None:
                entropies[batch.rows, step] = entropy
            ended = torch.isin(tokens, stop_ids)
            if stops:
                ended |= self._completed(stops, ids, batch.rows, step)
            lengths[batch.rows[ended]] = lengths[batch.rows[ended]].clamp(max=step + 1)
            running = lengths[batch.rows] > step + 1
            num_running = int(running.sum())
            if on_end is not None and num_running < len(running):
                for row in set(batch.rows[~running].tolist()) - told:
                    told.add(row)
                    on_end(row, found(row))
            if num_running == 0:
                break
            batch.tokens = tokens
            if num_running < COMPACT_BELOW * len(running):
                batch.keep(running.nonzero().squeeze(1))
            logits = self._decode(batch, width + step)
        rows = zip(requests, *(drawn.tolist() for drawn in (ids, log_probs, entropies)), lengths.tolist(), strict=True)
        return [
            rollout_of(request, row[:length], drawn, stops, limit, entropy)
            for request, row, drawn, entropy, length in rows
        ]

    def _completed(self, stops: StopTexts, ids: Tensor, rows: Tensor, step: int) -> Tensor:
        """Which rows have completed a stop text with this step's token. [B] bool."""
        last = ids[rows, step].tolist()
        found = torch.zeros(len(last), dtype=torch.bool, device=ids.device)
        for place in [place for place, token in enumerate(last) if stops.may_end_in(token)]:
            tail = ids[rows[place], max(0, step + 1 - stops.window) : step + 1].tolist()
            found[place] = stops.are_in(tail)
        return found

    def rest(self) -> None:
        """Nothing to give back: caches live for one call, and the weights are the model's own."""

    def close(self) -> None:
        pass

    def _read_prompts(self, requests: Sequence[Request], width: int, limit: int) -> tuple[_Batch, Tensor]:
        """Runs each distinct prompt once and copies its cache to all its requests. Logits: [B, V]."""
        device, dtype = self.model.device, self.decoder.dtype
        room = (len(requests), self.decoder.key_heads, width + limit, self.decoder.head_dim)
        keys, values = (
            [torch.empty(room, dtype=dtype, device=device) for _ in self.model.model.layers] for _ in range(2)
        )
        rows_of: dict[tuple[int, ...], list[int]] = {}
        for row, request in enumerate(requests):
            rows_of.setdefault(request.prompt_ids, []).append(row)
        start = torch.tensor([width - len(request.prompt_ids) for request in requests], device=device)
        logits: Tensor | None = None
        for prompts in parts(list(rows_of), self.decoder.readable_tokens()):
            rows = torch.tensor([row for prompt in prompts for row in rows_of[prompt]], device=device)
            which = torch.tensor([i for i, prompt in enumerate(prompts) for _ in rows_of[prompt]], device=device)
            found = self._read_part(prompts, which, rows, width, (keys, values))
            if logits is None:
                logits = found.new_empty(len(requests), found.shape[-1])
            logits[rows] = found[which]
        assert logits is not None
        rows = torch.arange(len(requests), device=device)
        return _Batch(rows, start, rows, keys, values), logits

    def _read_part(
        self,
        prompts: Sequence[tuple[int, ...]],
        which: Tensor,
        rows: Tensor,
        width: int,
        caches: tuple[list[Tensor], list[Tensor]],
    ) -> Tensor:
        """One pass over distinct prompts; returns the logits after each, [U, V].

        rows: [R], rows of the caches; which: [R], the prompt that each row gets.
        """
        device, longest = self.model.device, max(map(len, prompts))
        start = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)  # [U]
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        columns = torch.arange(longest, device=device)
        # A padding column may see itself, because a softmax row without any key would be NaN.
        itself = torch.eye(longest, dtype=torch.bool, device=device)
        visible = (columns[None, :] >= start[:, None])[:, None, :] | itself
        mask = (visible & (columns[None, :] <= columns[:, None]))[:, None]  # [U, 1, T, T]
        cos, sin = self.decoder.rope[:, (columns - start[:, None]).clamp(min=0)][:, :, None]  # [U, 1, T, head_dim]
        layers = zip(*caches, strict=True)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            for cache, new in zip(next(layers), (key, value), strict=True):
                cache[rows, :, : width - longest] = 0  # masked, but 0 times NaN would be NaN
                cache[rows, :, width - longest : width] = new[which]
            return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=self.decoder.group > 1)

        hidden = self.decoder.run_layers(ids, cos, sin, attend)
        logits: Tensor = self.model.lm_head(hidden[:, -1])
        return logits

    def _decode(self, batch: _Batch, column: int) -> Tensor:
        """Reads one token per row into cache column `column`; returns the logits after it, [B, V]."""
        cos, sin = self.decoder.rope[:, column - batch.start][:, :, None, None]  # [B, 1, 1, head_dim]
        columns = torch.arange(column + 1, device=batch.start.device)
        mask = (columns >= batch.start[:, None])[:, None, None]  # [B, 1, 1, T]
        bias = torch.zeros_like(mask, dtype=cos.dtype).masked_fill_(~mask, float("-inf"))
        layers = iter(zip(batch.keys, batch.values, strict=True))

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = next(layers)
            keys[:, :, column], values[:, :, column] = key[:, :, 0], value[:, :, 0]
            keys, values = keys[:, :, : column + 1], values[:, :, : column + 1]
            # Query heads that share a key head become several queries of one head, so no key is repeated.
            query = query.reshape(len(query), -1, self.decoder.group, self.decoder.head_dim)
            mixed = scaled_dot_product_attention(query, keys, values, attn_mask=bias)
            return mixed.reshape(len(query), -1, 1, self.decoder.head_dim)

        hidden = self.decoder.run_layers(batch.tokens[:, None], cos, sin, attend)
        logits: Tensor = self.model.lm_head(hidden[:, -1])
        return logits


def _renumbered(on_end: OnEnd | None, share: Sequence[int]) -> OnEnd | None:
    """For the requests of a share: tells their numbers among all."""
    return on_end and (lambda number, rollout: on_end(share[number], rollout))


def share_out(requests: Sequence[Request], count: int) -> list[list[int]]:
    """Request numbers in at most `count` shares of similar size; equal prompts stay together. (pure)

    Prompts of similar length share, because the longest sets a share's width.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(request.prompt_ids, []).append(number)
    shares: list[list[int]] = []
    room = 0
    for prompt in sorted(groups, key=len):
        if room <= 0:
            shares.append([])
            room = math.ceil(len(requests) / count)
        shares[-1] += groups[prompt]
        room -= len(groups[prompt])
    return shares
