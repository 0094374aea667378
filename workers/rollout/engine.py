"""The interface of rollout engines: requests in, sampled completions with their log-probabilities out.

A request carries its own seed, and its result depends on nothing else in the batch (beyond rounding): a resumed step
or another batch split samples the same tokens. Engines that keep this only in part say so where they are defined.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

FinishReason = Literal["stop", "stop_text", "length"]
"""`stop`: the last id is a stop token. `stop_text`: the last id completed a stop text, which belongs to the answer."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. Top-p is always 1: cutting the tail would make log_probs those of another policy."""

    temperature: float = 1.0
    """Softmax temperature; `Rollout.log_probs` are taken at it. Not read when greedy."""
    max_new_tokens: int = 96
    greedy: bool = False
    stop: tuple[str, ...] = ()
    """Texts that end a completion, at the token that completes one."""
    entropies: bool = False
    """Also tell `Rollout.entropies`, where the engine can."""
    ignore_stop: bool = False
    """Nothing ends a completion but its length, exactly `max_new_tokens`: for measuring."""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion that is wanted."""

    prompt_ids: tuple[int, ...]
    seed: int
    """Root of this completion's own random stream, 0 to 2**63 - 1."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled completion. A stop token, where one came, is its last id."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Of each completion id under the policy that drew it, natural logarithm, at the sampling temperature."""
    finish_reason: FinishReason
    entropies: tuple[float, ...] = ()
    """Of the distributions that the ids were drawn from, nats; empty where they were not asked for, or not known."""

    @property
    def is_finite(self) -> bool:
        """Whether its numbers are. Where one is not, the ids are no sample of a policy, and teach nothing."""
        return all(map(isfinite, self.log_probs)) and all(map(isfinite, self.entropies))

    @property
    def known_log_probs(self) -> tuple[float, ...]:
        """What can be written as JSON, which has no NaN: empty unless the numbers are finite."""
        return self.log_probs if self.is_finite else ()


class RolloutEngine(Protocol):
    """Anything that completes prompts."""

    has_queue: bool
    """Takes any number of requests and decides by itself how many decode side by side."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """One rollout for each request, in the order of the requests, with the weights as they are now.

        Raises EngineUnavailable where the engine cannot work any more and another one should.
        """
        ...

    def rest(self) -> None:
        """An update follows: give memory back; weights that were copied are stale from now on."""
        ...

    def close(self) -> None:
        """Give everything back. The engine is not used again."""
        ...


class EngineUnavailable(Exception):
    """An engine that cannot start, or not go on; the text is the reason, for a person."""


Decode = Callable[[Sequence[int]], str]
"""Ids to their text, special tokens included."""


def draw_uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """Random numbers in [0, 1) for `length` draws of each request, from its own generator. [N, length]."""
    generator = torch.Generator()
    return torch.stack([torch.rand(length, generator=generator.manual_seed(seed)) for seed in seeds])


class Drawn(NamedTuple):
    """tokens: [N]. log_probs, and entropies where they were asked for: [N], float32, nats."""

    tokens: Tensor
    log_probs: Tensor
    entropies: Tensor | None


def choose(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> Drawn:
    """Next tokens. logits: [N, V]; uniforms: [N].

    The token is where the cumulated probability passes the uniform number, so that one number a token is enough.
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
    if sampling.entropies:  # a log_prob of -inf counts nothing
        entropies = -(log_probs.exp() * log_probs.clamp(min=-1e30)).sum(dim=-1)
    return Drawn(tokens, log_probs.gather(1, tokens[:, None]).squeeze(1), entropies)


def cumulated_sum(values: Tensor) -> Tensor:
    """Of [N, V] along V. CUDA's own has no fixed order, so there sums over twice as many are made each time."""
    return doubled_sum(values) if values.is_cuda else values.cumsum(dim=-1)


def doubled_sum(values: Tensor) -> Tensor:
    """The same anywhere, in log2(V) additions."""
    reach = 1
    while reach < values.shape[-1]:
        values = torch.cat([values[..., :reach], values[..., reach:] + values[..., :-reach]], dim=-1)
        reach *= 2
    return values


def stop_ids_of(model: Any) -> frozenset[int]:
    """Token ids that end a completion, as the checkpoint names them."""
    named = model.generation_config.eos_token_id
    if named is None:
        named = model.config.eos_token_id
    return frozenset([named] if isinstance(named, int) else named or [])
