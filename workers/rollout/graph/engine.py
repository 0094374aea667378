"""The native engine on a GPU: a static cache with a fixed number of slots, and decode steps captured as CUDA graphs.

A step costs only its memory traffic and kernels; Python adds nothing. Finished rows leave. Waiting requests take their
slots; if none wait, the remaining rows move together into a smaller graph. The host checks every CHECK_EVERY steps, so
a finished row may run on for up to that many steps; its extra tokens are dropped.

A paged cache (`overcommit` above 1) has more slots than it has room for rows of full length. A row starts if there is
room for its tokens so far and a page more for each row that runs. When the pages run out, the rows that started last
are set back: they wait, and later read what they had drawn. The oldest is never set back, so all end.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from profiles import capture
from profiles.shapes import shape_of
from workers.failures import is_out_of_memory
from workers.models.plain import described, reason_of
from workers.models.torch_setup import on_device
from workers.rollout.conversation import Talks
from workers.rollout.decoder import Decoder
from workers.rollout.engine import (
    Decode,
    EngineUnavailable,
    OnEnd,
    Request,
    Respond,
    Rollout,
    Sampling,
    draw_uniforms,
    stop_ids_of,
)
from workers.rollout.graph import cuda
from workers.rollout.graph.capture import Steps
from workers.rollout.graph.lookup import Guessing
from workers.rollout.graph.pages import LEAST_SAVED, PAGE, Pages, pages_of, saved_tokens, shared_pages
from workers.rollout.graph.prompt_graphs import Passes
from workers.rollout.graph.prompts import passes_over, read_behind, read_prompts
from workers.rollout.graph.state import MAX_STOPS, Shape, State
from workers.rollout.graph.step import Operations, TorchOperations
from workers.rollout.graph.step_weights import Weights
from workers.rollout.stopping import StopTexts, rollout_of, stops_of

log = logging.getLogger("worker")

CHECK_EVERY = 16
"""Decode steps between two checks by the host."""
ROUND_LENGTH = 128
"""The cache's length is rounded up to a multiple of this, so that other prompt lengths seldom need a new cache."""


@dataclass
class _Row:
    """The row in a slot. begun: its ids before the current reply. looked: how many of its ids have been searched for
    stop texts. length: all its ids, while it waits for an answer; 0: it does not. drawn: its ids at the last check.
    order: rows that started later have a higher one."""

    number: int
    begun: int = 0
    looked: int = 0
    length: int = 0
    drawn: int = 0
    order: int = 0


@dataclass(frozen=True)
class _Drawn:
    """What a row that was set back has drawn so far. [T] each."""

    ids: Tensor
    log_probs: Tensor
    entropies: Tensor


@dataclass
class _Work:
    """The state of one call of `generate`."""

    requests: Sequence[Request]
    sampling: Sampling
    stops: StopTexts
    waiting: list[int]
    """Request numbers; the next to start is last."""
    rows: dict[int, _Row] = field(default_factory=dict)
    """By slot. They always fill the first slots."""
    on_end: OnEnd | None = None
    talks: Talks | None = None
    """For conversations."""
    done: dict[int, Rollout] = field(default_factory=dict)
    pages: Pages | None = None
    """If the cache is paged."""
    set_back: dict[int, _Drawn] = field(default_factory=dict)
    """By request number."""
    started: int = 0
    """Rows of a paged cache so far."""
    guessing: Guessing = field(default_factory=lambda: Guessing(is_wanted=False))
    a_check: int = CHECK_EVERY
    """Most tokens that a row draws between two checks."""

    def ids(self, number: int) -> tuple[int, ...]:
        """The request's prompt, and what it had drawn when it was set back."""
        drawn = self.set_back.get(number)
        prompt = self.requests[number].prompt_ids
        return prompt if drawn is None else (*prompt, *drawn.ids.tolist())

    def soon(self, number: int, drawn: int) -> int:
        """Tokens that the cache of a row which has drawn so many holds before the next check. A conversation, which is
        never set back, counts whole."""
        room = self.sampling.max_new_tokens
        return len(self.requests[number].prompt_ids) + (room if self.talks else min(drawn + self.a_check, room))


class GraphEngine:
    """A `RolloutEngine` over the trainer's own weights, for what `profiles.capture` supports, in bfloat16 or NF4.

    On a CPU it runs the same steps in plain PyTorch, for tests; there `NativeEngine` is faster.
    """

    has_queue = True

    def __init__(
        self,
        model: Any,
        decode: Decode | None = None,
        max_rows: int = 64,
        keep_bytes: int = sys.maxsize,
        overcommit: float = 1.0,
        guesses: int = 0,
        prompt_graph_bytes: int = sys.maxsize,
    ) -> None:
        """max_rows: rows of full length that the cache holds. keep_bytes: a cache of up to this size, with its graphs,
        stays while the trainer works. After a larger one, no cache stays. overcommit: slots for each of `max_rows`;
        above 1 the cache is paged. guesses: tokens that a step reads behind a row's last one, while few rows decode and
        it pays; above 0 the cache is paged too. prompt_graph_bytes: what graphs of passes over prompts may hold, beside
        a cache that stays. Raises EngineUnavailable, with the reason, for an unsupported model or GPU.
        """
        if reason := reason_against(model):
            raise EngineUnavailable(reason)
        self.model, self.decode, self._max_rows, self._keep_bytes = model, decode, max_rows, keep_bytes
        self._overcommit, self._guesses, self._prompt_graph_bytes = overcommit, guesses, prompt_graph_bytes
        self._decoder = Decoder(model)
        self._stop_ids = sorted(stop_ids_of(model))
        with on_device(model.device):  # another may be the current one: the engine's is not always the trainer's
            self._operations: Operations = operations_for(model.device)
        self._weights: Weights | None = None
        self._state: State | None = None
        self._steps: Steps | None = None
        self._passes: Passes | None = None
        """Over prompts. Their graphs are valid as long as those of the steps."""
        self._addresses: tuple[int, ...] = ()
        self._least_saved = LEAST_SAVED
        self.set_back_rows = 0
        """How often a row had to wait for pages and was read again."""
        self.guessed_steps = self.guessed_tokens = 0
        """Steps of all rows that read guesses, and the tokens that they drew."""

    def set_rows(self, rows: int) -> None:
        """The cache holds at most so many rows of full length from now on."""
        self._max_rows = rows

    @property
    def most_rows(self) -> int:
        """Most rows that decode side by side."""
        return int(self._max_rows * self._overcommit)

    @property
    def keeps_cache(self) -> bool:
        """Whether a cache may stay while the trainer works."""
        return self._keep_bytes > 0

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Within it, rows read what they share together, however little that saves. The cache does not stay: it may
        have more slots than the first rollouts need."""
        self._least_saved = 0
        try:
            yield
        finally:
            self._least_saved = LEAST_SAVED
            self._steps = self._passes = self._state = None

    def forget_cache(self) -> None:
        """Free the cache, and keep none from now on."""
        self._keep_bytes = 0
        self.close()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """One rollout per request, in order."""
        return self.stream(requests, sampling, None)

    @torch.inference_mode()
    def stream(self, requests: Sequence[Request], sampling: Sampling, on_end: OnEnd | None) -> list[Rollout]:
        """The same; calls `on_end` for each rollout at the first check after its end."""
        with on_device(self.model.device):
            return self._work(self._begun(requests, sampling, on_end))

    def _begun(self, requests: Sequence[Request], sampling: Sampling, on_end: OnEnd | None = None) -> _Work:
        stops = stops_of(sampling, self.decode, self._stop_ids)
        work = _Work(requests, sampling, stops, in_turn(requests)[::-1], on_end=on_end)
        if self._guesses:
            work.guessing = Guessing(is_wanted=True)
            work.a_check = CHECK_EVERY * (1 + self._guesses)
        return work

    @torch.inference_mode()
    def converse(
        self, requests: Sequence[Request], sampling: Sampling, respond: Respond, on_end: OnEnd | None = None
    ) -> list[Rollout]:
        """A conversation per request, in order. A row that waits for an answer keeps its slot and its cache; only what
        is new is read. The others decode meanwhile."""
        stops = stops_of(sampling, self.decode, self._stop_ids)
        talks = Talks(requests, sampling.max_new_tokens, respond, on_end)
        with on_device(self.model.device):
            return self._work(_Work(requests, sampling, stops, in_turn(requests)[::-1], talks=talks, done=talks.done))

    @torch.inference_mode()
    def rehearse(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Allocate what `generate` would, in a fraction of its time: cache and graphs depend on lengths alone, so the
        prompts are read and one check's tokens are drawn.

        A cache of pages also reads one row of full length, as after it was set back at its end.
        """
        self._begin_only(requests, sampling)
        if self._overcommit > 1 and sampling.max_new_tokens > CHECK_EVERY:
            longest = max((request.prompt_ids for request in requests), key=len)
            drawn = longest[:1] * (sampling.max_new_tokens - CHECK_EVERY)
            self._begin_only([Request((*longest, *drawn), 0)], replace(sampling, max_new_tokens=CHECK_EVERY))

    @torch.inference_mode()
    def reserve(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Allocate the cache that `rehearse` would, and run nothing."""
        with on_device(self.model.device):
            self._prepared(self._needed(requests, sampling))

    def _begin_only(self, requests: Sequence[Request], sampling: Sampling) -> None:
        work = self._begun(requests, sampling)
        with on_device(self.model.device):
            state, steps = self._set_up(work)
            self._round(work, state, steps)
            if left := list(work.rows):
                state.active[left] = 0
                self._free(work, state, left)

    def _work(self, work: _Work) -> list[Rollout]:
        if not work.requests:
            return []
        state, steps = self._set_up(work)
        while work.waiting or work.rows:
            self._round(work, state, steps)
        return [work.done[number] for number in range(len(work.requests))]

    def _set_up(self, work: _Work) -> tuple[State, Steps]:
        needed = self._needed(work.requests, work.sampling)
        state, steps = self._prepared(needed)
        if needed.pages:
            assert self._weights is not None
            # Not all that a kept cache has: what is set back would depend on what was drawn before.
            work.pages = Pages(needed.pages)
            a_token = max(2 * heads * width for heads, width in self._weights.caches) * state.keys[0].element_size()
            saved = saved_tokens((request.prompt_ids for request in work.requests), needed.slots)
            state.reads_together = saved > 0 and saved * a_token >= self._least_saved
        state.set_sampling(work.sampling, () if work.sampling.ignore_stop else self._stop_ids)
        return state, steps

    def _round(self, work: _Work, state: State, steps: Steps) -> None:
        """From one check to the next."""
        self._admit(work, state)
        if work.talks is not None:
            self._resume(work, work.talks, state)
            if not work.rows:
                return
        self._make_room(work, state)
        bucket = bucket_of(len(work.rows), state.shape.slots)
        has_guesses = work.guessing.is_on(bucket)
        step = steps.guessing(bucket) if has_guesses else steps(bucket)
        count = min(CHECK_EVERY, work.sampling.max_new_tokens)
        for _ in range(count):
            step()
        self._look(work, state, guessed=count if has_guesses else 0)

    def _needed(self, requests: Sequence[Request], sampling: Sampling) -> Shape:
        longest = max(len(request.prompt_ids) for request in requests) + sampling.max_new_tokens + self._guesses
        length = -(-longest // ROUND_LENGTH) * ROUND_LENGTH
        slots, pages = min(self.most_rows, len(requests)), 0
        if self._overcommit > 1 or self._guesses:
            pages = min(self._max_rows, len(requests)) * pages_of(length)
        return Shape(slots, length, sampling.max_new_tokens, pages, has_context=self._guesses > 0)

    def _prepared(self, needed: Shape) -> tuple[State, Steps]:
        """Tensors that are large enough, the current weights, and steps over both."""
        if self._weights is None:
            self._weights = Weights(self.model)
        self._weights.refresh()
        addresses = self._weights.addresses()
        if addresses != self._addresses:
            self._weights, self._steps, self._passes = Weights(self.model), None, None
            self._weights.refresh()
            self._addresses = addresses
        if self._decoder.grow_rope(needed.cache_length):
            self._steps = self._passes = None
        if self._state is None or not self._state.shape.holds(needed) or self.most_rows < self._state.shape.slots:
            self._steps = self._passes = self._state = None  # first, so that both are never there at one time
            self._state = State(needed, self._weights.caches, self._decoder.dtype, self.model.device)
        if self._steps is None:
            self._steps = Steps(self._weights, self._state, self._decoder.ropes, self._operations, self._guesses)
        if self._passes is None:
            # A cache that does not stay takes its graphs with it before they have paid for being captured.
            stays = self.cache_bytes <= self._keep_bytes
            self._passes = passes_over(self._decoder, self._state, self._prompt_graph_bytes if stays else 0)
        return self._state, self._steps

    def _admit(self, work: _Work, state: State) -> None:
        """Fill free slots. A pass over prompts stalls all rows, so wait until several can start together, or until an
        eighth of the pages is free."""
        free = min(state.shape.slots, self.most_rows) - len(work.rows)
        few = max(1, state.shape.slots // 8)
        if not work.waiting or (work.rows and free < few):
            return
        count = min(free, len(work.waiting))
        if work.pages is not None:
            count = fitting(work, work.pages, count)
            if not count or (
                count < min(few, len(work.waiting)) and work.rows and work.pages.free < work.pages.count / 8
            ):
                return
        begin, device = len(work.rows), self.model.device
        numbers = [work.waiting.pop() for _ in range(count)]
        slots = list(range(begin, begin + len(numbers)))
        ids = [work.ids(number) for number in numbers]
        rows = {slot: _Row(number) for slot, number in zip(slots, numbers, strict=True)}
        read, shared, copies = self._take_pages(work, rows, state)
        assert self._passes is not None
        read_prompts(self._decoder, state, self._passes, [ids[slot - begin] for slot in read], read, shared)
        state.copy_pages(copies)
        uniforms = draw_uniforms([work.requests[number].seed for number in numbers], work.sampling.max_new_tokens)
        state.begin(
            torch.tensor(slots, device=device),
            torch.tensor([one[-1] for one in ids], device=device),
            torch.tensor([len(one) - 1 for one in ids], device=device),
            uniforms.to(device),
        )
        state.note_prompts(torch.tensor(slots, device=device), ids)
        for slot, row in rows.items():
            if (drawn := work.set_back.pop(row.number, None)) is not None:
                state.restore(slot, drawn.ids, drawn.log_probs, drawn.entropies)
                row.looked = row.drawn = len(drawn.ids)
        work.rows |= rows

    def _take_pages(
        self, work: _Work, new: Mapping[int, _Row], state: State
    ) -> tuple[list[int], dict[int, int], list[tuple[int, int]]]:
        """Pages for rows that start. Returns the slots whose prompts are to be read, how many of their first tokens
        other rows have read, and the pages to copy thereafter, (source, target)."""
        read, shared, copies = list[int](), dict[int, int](), list[tuple[int, int]]()
        if (pages := work.pages) is None:
            return list(new), shared, copies
        first = {work.requests[row.number].prompt_ids: slot for slot, row in work.rows.items()}
        for slot, row in new.items():
            row.order = work.started = work.started + 1
            prompt, drawn = work.requests[row.number].prompt_ids, work.set_back.get(row.number)
            other, whole = first.setdefault(prompt, slot), shared_pages(len(prompt))
            pages.begin(slot, () if other == slot else pages.of(other)[:whole])
            has_room = pages.grow(slot, work.soon(row.number, 0 if drawn is None else len(drawn.ids)))
            assert has_room, "`fitting` has counted wrongly"
            if other == slot or drawn is not None:
                read.append(slot)
                shared[slot] = 0 if other == slot else whole * PAGE
            else:
                copies.append((pages.of(other)[whole], pages.of(slot)[whole]))
        _publish(work, state)
        return read, shared, copies

    def _make_room(self, work: _Work, state: State) -> None:
        """Pages for the steps before the next check; sets rows back if there are too few."""
        if (pages := work.pages) is None:
            return
        oldest_first = sorted(work.rows, key=lambda slot: work.rows[slot].order)
        running = list(oldest_first)
        for slot in oldest_first:
            row = work.rows[slot]
            while slot in running and not pages.grow(slot, work.soon(row.number, row.drawn)):
                pages.end(running.pop())
        self._set_back(work, state, oldest_first[len(running) :])
        _publish(work, state)

    def _set_back(self, work: _Work, state: State, slots: Sequence[int]) -> None:
        """Let these rows, the oldest first, wait for pages."""
        if not slots:
            return
        state.active[list(slots)] = 0
        for slot in reversed(slots):
            row = work.rows[slot]
            outs = (state.out_ids, state.out_log_probs, state.out_entropies)
            work.set_back[row.number] = _Drawn(*(out[slot, : row.drawn].clone() for out in outs))
            work.waiting.append(row.number)
        self.set_back_rows += len(slots)
        self._free(work, state, slots)

    def _resume(self, work: _Work, talks: Talks, state: State) -> None:
        """Go on with conversations that have an answer. If none can decode, wait for one."""
        pending = {slot: row for slot, row in work.rows.items() if row.length}
        if pending and len(pending) == len(work.rows):
            wait([talks.answers[row.number] for row in pending.values()], return_when=FIRST_COMPLETED)
        answered = {slot: row for slot, row in pending.items() if talks.answers[row.number].done()}
        over = {slot for slot, row in answered.items() if not talks.hear(row.number)}
        going = {slot: row for slot, row in answered.items() if slot not in over}
        if going:
            new, begins = [], []
            for row in going.values():
                # The last id that it drew has not been read; the first decode step reads the last one that is new.
                new.append(talks.all[row.number].ids[row.length - 1 : -1])
                begins.append(len(work.requests[row.number].prompt_ids) + row.length - 1)
            read_behind(self._decoder, state, new, list(going), begins)
            for (slot, row), begin, ids in zip(going.items(), begins, new, strict=True):
                one = talks.all[row.number]
                uniforms = draw_uniforms([one.seed], one.left)[0].to(self.model.device)
                state.resume(slot, one.ids[-1], begin + len(ids), len(one.ids), uniforms)
                row.begun = row.looked = len(one.ids)
                row.length = 0
        self._free(work, state, over)

    def _look(self, work: _Work, state: State, guessed: int = 0) -> None:
        """Take out finished rows. guessed: steps since the last check, if they read guesses."""
        count = len(work.rows)
        active, counts = torch.stack((state.active[:count], state.counts[:count])).tolist()
        if guessed:
            drawn = {slot: counts[slot] - row.drawn for slot, row in work.rows.items()}
            going = [count for slot, count in drawn.items() if active[slot]]  # the others ended somewhere in between
            work.guessing.note(sum(going), guessed * len(going))
            self.guessed_steps += guessed * len(drawn)
            self.guessed_tokens += sum(drawn.values())
        else:
            work.guessing.wait()
        for slot, row in work.rows.items():
            row.drawn = counts[slot]
        ended = {slot for slot, row in work.rows.items() if not active[slot] and not row.length}
        if work.stops:
            ended |= _with_stop_text(work, state.out_ids[:count], counts)
        if not ended:
            return
        state.active[sorted(ended)] = 0
        self._collect(work, state, sorted(ended), counts)
        self._free(work, state, {slot for slot in ended if not work.rows[slot].length})

    def _free(self, work: _Work, state: State, ended: Collection[int]) -> None:
        """Take these rows out of their slots, and move the rest together."""
        for slot in ended:
            del work.rows[slot]
            if work.pages is not None:
                work.pages.end(slot)
        left = len(work.rows)
        sources = [slot for slot in sorted(work.rows) if slot >= left]
        targets = [slot for slot in range(left) if slot not in work.rows]
        state.move(sources, targets)
        for source, target in zip(sources, targets, strict=True):
            work.rows[target] = work.rows.pop(source)
            if work.pages is not None:
                work.pages.move(source, target)
        _publish(work, state)

    def _collect(self, work: _Work, state: State, slots: Sequence[int], counts: Sequence[int]) -> None:
        longest = max(counts[slot] for slot in slots)
        which = torch.tensor(slots, device=self.model.device)
        outs = (state.out_ids, state.out_log_probs, state.out_entropies)
        for slot, *drawn in zip(slots, *(out[which, :longest].tolist() for out in outs), strict=True):
            row = work.rows[slot]
            ids, log_probs, entropies = (one[row.begun : counts[slot]] for one in drawn)
            if not work.sampling.entropies:
                entropies = []
            number, left = row.number, work.sampling.max_new_tokens - row.begun
            reply = rollout_of(work.requests[number], ids, log_probs, work.stops, left, entropies)
            if work.talks is None:
                work.done[number] = reply
                if work.on_end is not None:
                    work.on_end(number, reply)
                continue
            work.talks.reply(number, reply.completion_ids, reply.log_probs, reply.entropies, reply.finish_reason)
            if number in work.talks.answers:
                row.length = row.begun + len(reply.completion_ids)

    def rest(self) -> None:
        """Keep a cache that fits `keep_bytes`, because capturing its graphs again takes time; free a larger one."""
        # The shape of what stays decides which graphs run next. Were a smaller cache to stay after a larger one went, a
        # resumed run, whose first rollouts are the largest that there can be, would have other graphs than a whole one.
        if self.cache_bytes > self._keep_bytes:
            self._keep_bytes = 0
            self.close()

    @property
    def cache_bytes(self) -> int:
        """Bytes of the current cache."""
        return sum(one.nbytes for one in (*self._state.keys, *self._state.values)) if self._state else 0

    def close(self) -> None:
        self._steps = self._passes = self._state = self._weights = None
        self._addresses = ()


def _publish(work: _Work, state: State) -> None:
    """Tell the device which pages the slots hold."""
    if work.pages is not None and work.pages.have_changed():
        state.set_pages(work.pages.by_slot())


def fitting(work: _Work, pages: Pages, most: int) -> int:
    """How many of the waiting rows, at most `most`, can start. Where none runs, one always can."""
    prompts = {work.requests[row.number].prompt_ids for row in work.rows.values()}
    free, running, count = pages.free, len(work.rows), 0
    for number in reversed(work.waiting[-most:]):
        prompt, drawn = work.requests[number].prompt_ids, work.set_back.get(number)
        needed = pages_of(work.soon(number, 0 if drawn is None else len(drawn.ids)))
        needed -= shared_pages(len(prompt)) if prompt in prompts else 0
        growing = 0 if work.talks else running + count
        if running + count and needed + growing > free:
            break
        prompts.add(prompt)
        free, count = free - needed, count + 1
    return count


def _with_stop_text(work: _Work, out_ids: Tensor, counts: Sequence[int]) -> set[int]:
    """Slots whose row has completed a stop text since the last check. out_ids: [slots, room]"""
    found, stops = set[int](), work.stops
    rows = {slot: row for slot, row in work.rows.items() if not row.length and row.looked < counts[slot]}
    if not rows:
        return found
    # Only what is new, and what it may complete.
    begins = {slot: max(row.begun, row.looked + 1 - stops.window) for slot, row in rows.items()}
    width = max(counts[slot] - begin for slot, begin in begins.items())
    slots, firsts = torch.tensor([*begins.items()], device=out_ids.device).T
    places = firsts[:, None] + torch.arange(width, device=out_ids.device)
    ids = out_ids[slots[:, None], places.clamp(max=out_ids.shape[1] - 1)].tolist()
    for (slot, row), new in zip(rows.items(), ids, strict=True):
        begin = begins[slot]
        for length in range(row.looked + 1 - begin, counts[slot] + 1 - begin):
            if stops.end_at(new, length):
                found.add(slot)
                break
        row.looked = counts[slot]
    return found


def in_turn(requests: Sequence[Request]) -> list[int]:
    """Request numbers in starting order: equal prompts together, long ones first. (pure)

    Long ones go first because the last rows run alone.
    """
    return sorted(
        range(len(requests)), key=lambda number: (-len(requests[number].prompt_ids), requests[number].prompt_ids)
    )


def bucket_of(rows: int, slots: int) -> int:
    """Rows of the smallest graph that holds `rows`: a power of two, or all slots. (pure)"""
    bucket = 1
    while bucket < rows:
        bucket *= 2
    return min(bucket, slots)


def reason_against(model: Any) -> str:
    """Why a model cannot be decoded this way; empty if it can."""
    if reason := reason_of(model) or capture.supports(described(model)):
        return reason
    if len(stop_ids_of(model)) > MAX_STOPS:
        return f"the model has more than {MAX_STOPS} stop tokens"
    if model.device.type == "cpu":
        return ""
    shape = shape_of(model.config.to_dict())
    reason = capture.reason_against(
        torch.cuda.get_device_capability(model.device) if model.device.type == "cuda" else (0, 0),
        str(model.model.embed_tokens.weight.dtype).removeprefix("torch."),
        head_dims=shape.head_dims,
        heads=shape.num_attention_heads,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
    )
    if reason:
        return reason
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed"
    return ""


def operations_for(device: torch.device) -> Operations:
    """The fastest operations that this machine can compile."""
    if device.type == "cpu":
        return TorchOperations()
    if not (reason := cuda.reason_against()):
        from workers.rollout.graph.cuda_step import CudaOperations

        try:
            return CudaOperations(device)
        except RuntimeError as error:
            if is_out_of_memory(error):  # not a missing compiler
                raise
            reason = str(error)
    from workers.rollout.graph.triton_step import TritonOperations

    log.warning("decoding uses the slower Triton kernels: %s", reason)
    return TritonOperations(device)
