"""Rollouts through transformers' continuous batching: a paged cache, and new requests take the place of finished ones.

We draw the tokens ourselves (`choose`, in a logits processor), so a request's seed decides its tokens and log_probs are
those of the policy that drew them. This needs the host in step with each batch: no CUDA graphs, and no preparing of the
next batch in advance. It is slow without flash attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from workers.models.plain import described
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
from workers.rollout.stopping import StopTexts, rollout_of, stops_of

PAGE_TOKENS = 32
"""Tokens per cache page."""
MAX_BATCH_TOKENS = 4096
"""Most prompt tokens read in one pass."""
STOP_S = 30.0
"""Seconds to wait for its thread after the last request."""
ENDED = -1.0
"""Stands in for a uniform number once the completion holds its stop text: a stop token follows, and is dropped."""


class ContinuousEngine:
    """A `RolloutEngine` over `model.init_continuous_batching`, for any model that it supports."""

    has_queue = False

    def __init__(self, model: Any, decode: Decode | None = None) -> None:
        """decode: needed for stop texts. Raises EngineUnavailable if transformers lacks a part."""
        try:
            from transformers import ContinuousBatchingConfig, GenerationConfig
            from transformers.generation.continuous_batching import cb_logits_processors  # noqa: F401
        except ImportError as error:
            raise EngineUnavailable(f"this transformers has no continuous batching that fits: {error}") from error
        if not hasattr(model, "init_continuous_batching"):
            raise EngineUnavailable(f"{type(model).__name__} has no continuous batching in this transformers")
        if reason := _reason_against(model):
            raise EngineUnavailable(f"continuous batching does not compute this model: {reason}")
        self._make_config: Any = ContinuousBatchingConfig
        self._make_generation_config: Any = GenerationConfig
        self.model = model
        self.decode = decode
        self.stop_ids = sorted(stop_ids_of(model))

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """One rollout per request, in order. Raises EngineUnavailable if a request fails."""
        if not requests:
            return []
        limit = sampling.max_new_tokens
        stops = stops_of(sampling, self.decode, self.stop_ids)
        self._stop_ids = sorted(stops.stop_ids)
        drawer = _drawer(requests, sampling, stops)
        how = self._make_generation_config(max_new_tokens=limit, do_sample=False, eos_token_id=self._stop_ids or -1)
        manager = self.model.init_continuous_batching(
            generation_config=how, continuous_batching_config=self._config(requests, limit)
        )
        # Register it before the start: the loop's thread sizes its tensors by the processors that it finds.
        manager.logit_processor.logits_processor.append(drawer)
        manager.logit_processor.tensors_required += 1
        manager.logit_processor.do_processing = True
        manager.start()
        try:
            answers = self._answers(manager, requests, limit)
        finally:
            manager.stop(block=True, timeout=STOP_S)
        log_probs = drawer.log_probs_by_request()
        return [
            rollout_of(request, answers[number], log_probs[number], stops, limit)
            for number, request in enumerate(requests)
        ]

    def _answers(self, manager: Any, requests: Sequence[Request], limit: int) -> dict[int, list[int]]:
        """Request number -> its ids."""
        for number, request in enumerate(requests):
            ids, stop = list(request.prompt_ids), self._stop_ids or -1
            manager.add_request(ids, str(number), max_new_tokens=limit, eos_token_id=stop)
        answers: dict[int, list[int]] = {}
        while len(answers) < len(requests):
            answer = manager.get_result(timeout=1)
            if answer is None:
                if not manager.is_running():
                    raise EngineUnavailable("continuous batching ended before all requests were done")
            elif answer.error is not None:
                raise as_error(answer.error)
            elif answer.is_finished():
                answers[int(answer.request_id)] = list(answer.generated_tokens)
        return answers

    def _config(self, requests: Sequence[Request], limit: int) -> Any:
        """A cache that just holds all requests at once. By default it would take most of the memory."""
        pages = sum(math.ceil((len(request.prompt_ids) + limit) / PAGE_TOKENS) + 1 for request in requests)
        longest = max(len(request.prompt_ids) for request in requests)
        known = {field.name for field in fields(self._make_config)}
        chosen = {
            "page_size" if "page_size" in known else "block_size": PAGE_TOKENS,  # the name before transformers 5.17
            "num_blocks": pages,
            "max_batch_tokens": max(MAX_BATCH_TOKENS, longest, len(requests)),
            "max_requests_per_batch": len(requests),
            "max_memory_percent": 0.9,
            "use_cuda_graph": False,
            "use_async_batching": False,
        }
        return self._make_config(**{name: value for name, value in chosen.items() if name in known})

    def rest(self) -> None:
        """Nothing to give back: the cache lives for one call, and the weights are the model's own."""

    def close(self) -> None:
        pass


def _reason_against(model: Any) -> str:
    """Why transformers' paged attention does not compute a model; empty if it may, which the probe then decides."""
    if not getattr(model, "_supports_sdpa", True):
        return "its family may have soft caps, which paged attention lacks"
    found = described(model)
    is_uneven = found is not None and any(layer.head_dim or layer.key_heads for layer in found.layers)
    return "its layers differ in the heads that they cache" if is_uneven else ""


def as_error(text: str) -> Exception:
    """The error for a failed request. Out of memory allows a smaller retry; anything else ends the engine. (pure)"""
    if "out of memory" in text or "Memory footprint" in text or "allocate memory" in text:
        return torch.OutOfMemoryError(text)
    return EngineUnavailable(f"continuous batching failed: {text}")


def _drawer(requests: Sequence[Request], sampling: Sampling, stops: StopTexts) -> Any:
    """A logits processor that leaves only the token that `choose` draws for each request, and keeps its log_prob."""
    from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

    uniforms = draw_uniforms([request.seed for request in requests], sampling.max_new_tokens)
    stop_id = min(stops.stop_ids, default=0)

    class Drawer(ContinuousBatchingLogitsProcessor):
        supported_kwargs: dict[str, type] = {}  # noqa: RUF012 - as its base declares it
        ignored_kwargs = ()

        def __init__(self) -> None:
            self.asked: list[list[int]] = []
            """For each pass, the numbers of the requests that it draws a token for."""
            self.drawn: list[Tensor] = []

        def fill_defaults(self, int32_tensor: Tensor) -> None:
            int32_tensor.zero_()

        def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
            states = [future.state for future in requests_with_new_token]
            self.asked.append([int(state.request_id) for state in states])
            numbers = torch.tensor([self._uniform(state) for state in states], dtype=torch.float32)
            return numbers.view(torch.int32)

        def _uniform(self, state: Any) -> float:
            """The request's next random number. After an eviction, its first tokens come back as part of its prompt."""
            number = int(state.request_id)
            so_far = [*state.initial_tokens[len(requests[number].prompt_ids) :], *state.generated_tokens]
            if stops and stops.end_in(so_far[-stops.window :]):
                return ENDED
            return float(uniforms[number, len(so_far)])

        def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
            """scores: [N, V]; tensor_arg: [>= N]."""
            numbers = tensor_arg[: scores.shape[0]].view(torch.float32)
            tokens, log_probs, _ = choose(scores, numbers.clamp(min=0.0), sampling)
            tokens = torch.where(numbers == ENDED, stop_id, tokens)
            self.drawn.append(log_probs[: len(self.asked[-1])])  # a partly read prompt may add an unused row
            return torch.full_like(scores, float("-inf")).scatter(1, tokens[:, None], 0.0)

        def log_probs_by_request(self) -> list[list[float]]:
            found: list[list[float]] = [[] for _ in requests]
            values = iter(torch.cat(self.drawn).tolist())
            for numbers in self.asked:
                for number in numbers:
                    found[number].append(next(values))
            return found

    return Drawer()
