"""`HfEngine` with decode steps that are CUDA graphs of transformers' own forward pass over a static cache.

For models that our own code does not compute: hybrids with gated delta or convolution layers, mixtures of experts. A
step of these launches a thousand kernels or more, and launching takes ten times as long as running them. Whatever
transformers can compile as one graph has static addresses and no control flow that depends on data, so it can be
captured too (`_can_compile_fullgraph`, `Cache.is_compileable`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import StaticCache
from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

from workers.models import torch_setup
from workers.models.fast_graphs import CAPTURING, capture_stream
from workers.rollout.engine import Decode, EngineUnavailable, Request, Rollout, Sampling, choose, draw_uniforms
from workers.rollout.graph.capture import warming_stream
from workers.rollout.hf import HfEngine
from workers.rollout.stopping import StopTexts, rollout_of, stops_of

LOOK_EVERY = 16
"""Steps between two looks at whether all rows have ended, for which the processor waits for the GPU."""
LEAST_TOKENS = 4
"""Of a cache: the trial before a capture reads two tokens and draws two."""


def reason_against(model: Any) -> str:
    """Why the steps of this model cannot be captured; empty if they can."""
    if reason := torch_setup.reason_against(model.device):
        return reason
    if not getattr(model, "_can_compile_fullgraph", False):
        return f"transformers does not compile a {type(model).__name__} as one graph"
    if not _cache_name(model):
        return f"a {type(model).__name__} takes no cache"
    try:
        cache = _cache_of(model, 1)
    except Exception as error:  # whatever a config makes transformers raise: the model has no static cache
        return f"transformers has no static cache for it ({type(error).__name__})"
    return "" if cache.is_compileable else "its cache grows with each token"


def _cache_name(model: Any) -> str:
    """The name of the argument by which `forward` takes its cache; empty if it takes none."""
    accepted = inspect.signature(model.forward).parameters
    return next((name for name in ("past_key_values", "cache_params") if name in accepted), "")


class _Window(StaticLayer):  # type: ignore[no-untyped-call]
    """The cache of a layer with a window, as long as any other: the mask hides what the window does not reach.

    transformers' own keeps no more than the window, and branches on how full it is, which a graph cannot.
    """

    is_sliding = True


def _cache_of(model: Any, tokens: int) -> Any:
    cache = StaticCache(config=model.config, max_cache_len=tokens)
    for place, layer in enumerate(cache.layers):
        if type(layer) is StaticSlidingWindowLayer:
            cache.layers[place] = _Window(max_cache_len=tokens)
        elif isinstance(layer, StaticSlidingWindowLayer):
            layer.is_compileable = False  # a hybrid with a window
    return cache


def _own_kernels(model: Any) -> AbstractContextManager[None]:
    """Inside, layers run by our own kernels where we have some."""
    if find_spec("triton") is None:
        return nullcontext()
    from workers.rollout.gated_delta import steps_by_kernel

    return steps_by_kernel(model)


class HfGraphEngine(HfEngine):
    """A `RolloutEngine`. Its rows are those of `HfEngine`, in the same groups."""

    def __init__(self, model: Any, decode: Decode | None = None, *, longest: int = 0, keep_bytes: int = 0) -> None:
        """longest: tokens of prompt and completion for which caches are made, more if a call asks for more.
        keep_bytes: how much may stay while the trainer works. Raises EngineUnavailable for a model whose steps cannot
        be captured."""
        if reason := reason_against(model):
            raise EngineUnavailable(reason)
        super().__init__(model, decode)
        self._longest, self._keep_bytes = longest, keep_bytes
        self._steps: _Steps | None = None

    @torch.inference_mode()
    def _side_by_side(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        width = max(len(request.prompt_ids) for request in requests)
        limit = sampling.max_new_tokens
        stops = stops_of(sampling, self.decode, self.stop_ids)
        steps = self._begun(requests, width, sampling)
        ended: set[int] = set()
        for place in range(1, limit):
            if place % LOOK_EVERY == 0 and _all_ended(steps.ids[:, :place].tolist(), ended, stops):
                break
            steps.go()
        return steps.rollouts(requests, stops)

    def _begun(self, requests: Sequence[Request], width: int, sampling: Sampling) -> _Steps:
        """Steps whose rows have read their prompts."""
        try:
            steps = self._steps_for(len(requests), width + sampling.max_new_tokens, sampling)
            steps.begin(requests, width)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the model's own code: any error means that it cannot be captured
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}"
            raise EngineUnavailable(f"its steps cannot be captured ({reason})") from error
        return steps

    def _steps_for(self, rows: int, tokens: int, sampling: Sampling) -> _Steps:
        """Those of the call before, if they fit: the number of rows decides how sums are rounded."""
        tokens = max(tokens, self._longest, LEAST_TOKENS)
        kind = replace(sampling, stop=(), ignore_stop=False)
        if self._steps is None or (self._steps.rows, self._steps.tokens, self._steps.sampling) != (rows, tokens, kind):
            self._steps = None  # frees the cache before the next one is made
            self._steps = _Steps(self.model, rows, tokens, kind, self._is_padded)
        return self._steps

    def rest(self) -> None:
        """Free the cache and the graph if the trainer needs their memory. Both read the model's own weights."""
        if self._steps is not None and self._steps.bytes > self._keep_bytes:
            self._steps = None

    def close(self) -> None:
        self._steps = None


def _all_ended(ids: Sequence[Sequence[int]], ended: set[int], stops: StopTexts) -> bool:
    """Add the rows that ended in their last `LOOK_EVERY` tokens to `ended`, and return whether all have. (pure)"""
    for row, drawn in enumerate(ids):
        if row not in ended and any(
            drawn[length - 1] in stops.stop_ids or stops.end_at(drawn, length)
            for length in range(max(1, len(drawn) - LOOK_EVERY + 1), len(drawn) + 1)
        ):
            ended.add(row)
    return len(ended) == len(ids)


@dataclass(frozen=True)
class _Place:
    """token: [1], int64, of the draw to come. position: [rows, 1], int64, of the token that the next step reads."""

    token: Tensor
    position: Tensor


class _Steps:
    """The steps of `rows` rows over a cache of `tokens`, and the buffers that a graph of them reads and writes."""

    def __init__(self, model: Any, rows: int, tokens: int, sampling: Sampling, is_padded: bool) -> None:
        self.rows, self.tokens, self.sampling = rows, tokens, sampling
        self._model = model
        device = model.device
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        self._accepted, self._cache_name = inspect.signature(model.forward).parameters, _cache_name(model)
        self._cache = _cache_of(model, tokens)
        self._mask = torch.ones(rows, tokens, dtype=torch.int64, device=device) if is_padded else None
        shape = (rows, sampling.max_new_tokens)
        self._uniforms = torch.zeros(shape, device=device)
        self.ids = torch.zeros(shape, dtype=torch.int64, device=device)
        self._log_probs = torch.zeros(shape, device=device)
        self._entropies = torch.zeros(shape, device=device) if sampling.entropies else None
        self._last = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._at = _Place(torch.zeros(1, dtype=torch.int64, device=device), torch.zeros_like(self._last))
        self.go: Callable[[], None] = self._captured() if device.type == "cuda" else self._step
        self.bytes = torch.cuda.memory_allocated(device) - before if device.type == "cuda" else 0

    def begin(self, requests: Sequence[Request], width: int) -> None:
        """Read the prompts, padded on the left to `width`, and draw the first tokens."""
        device = self._last.device
        lacking = [width - len(request.prompt_ids) for request in requests]
        rows = [[0] * blank + list(request.prompt_ids) for blank, request in zip(lacking, requests, strict=True)]
        seeds = [request.seed for request in requests]
        self._uniforms.copy_(draw_uniforms(seeds, self.sampling.max_new_tokens))
        blanks = torch.tensor(lacking, device=device)[:, None]  # [rows, 1]
        columns = torch.arange(self.tokens, device=device)
        if self._mask is not None:
            self._mask.copy_(columns >= blanks)
        self._at.token.zero_()
        self._cache.reset()
        prompt_mask = (columns[:width] >= blanks).long()
        positions = (columns[:width] - blanks).clamp(min=0)
        self._draw(self._logits(torch.tensor(rows, device=device), prompt_mask, positions))
        self._at.position.copy_(width - blanks)

    def rollouts(self, requests: Sequence[Request], stops: StopTexts) -> list[Rollout]:
        """What was drawn since `begin`, each cut where it ends."""
        drawn = int(self._at.token)
        ids, log_probs = self.ids[:, :drawn].tolist(), self._log_probs[:, :drawn].tolist()
        entropies: list[list[float]] = (
            [[]] * self.rows if self._entropies is None else self._entropies[:, :drawn].tolist()
        )
        limit = self.sampling.max_new_tokens
        return [
            rollout_of(request, row, mine, stops, limit, entropy)
            for request, row, mine, entropy in zip(requests, ids, log_probs, entropies, strict=True)
        ]

    def _logits(self, ids: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        """Of the token after each row. ids, positions: [rows, T]; mask: [rows, T of the cache]. Returns [rows, V]."""
        given = {"attention_mask": mask, "position_ids": positions, "logits_to_keep": 1}
        asked: dict[str, Any] = {name: value for name, value in given.items() if name in self._accepted}
        asked[self._cache_name] = self._cache
        found: Tensor = self._model(input_ids=ids, use_cache=True, **asked).logits[:, -1]
        return found

    def _draw(self, logits: Tensor) -> None:
        at = self._at.token
        drawn = choose(logits, self._uniforms.index_select(1, at).squeeze(1), self.sampling)
        self._last.copy_(drawn.tokens[:, None])
        self.ids.index_copy_(1, at, drawn.tokens[:, None])
        self._log_probs.index_copy_(1, at, drawn.log_probs[:, None])
        if self._entropies is not None and drawn.entropies is not None:
            self._entropies.index_copy_(1, at, drawn.entropies[:, None])
        at.add_(1)

    def _step(self) -> None:
        self._draw(self._logits(self._last, self._mask, self._at.position))
        self._at.position.add_(1)

    def _captured(self) -> Callable[[], None]:
        device = self._last.device
        with CAPTURING, torch.cuda.device(device), _own_kernels(self._model):
            stream = warming_stream(device)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.begin([Request((0, 0), 0)] * self.rows, 2)  # makes the cache's tensors
                self._at.token.zero_()
                self._step()  # lets libraries allocate their workspaces
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=capture_stream(device), capture_error_mode="thread_local"):
                self._step()
        return graph.replay
