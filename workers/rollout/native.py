"""A small and fast decoder for Qwen2 models: it calls the model's own layers over a key/value cache of its own.

Weights are never copied, so an optimiser step is seen by the next rollout at once. Equal prompts are read once, rows
that have finished leave the batch. On a CPU two threads decode requests of their own: a token's tensors are so small
that threads which share one spend their time waiting for each other. Not done: paged caches, sliding windows, other
architectures.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from workers.rollout.engine import (
    Decode,
    EngineUnavailable,
    Request,
    Rollout,
    Sampling,
    choose,
    draw_uniforms,
    stop_ids_of,
)
from workers.rollout.stopping import StopTexts, rollout_of

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
COMPACT_BELOW = 0.8
"""The batch is compacted when fewer of its rows than this share still run: a copy of the cache has a price too."""
MAX_SHARES = 2
"""Threads that decode on a CPU: more would wait for Python's lock."""


@dataclass
class _Batch:
    """The rows that still run. All prompts end at the same column; `start` is where a row's own begins."""

    rows: Tensor  # [B] number of the request
    start: Tensor  # [B] padding columns on the left
    tokens: Tensor  # [B] to be read next
    keys: list[Tensor]  # a layer: [B, heads, T, head_dim]
    values: list[Tensor]

    def select(self, kept: Tensor) -> "_Batch":
        caches = [[cache.index_select(0, kept) for cache in caches] for caches in (self.keys, self.values)]
        return _Batch(self.rows[kept], self.start[kept], self.tokens[kept], *caches)


class NativeEngine:
    """Rollouts from any `Qwen2ForCausalLM`, with or without adapters in its linear layers; a `RolloutEngine`."""

    has_queue = False

    def __init__(self, model: Any, decode: Decode | None = None) -> None:
        """decode: needed where a sampling has stop texts. Raises EngineUnavailable for a model that it cannot run."""
        if getattr(model.config, "use_sliding_window", False):
            raise EngineUnavailable("the native engine has no sliding window; use the hf engine for this model")
        self.model = model
        self.decode = decode
        self.stop_ids = torch.tensor(sorted(stop_ids_of(model)), device=model.device)
        heads = model.config.num_attention_heads
        self.head_dim = getattr(model.config, "head_dim", None) or model.config.hidden_size // heads
        self.group = heads // model.config.num_key_value_heads
        self.rope = torch.empty(2, 0, self.head_dim)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """One rollout for each request, in their order."""
        if not requests:
            return []
        self._grow_rope(max(len(request.prompt_ids) for request in requests) + sampling.max_new_tokens)
        threads = torch.get_num_threads() if self.model.device.type == "cpu" else 1
        shares = share_out(requests, min(threads, MAX_SHARES))
        if len(shares) == 1:
            return self._generate_together(requests, sampling)
        try:
            with ThreadPoolExecutor(len(shares), "rollout", torch.set_num_threads, (threads // len(shares),)) as pool:
                chosen = [[requests[number] for number in share] for share in shares]
                done = list(pool.map(self._generate_together, chosen, [sampling] * len(shares)))
        finally:
            torch.set_num_threads(threads)  # the libraries below keep one number for all threads
        pairs = zip(chain(*shares), chain(*done), strict=True)
        return [rollout for _, rollout in sorted(pairs, key=lambda pair: pair[0])]

    @torch.inference_mode()
    def _generate_together(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        width = max(len(request.prompt_ids) for request in requests)
        limit = sampling.max_new_tokens
        device = self.model.device
        uniforms = draw_uniforms([request.seed for request in requests], limit).to(device)  # [N, limit]
        ids = torch.zeros(len(requests), limit, dtype=torch.long, device=device)
        log_probs = torch.zeros(len(requests), limit, device=device)
        lengths = torch.full((len(requests),), limit, device=device)
        stops = StopTexts(self.decode, sampling.stop, self.stop_ids.tolist())
        batch, logits = self._read_prompts(requests, width, limit)
        for step in range(limit):
            tokens, drawn = choose(logits, uniforms[batch.rows, step], sampling)
            ids[batch.rows, step], log_probs[batch.rows, step] = tokens, drawn
            ended = torch.isin(tokens, self.stop_ids)
            if stops:
                ended |= self._completed(stops, ids, batch.rows, step)
            lengths[batch.rows[ended]] = lengths[batch.rows[ended]].clamp(max=step + 1)
            running = lengths[batch.rows] > step + 1
            num_running = int(running.sum())
            if num_running == 0:
                break
            batch.tokens = tokens
            if num_running < COMPACT_BELOW * len(running):
                batch = batch.select(running.nonzero().squeeze(1))
            logits = self._decode(batch, width + step)
        rows = zip(requests, ids.tolist(), log_probs.tolist(), lengths.tolist(), strict=True)
        return [
            rollout_of(request, row[:length], drawn, stops, sampling.max_new_tokens)
            for request, row, drawn, length in rows
        ]

    def _completed(self, stops: StopTexts, ids: Tensor, rows: Tensor, step: int) -> Tensor:
        """Which rows have a stop text now that their token of this step is there. [B] bool."""
        last = ids[rows, step].tolist()
        found = torch.zeros(len(last), dtype=torch.bool, device=ids.device)
        for place in [place for place, token in enumerate(last) if stops.may_end_in(token)]:
            tail = ids[rows[place], max(0, step + 1 - stops.window) : step + 1].tolist()
            found[place] = stops.are_in(tail)
        return found

    def rest(self) -> None:
        """Nothing to give back: caches live as long as a call, weights are the model's own."""

    def close(self) -> None:
        pass

    @torch.inference_mode()
    def _grow_rope(self, length: int) -> None:
        """Table of rotary cosines and sines for all positions that may come. [2, T, head_dim]."""
        if self.rope.shape[1] < length:
            positions = torch.arange(length, device=self.model.device)[None]
            like = next(self.model.parameters())
            self.rope = torch.stack(self.model.model.rotary_emb(like, positions))[:, 0]

    def _read_prompts(self, requests: Sequence[Request], width: int, limit: int) -> tuple[_Batch, Tensor]:
        """Runs each different prompt once and hands its cache to all of its requests. Logits: [B, V]."""
        prompts = {request.prompt_ids: None for request in requests}
        number = {prompt: i for i, prompt in enumerate(prompts)}
        device = self.model.device
        start = torch.tensor([width - len(prompt) for prompt in prompts], device=device)  # [U]
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        columns = torch.arange(width, device=device)
        # A padding column may see itself: a row of the softmax without any key would be NaN.
        visible = (columns[None, :] >= start[:, None])[:, None, :] | torch.eye(width, dtype=torch.bool, device=device)
        mask = (visible & (columns[None, :] <= columns[:, None]))[:, None]  # [U, 1, T, T]
        cos, sin = self.rope[:, (columns - start[:, None]).clamp(min=0)][:, :, None]  # [U, 1, T, head_dim]
        which = torch.tensor([number[request.prompt_ids] for request in requests], device=device)
        keys: list[Tensor] = []
        values: list[Tensor] = []

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            for cache, new in ((keys, key), (values, value)):
                room = new.new_empty((len(requests), new.shape[1], width + limit, self.head_dim))
                room[:, :, :width] = new[which]
                cache.append(room)
            return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=self.group > 1)

        hidden = self._run_layers(ids, cos, sin, attend)
        logits = self.model.lm_head(hidden[:, -1])[which]
        rows = torch.arange(len(requests), device=device)
        return _Batch(rows, start[which], rows, keys, values), logits

    def _decode(self, batch: _Batch, column: int) -> Tensor:
        """Reads one token a row into cache column `column`; returns the logits after it, [B, V]."""
        cos, sin = self.rope[:, column - batch.start][:, :, None, None]  # [B, 1, 1, head_dim]
        columns = torch.arange(column + 1, device=batch.start.device)
        mask = (columns >= batch.start[:, None])[:, None, None]  # [B, 1, 1, T]
        bias = torch.zeros_like(mask, dtype=cos.dtype).masked_fill_(~mask, float("-inf"))
        layers = iter(zip(batch.keys, batch.values, strict=True))

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = next(layers)
            keys[:, :, column], values[:, :, column] = key[:, :, 0], value[:, :, 0]
            keys, values = keys[:, :, : column + 1], values[:, :, : column + 1]
            return scaled_dot_product_attention(query, keys, values, attn_mask=bias, enable_gqa=self.group > 1)

        hidden = self._run_layers(batch.tokens[:, None], cos, sin, attend)
        logits: Tensor = self.model.lm_head(hidden[:, -1])
        return logits

    def _run_layers(self, ids: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """The model's own modules around `attend(query, key, value)`. ids: [B, T]; returns [B, T, hidden]."""
        decoder = self.model.model
        hidden = decoder.embed_tokens(ids)
        shape = (*ids.shape, -1, self.head_dim)
        for layer in decoder.layers:
            attention, normed = layer.self_attn, layer.input_layernorm(hidden)
            query = _rotate(attention.q_proj(normed).view(shape).transpose(1, 2), cos, sin)
            key = _rotate(attention.k_proj(normed).view(shape).transpose(1, 2), cos, sin)
            value = attention.v_proj(normed).view(shape).transpose(1, 2)
            mixed = attend(query, key, value).transpose(1, 2).flatten(2)  # [B, T, heads * head_dim]
            hidden = hidden + attention.o_proj(mixed)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        last: Tensor = decoder.norm(hidden)
        return last


def share_out(requests: Sequence[Request], count: int) -> list[list[int]]:
    """Numbers of the requests in at most `count` like shares; equal prompts stay together. (pure)

    Prompts of like length come together: a share is as wide as its longest.
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


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding. x: [B, heads, T, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
