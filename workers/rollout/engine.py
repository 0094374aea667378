"""The interface of rollout engines: requests in, sampled completions with their log-probabilities out.

A request carries its own seed, and its result depends on nothing else in the batch (up to rounding). So a resumed step,
or one split into other batches, samples the same tokens. Engines that keep this only in part document it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

FinishReason = Literal["stop", "stop_text", "length"]
"""`stop`: the last id is a stop token. `stop_text`: the last id completed a stop text, which is part of the answer."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. Top-p is always 1: cutting the tail would make log_probs those of another policy."""

    temperature: float = 1.0
    """Softmax temperature; `Rollout.log_probs` are computed at it. Ignored when greedy."""
    max_new_tokens: int = 96
    greedy: bool = False
    stop: tuple[str, ...] = ()
    """Texts that end a completion. The token that completes one is the last."""
    entropies: bool = False
    """Also return `Rollout.entropies`, if the engine can."""
    ignore_stop: bool = False
    """Ignore stop tokens: every completion has exactly `max_new_tokens`. For measurements."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one completion."""

    prompt_ids: tuple[int, ...]
    seed: int
    """Seed of this completion's own random stream, 0 to 2**63 - 1."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled completion. If it ended at a stop token, that is its last id.

    Of a conversation: all replies, with what was said to the model between them.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """For each id that the model drew, under the policy that drew it: natural logarithm, at the sampling
    temperature."""
    finish_reason: FinishReason
    entropies: tuple[float, ...] = ()
    """Of the distributions that the ids were drawn from, nats; empty if not requested or not available."""
    is_own: tuple[bool, ...] = ()
    """For each completion id, whether the model drew it; the others were said to it. Empty: it drew all."""

    @property
    def num_own(self) -> int:
        """Ids that the model drew."""
        return sum(self.is_own) if self.is_own else len(self.completion_ids)

    @property
    def is_finite(self) -> bool:
        """Whether all its numbers are finite. If not, the ids are not a sample of any policy and must not be trained
        on."""
        return all(map(isfinite, self.log_probs)) and all(map(isfinite, self.entropies))

    @property
    def known_log_probs(self) -> tuple[float, ...]:
        """The log-probs if finite, else empty: JSON has no NaN."""
        return self.log_probs if self.is_finite else ()


class RolloutEngine(Protocol):
    """Anything that completes prompts."""

    has_queue: bool
    """The engine takes any number of requests and decides how many decode side by side."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """One rollout per request, in order, with the current weights.

        Raises EngineUnavailable if the engine can no longer work and another one should take over.
        """
        ...

    def rest(self) -> None:
        """Free memory before an update. Copied weights are stale from now on."""
        ...

    def close(self) -> None:
        """Free everything. The engine must not be used again."""
        ...


Respond = Callable[[int, Rollout], "Future[tuple[int, ...]]"]
"""Told the number of a request and the conversation so far, which ends with a reply; gives the ids of what is said to
the model next, or none if the conversation is over. It must not block."""
OnEnd = Callable[[int, Rollout], None]
"""Told the number of a request and its rollout, once for each, in any order and from any thread. It must not block."""


class EngineUnavailable(Exception):
    """The engine cannot start or cannot continue; the text gives the reason to the user."""


Decode = Callable[[Sequence[int]], str]
"""Ids to their text, special tokens included."""


def draw_uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """Uniform numbers in [0, 1) for `length` draws of each request, from its own generator. [N, length]."""
    generator = torch.Generator()
    return torch.stack([torch.rand(length, generator=generator.manual_seed(seed)) for seed in seeds])


class Drawn(NamedTuple):
    """tokens: [N]. log_probs, and entropies if requested: [N], float32, nats."""

    tokens: Tensor
    log_probs: Tensor
    entropies: Tensor | None


def choose(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> Drawn:
    """Next tokens. logits: [N, V]; uniforms: [N].

    Inverse transform sampling: the token at which the cumulative probability passes the uniform number.
    """
    temperature = 1.0 if sampling.greedy else sampling.temperature
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)  # [N, V]
    if sampling.greedy:
        tokens = logits.argmax(dim=-1)
    else:
        cumulated = cumulated_sum(log_probs.exp())
        below = cumulated <= (uniforms * cumulated[:, -1].clamp(max=1.0))[:, None]
        tokens = below.sum(dim=-1).clamp(max=logits.shape[-1] - 1)
    entropies = None
    if sampling.entropies:  # a log_prob of -inf contributes nothing
        entropies = -(log_probs.exp() * log_probs.clamp(min=-1e30)).sum(dim=-1)
    return Drawn(tokens, log_probs.gather(1, tokens[:, None]).squeeze(1), entropies)


def cumulated_sum(values: Tensor) -> Tensor:
    """Cumulative sum of [N, V] along V. CUDA's own has no fixed order, so there we use `doubled_sum`."""
    return doubled_sum(values) if values.is_cuda else values.cumsum(dim=-1)


def doubled_sum(values: Tensor) -> Tensor:
    """The same on any device, in log2(V) additions over growing distances."""
    reach = 1
    while reach < values.shape[-1]:
        values = torch.cat([values[..., :reach], values[..., reach:] + values[..., :-reach]], dim=-1)
        reach *= 2
    return values


def stop_ids_of(model: Any) -> frozenset[int]:
    """Token ids that end a completion, from the checkpoint's generation config."""
    named = model.generation_config.eos_token_id
    if named is None:
        named = getattr(model.config, "eos_token_id", None)
    return frozenset([named] if isinstance(named, int) else named or [])
