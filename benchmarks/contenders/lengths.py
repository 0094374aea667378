"""Completions of different lengths, like real answers, and how each contender is made to produce them.

The workload sets the lengths, not the weights: our engines get fixed uniforms, TRL's generate gets changed logits, and
vLLM gets a token count per prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from itertools import pairwise
from typing import Any
from unittest.mock import patch

LENGTHS = (64, 128, 184, 228, 268, 308, 364, 456, 512)
"""Completion lengths at equidistant quantiles, with the end token, for a limit of 512 tokens."""
MEAN = sum(low + high for low, high in pairwise(LENGTHS)) / 2 / (len(LENGTHS) - 1)
LAST_DRAW = 0.99
"""Upper bound of uniforms, below the range of the end token (the vocabulary's last) unless its probability is 1 %."""
PAST_ALL = 2.0
"""A uniform that always selects the vocabulary's last token."""


def lengths_of(rows: int, completion: int, step: int) -> tuple[int, ...]:
    """Lengths of a group's rows in `step`, at most `completion` tokens. (pure)

    Each step draws new lengths; otherwise, shapes would be captured once and later steps would not pay for new ones.
    Rows are drawn from equal parts of the distribution, one each, so that steps have similar sizes.
    """
    draws = random.Random(f"lengths {step}")
    places = [(row + draws.random()) / rows for row in range(rows)]
    draws.shuffle(places)
    return tuple(max(1, round(_at(place) * completion / LENGTHS[-1])) for place in places)


def _at(place: float) -> float:
    """The quantile at `place` (0 to 1), interpolated from `LENGTHS`."""
    low = min(int(place * (len(LENGTHS) - 1)), len(LENGTHS) - 2)
    share = place * (len(LENGTHS) - 1) - low
    return LENGTHS[low] + share * (LENGTHS[low + 1] - LENGTHS[low])


def distribution_text(completion: int) -> str:
    """The distribution as text. (pure)"""
    low, mean = (round(tokens * completion / LENGTHS[-1]) for tokens in (LENGTHS[0], MEAN))
    return f"completions of {low} to {completion}, mean {mean}, new in each step (real lengths)"


@contextmanager
def rows_end(lengths: Sequence[int], seeds: int) -> Iterator[None]:
    """Make our engines sample the vocabulary's last token exactly at a row's last position.

    seeds: a request's seed modulo this is its row.
    """
    from workers.rollout import engine, hf, native
    from workers.rollout.graph import engine as graph

    def draw(of: Sequence[int], length: int) -> Any:
        uniforms = drawn(of, length).clamp(max=LAST_DRAW)
        for row, seed in enumerate(of):
            uniforms[row, lengths[seed % seeds] - 1] = PAST_ALL
        return uniforms

    drawn = engine.draw_uniforms
    with ExitStack() as undo:
        for module in (native, hf, graph):
            undo.enter_context(patch.object(module, "draw_uniforms", draw))
        yield


class Ends:
    """A logits processor that allows only the end token at a row's last position, and forbids it before."""

    def __init__(self, lengths: Sequence[int], end: int, width: int) -> None:
        """end: the token. width: tokens of the prompts, padding included."""
        self.lengths, self.end, self.width = lengths, end, width

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """input_ids: [N, T]; scores: [N, V]."""
        length = input_ids.shape[1] - self.width + 1
        scores = scores.clone()
        scores[:, self.end] = float("-inf")
        for row in [row for row, wanted in enumerate(self.lengths) if wanted == length]:
            scores[row] = float("-inf")
            scores[row, self.end] = 0.0
        return scores


def ending(generate: Callable[..., Any], lengths: Callable[[], Sequence[int]], end: int) -> Callable[..., Any]:
    """transformers' `generate` with `Ends` as a processor. lengths: of the current step."""
    from transformers import LogitsProcessorList

    def ended(**inputs: Any) -> Any:
        ends: Any = Ends(lengths(), end, inputs["input_ids"].shape[1])
        return generate(**inputs, logits_processor=LogitsProcessorList([ends]))

    return ended


def counted(generate: Callable[..., Any], lengths: Callable[[], Sequence[int]]) -> Callable[..., Any]:
    """`generate` of vLLM's LLM with a token count per prompt. lengths: of the current step."""

    def each(prompts: Sequence[Any], sampling_params: Any, **options: Any) -> Any:
        wanted = []
        for _, length in zip(prompts, lengths(), strict=True):
            wanted.append(copy(sampling_params))
            wanted[-1].ignore_eos, wanted[-1].min_tokens, wanted[-1].max_tokens = True, length, length
        return generate(prompts, sampling_params=wanted, **options)

    return each
