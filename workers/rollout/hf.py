"""Rollouts through transformers' own `generate`: slower, works for any causal model, and is the native engine's
reference.

We draw the tokens ourselves (`choose`), so both engines sample the same tokens from the same seeds.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from profiles.families import is_left_padded
from workers.rollout.engine import Decode, Request, Rollout, Sampling, choose, draw_uniforms, stop_ids_of
from workers.rollout.stopping import StopTexts, rollout_of, stops_of


class HfEngine:
    """A `RolloutEngine` over `model.generate`. It pads prompts on the left only for architectures known to give the
    same result as without padding; for others, only prompts of equal length decode side by side."""

    has_queue = False

    def __init__(self, model: Any, decode: Decode | None = None):
        """decode: needed for stop texts."""
        self.model = model
        self.decode = decode
        self.stop_ids = sorted(stop_ids_of(model))
        self._is_padded = is_left_padded(model.config.to_dict())

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """One rollout per request, in order."""
        lots: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            lots.setdefault(0 if self._is_padded else len(request.prompt_ids), []).append(number)
        found: dict[int, Rollout] = {}
        for lot in lots.values():
            found |= zip(lot, self._side_by_side([requests[number] for number in lot], sampling), strict=True)
        return [found[number] for number in range(len(requests))]

    @torch.inference_mode()
    def _side_by_side(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        width = max(len(request.prompt_ids) for request in requests)
        device = self.model.device
        rows = [[0] * (width - len(request.prompt_ids)) + list(request.prompt_ids) for request in requests]
        mask = [[0] * (width - len(request.prompt_ids)) + [1] * len(request.prompt_ids) for request in requests]
        uniforms = draw_uniforms([request.seed for request in requests], sampling.max_new_tokens).to(device)
        drawer = _Draw(uniforms, sampling, width)
        stops = stops_of(sampling, self.decode, self.stop_ids)
        stop_ids = sorted(stops.stop_ids)
        with _unbent(self.model):
            output = self.model.generate(
                torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                logits_processor=LogitsProcessorList([drawer]),
                stopping_criteria=StoppingCriteriaList([_Stop(stops, width)] if stops else []),
                do_sample=False,
                max_new_tokens=sampling.max_new_tokens,
                eos_token_id=stop_ids or [-1],  # no token has this number
                pad_token_id=stop_ids[0] if stop_ids else 0,
            )
        log_probs = torch.stack(drawer.log_probs, dim=1).tolist()  # [N][T]
        entropies = torch.stack(drawer.entropies, dim=1).tolist() if drawer.entropies else [[]] * len(requests)
        return [
            rollout_of(request, ids, row, stops, sampling.max_new_tokens, entropy)
            for request, ids, row, entropy in zip(
                requests, output[:, width:].tolist(), log_probs, entropies, strict=True
            )
        ]

    def rest(self) -> None:
        """Nothing to give back: the cache lives for one call, and the weights are the model's own."""

    def close(self) -> None:
        pass


@contextmanager
def _unbent(model: Any) -> Iterator[None]:
    """Ignore the checkpoint's generation config inside. `generate` falls back on it for every option that is not
    passed, and its penalties and forbidden words would change the policy."""
    kept, make = model.generation_config, GenerationConfig
    model.generation_config = make()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        model.generation_config = kept


class _Draw(LogitsProcessor):
    """Leaves only the token that `choose` draws, and keeps its log-probability."""

    def __init__(self, uniforms: Tensor, sampling: Sampling, width: int):
        self.uniforms, self.sampling, self.width = uniforms, sampling, width
        self.log_probs: list[Tensor] = []
        self.entropies: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids: [N, T]; scores: [N, V]."""
        tokens, log_probs, entropies = choose(scores, self.uniforms[:, input_ids.shape[1] - self.width], self.sampling)
        self.log_probs.append(log_probs)
        if entropies is not None:
            self.entropies.append(entropies)
        return torch.full_like(scores, float("-inf")).scatter(1, tokens[:, None], 0.0)


class _Stop(StoppingCriteria):
    """Ends a row at the token that completes a stop text."""

    def __init__(self, stops: StopTexts, width: int):
        self.stops, self.width = stops, width

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """input_ids: [N, T]; returns [N] bool."""
        tails = input_ids[:, self.width :][:, -self.stops.window :].tolist()
        return torch.tensor([self.stops.end_in(tail) for tail in tails], device=input_ids.device)
