"""A small and fast decoder that calls the model's own layers over its own key/value cache.

Weights are never copied, so the next rollout sees an optimiser step at once. Equal prompts are read once, and finished
rows leave the batch. On a CPU two threads each decode requests of their own: a token's tensors are so small that
threads sharing one spend their time waiting for each other. Not done here: paged caches, and caches that forget what a
window has left behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from workers.rollout.conversation import Conversation, Talks, renumbered
from workers.rollout.decoder import Decoder, parts
from workers.rollout.engine import (
    Decode,
    OnEnd,
    Request,
    Respond,
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

    def cached(self, places: Sequence[int], column: int) -> list[_Cached]:
        """Copies of the keys and values of these rows before that column."""
        which = torch.tensor(places, device=self.rows.device)
        keys, values = (
            [cache[:, :, :column].index_select(0, which) for cache in caches] for caches in (self.keys, self.values)
        )
        return [
            _Cached([one[row, :, start:] for one in keys], [one[row, :, start:] for one in values])
            for row, start in enumerate(self.start[which].tolist())
        ]


@dataclass(frozen=True)
class _Cached:
    """Of a conversation. Per layer: [heads, T, head_dim], without the last token that was drawn."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def length(self) -> int:
        return self.keys[0].shape[1]


@dataclass(frozen=True)
class _Drawn:
    """What rows draw, and from what. [N, limit]; entropies: [N, 0] if not asked for; lengths: [N], at first the
    limits."""

    uniforms: Tensor
    ids: Tensor
    log_probs: Tensor
    entropies: Tensor
    lengths: Tensor

    def of(self, row: int) -> tuple[list[int], list[float], list[float]]:
        """Ids, log-probs and entropies of a row that has ended."""
        length = int(self.lengths[row])
        ids, log_probs, entropies = (one[row, :length].tolist() for one in (self.ids, self.log_probs, self.entropies))
        return ids, log_probs, entropies


class NativeEngine:
    """A `RolloutEngine` for any model that the `Decoder` runs, with or without adapters in its linear layers."""

    has_queue = False

    def __init__(
        self,
        model: Any,
        decode: Decode | None = None,
        stop_ids: Iterable[int] | None = None,
        max_shares: int = MAX_SHARES,
    ) -> None:
        """decode: needed where a sampling has stop texts. stop_ids: tokens that end a completion; None: the model's.
        max_shares: threads that decode on a CPU.

        Raises EngineUnavailable for a model that it cannot run."""
        self.model = model
        self.decode = decode
        self._max_shares = max_shares
        self.decoder = Decoder(model)
        stops = stop_ids_of(model) if stop_ids is None else stop_ids
        self._stop_ids = torch.tensor(sorted(stops), device=model.device)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """One rollout per request, in order."""
        return self.stream(requests, sampling, None)

    def stream(self, requests: Sequence[Request], sampling: Sampling, on_end: OnEnd | None) -> list[Rollout]:
        """The same; calls `on_end` for each rollout when it ends, from the thread that decodes it."""

        def draw(share: Sequence[int]) -> list[Rollout]:
            return self._generate_together(
                [requests[one] for one in share], sampling, on_end and renumbered(on_end, share)
            )

        return self._in_shares(requests, sampling.max_new_tokens, draw)

    def converse(
        self, requests: Sequence[Request], sampling: Sampling, respond: Respond, on_end: OnEnd | None = None
    ) -> list[Rollout]:
        """A conversation per request, in order. Only what is new is read, and turns are in step: a reply waits for
        those beside it."""

        def draw(share: Sequence[int]) -> list[Rollout]:
            asked = [requests[one] for one in share]
            told = Talks(
                asked, sampling.max_new_tokens, renumbered(respond, share), on_end and renumbered(on_end, share)
            )
            return self._converse_together(told, sampling)

        # A row that is at the limit may run on beside one that has the whole limit left.
        return self._in_shares(requests, 2 * sampling.max_new_tokens, draw)

    def _in_shares(
        self, requests: Sequence[Request], longest: int, draw: Callable[[Sequence[int]], list[Rollout]]
    ) -> list[Rollout]:
        """longest: positions after a prompt. draw: the rollouts of requests with these numbers."""
        if not requests:
            return []
        self.decoder.grow_rope(max(len(request.prompt_ids) for request in requests) + longest)
        threads = torch.get_num_threads() if self.model.device.type == "cpu" else 1
        shares = share_out(requests, min(threads, self._max_shares))
        if len(shares) == 1:
            return draw(range(len(requests)))
        try:
            with ThreadPoolExecutor(len(shares), "rollout", torch.set_num_threads, (threads // len(shares),)) as pool:
                done = list(pool.map(draw, shares))
        finally:
            torch.set_num_threads(threads)  # the libraries below share one setting among all threads
        pairs = zip(chain(*shares), chain(*done), strict=True)
        return [rollout for _, rollout in sorted(pairs, key=lambda pair: pair[0])]

    @torch.inference_mode()
    def _generate_together(
        self, requests: Sequence[Request], sampling: Sampling, on_end: OnEnd | None
    ) -> list[Rollout]:
        width, limit = max(len(request.prompt_ids) for request in requests), sampling.max_new_tokens
        stops = stops_of(sampling, self.decode, self._stop_ids.tolist())
        batch, logits = self._read_prompts(requests, width, limit)
        drawn = self._room([request.seed for request in requests], [limit] * len(requests), sampling)

        def found(row: int) -> Rollout:
            return _rollout(requests[row], drawn, row, stops, limit)

        told: set[int] = set()

        def ended(places: Sequence[int], rows: Sequence[int], column: int) -> None:
            assert on_end is not None
            for row in set(rows) - told:
                told.add(row)
                on_end(row, found(row))

        self._draw(batch, logits, width, drawn, sampling, stops, ended if on_end else None)
        return [found(row) for row in range(len(requests))]

    @torch.inference_mode()
    def _converse_together(self, talks: Talks, sampling: Sampling) -> list[Rollout]:
        stops = stops_of(sampling, self.decode, self._stop_ids.tolist())
        kept: dict[int, _Cached] = {}
        running = list(talks.all)
        while running:
            room = max(one.left for one in running)
            if not kept:
                requests = [one.request for one in running]
                width = max(len(request.prompt_ids) for request in requests)
                batch, logits = self._read_prompts(requests, width, room)
            else:
                new = [_unread(one, kept[one.number]) for one in running]
                width = max(kept[one.number].length + len(ids) for one, ids in zip(running, new, strict=True))
                batch, logits = self._read_more([kept.pop(one.number) for one in running], new, width, room)
            drawn = self._room([one.seed for one in running], [one.left for one in running], sampling)
            self._take_turn(talks, running, batch, logits, width, drawn, sampling, stops, kept)
            running = [one for one in running if one.number in talks.answers and talks.hear(one.number)]
        return talks.rollouts

    def _take_turn(
        self,
        talks: Talks,
        running: Sequence[Conversation],
        batch: _Batch,
        logits: Tensor,
        width: int,
        drawn: _Drawn,
        sampling: Sampling,
        stops: StopTexts,
        kept: dict[int, _Cached],
    ) -> None:
        """The next reply of each; puts the cache of those that go on into `kept`."""

        def ended(places: Sequence[int], rows: Sequence[int], column: int) -> None:
            going: dict[int, int] = {}
            for place, row in zip(places, rows, strict=True):
                one = running[row]
                if one.number in told:
                    continue
                told.add(one.number)
                reply = _rollout(one.request, drawn, row, stops, one.left)
                talks.reply(one.number, reply.completion_ids, reply.log_probs, reply.entropies, reply.finish_reason)
                if one.number in talks.answers:
                    going[one.number] = place
            if going:
                kept.update(zip(going, batch.cached([*going.values()], column), strict=True))

        told: set[int] = set()
        self._draw(batch, logits, width, drawn, sampling, stops, ended)

    def _room(self, seeds: Sequence[int], limits: Sequence[int], sampling: Sampling) -> _Drawn:
        device, room = self.model.device, (len(seeds), max(limits))
        return _Drawn(
            uniforms=draw_uniforms(seeds, max(limits)).to(device),
            ids=torch.zeros(room, dtype=torch.long, device=device),
            log_probs=torch.zeros(room, device=device),
            entropies=torch.zeros(len(seeds), max(limits) if sampling.entropies else 0, device=device),
            lengths=torch.tensor(limits, device=device),
        )

    def _draw(
        self,
        batch: _Batch,
        logits: Tensor,
        width: int,
        drawn: _Drawn,
        sampling: Sampling,
        stops: StopTexts,
        ended: Callable[[Sequence[int], Sequence[int], int], None] | None,
    ) -> None:
        """Draw until every row has ended.

        ended: told of rows that have ended, perhaps again: their places in the batch, their numbers, and the columns of
        the caches that are filled.
        """
        stop_ids = self._stop_ids[:0] if sampling.ignore_stop else self._stop_ids
        ids, lengths = drawn.ids, drawn.lengths
        for step in range(ids.shape[1]):
            tokens, log_probs, entropy = choose(logits, drawn.uniforms[batch.rows, step], sampling)
            ids[batch.rows, step], drawn.log_probs[batch.rows, step] = tokens, log_probs
            if entropy is not None:
                drawn.entropies[batch.rows, step] = entropy
            is_over = torch.isin(tokens, stop_ids)
            if stops:
                is_over |= self._completed(stops, ids, batch.rows, step)
            lengths[batch.rows[is_over]] = lengths[batch.rows[is_over]].clamp(max=step + 1)
            running = lengths[batch.rows] > step + 1
            num_running = int(running.sum())
            if ended is not None and num_running < len(running):
                ended((~running).nonzero().squeeze(1).tolist(), batch.rows[~running].tolist(), width + step)
            if num_running == 0:
                break
            batch.tokens = tokens
            if num_running < COMPACT_BELOW * len(running):
                batch.keep(running.nonzero().squeeze(1))
            logits = self._decode(batch, width + step)

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
        device = self.model.device
        keys, values = self._caches(len(requests), width + limit)
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
        masks = self.decoder.masks(mask, columns, columns)
        layers = list(zip(*caches, strict=True))

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            for cache, new in zip(layers[number], (key, value), strict=True):
                cache[rows, :, : width - longest] = 0  # masked, but 0 times NaN would be NaN
                cache[rows, :, width - longest : width] = new[which]
            return self.decoder.attention(query, key, value, masks[self.decoder.layers[number].window])

        hidden = self.decoder.run_layers(ids, (columns - start[:, None]).clamp(min=0), attend)
        return self.decoder.logits(hidden[:, -1])

    def _read_more(
        self, cached: Sequence[_Cached], new: Sequence[Sequence[int]], width: int, limit: int
    ) -> tuple[_Batch, Tensor]:
        """Reads the new ids of each conversation behind its cache. All end at column `width`. Logits: [B, V]."""
        device, count = self.model.device, len(new)
        keys, values = self._caches(count, width + limit)
        starts = [width - one.length - len(ids) for one, ids in zip(cached, new, strict=True)]
        for row, (one, begin) in enumerate(zip(cached, starts, strict=True)):
            for into, parts_of in ((keys, one.keys), (values, one.values)):
                for cache, part in zip(into, parts_of, strict=True):
                    cache[row, :, :begin] = 0  # masked, but 0 times NaN would be NaN
                    cache[row, :, begin : begin + one.length] = part
        start = torch.tensor(starts, device=device)
        longest = max(map(len, new))
        at_once = max(1, self.decoder.readable_tokens() // longest)
        found = [
            self._read_behind(new[low : low + at_once], start[low : low + at_once], width, (keys, values), low)
            for low in range(0, count, at_once)
        ]
        rows = torch.arange(count, device=device)
        return _Batch(rows, start, rows, keys, values), torch.cat(found)

    def _read_behind(
        self,
        new: Sequence[Sequence[int]],
        start: Tensor,
        width: int,
        caches: tuple[list[Tensor], list[Tensor]],
        low: int,
    ) -> Tensor:
        """One pass over the new ids of the rows from `low` on; returns the logits after them, [R, V]."""
        device, longest = self.model.device, max(map(len, new))
        ids = torch.tensor([[0] * (longest - len(one)) + list(one) for one in new], device=device)
        padding = torch.tensor([longest - len(one) for one in new], device=device)
        columns = torch.arange(width - longest, width, device=device)
        is_new = (torch.arange(longest, device=device) >= padding[:, None])[:, None, :, None]  # [R, 1, K, 1]
        every = torch.arange(width, device=device)
        # A padding column sees itself, because a softmax row without any key would be NaN.
        visible = (every >= start[:, None])[:, None, :] | (every == columns[:, None])
        mask = (visible & (every <= columns[:, None]))[:, None]  # [R, 1, K, T]
        masks = self.decoder.masks(mask, columns, every)
        layers, rows = list(zip(*caches, strict=True)), slice(low, low + len(new))

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            for cache, more in zip(layer := layers[number], (key, value), strict=True):
                tail = cache[rows, :, width - longest : width]
                # Where a shorter row is padded, its cache already ends.
                cache[rows, :, width - longest : width] = torch.where(is_new, more, tail)
            keys, values = (cache[rows, :, :width] for cache in layer)
            return self.decoder.attention(query, keys, values, masks[self.decoder.layers[number].window])

        hidden = self.decoder.run_layers(ids, (columns - start[:, None]).clamp(min=0), attend)
        return self.decoder.logits(hidden[:, -1])

    def _decode(self, batch: _Batch, column: int) -> Tensor:
        """Reads one token per row into cache column `column`; returns the logits after it, [B, V]."""
        columns = torch.arange(column + 1, device=batch.start.device)
        mask = (columns >= batch.start[:, None])[:, None, None]  # [B, 1, 1, T]
        bias = torch.zeros_like(mask, dtype=self.decoder.dtype).masked_fill_(~mask, float("-inf"))

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = batch.keys[number], batch.values[number]
            keys[:, :, column], values[:, :, column] = key[:, :, 0], value[:, :, 0]
            window = self.decoder.layers[number].window
            first = 0 if window is None else max(0, column + 1 - window)
            keys, values = keys[:, :, first : column + 1], values[:, :, first : column + 1]
            # Query heads that share a key head become several queries of one head, so no key is repeated.
            grouped = query.reshape(len(query), keys.shape[1], -1, query.shape[-1])
            mixed = self.decoder.attention(grouped, keys, values, bias[..., first:] if first else bias)
            return mixed.reshape(query.shape)

        hidden = self.decoder.run_layers(batch.tokens[:, None], (column - batch.start)[:, None], attend)
        return self.decoder.logits(hidden[:, -1])

    def _caches(self, rows: int, columns: int) -> tuple[list[Tensor], list[Tensor]]:
        """Of keys and of values, per layer [rows, key heads, columns, width], not yet filled."""
        kind: dict[str, Any] = {"dtype": self.decoder.dtype, "device": self.model.device}
        shapes = [self.decoder.cache_shape(layer) for layer in self.decoder.layers]
        keys, values = ([torch.empty(rows, heads, columns, width, **kind) for heads, width in shapes] for _ in range(2))
        return keys, values


def _rollout(request: Request, drawn: _Drawn, row: int, stops: StopTexts, limit: int) -> Rollout:
    ids, log_probs, entropies = drawn.of(row)
    return rollout_of(request, ids, log_probs, stops, limit, entropies)


def _unread(one: Conversation, cached: _Cached) -> list[int]:
    """The ids of a conversation that are not in its cache. (pure)"""
    return one.ids[cached.length - len(one.request.prompt_ids) :]


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
