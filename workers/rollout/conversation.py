"""Conversations with a model: its replies, and what is said to it between them, in one row of tokens.

Engines that keep their cache between turns read only what is new. For all others `by_rounds` asks anew each turn, with
the whole conversation as the prompt. Every turn has its own random stream, so both draw the same tokens, up to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TypeVar

from workers.rng import derive
from workers.rollout.engine import FinishReason, OnEnd, Request, Respond, Rollout, Sampling

Told = TypeVar("Told")
Generate = Callable[[Sequence[Request], Sampling], list[Rollout]]


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a reply. turn: from 0, which has the request's own. (pure)"""
    return derive(seed, turn, "turn") if turn else seed


@dataclass
class Conversation:
    """What was said so far. limit: the most ids after the prompt, whoever says them."""

    number: int
    request: Request
    limit: int
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    is_own: list[bool] = field(default_factory=list)
    turn: int = 0

    @property
    def left(self) -> int:
        """The most ids that the next reply may have."""
        return self.limit - len(self.ids)

    @property
    def seed(self) -> int:
        """Of the next reply."""
        return turn_seed(self.request.seed, self.turn)

    @property
    def next_request(self) -> Request:
        """Asks for the next reply, with all that was said as the prompt."""
        return Request((*self.request.prompt_ids, *self.ids), self.seed)

    def reply(self, ids: Sequence[int], log_probs: Sequence[float], entropies: Sequence[float]) -> None:
        self.ids += ids
        self.log_probs += log_probs
        self.entropies += entropies
        self.is_own += [True] * len(ids)
        self.turn += 1

    def hear(self, ids: Sequence[int]) -> bool:
        """Add what is said to the model; False, with nothing added, if that leaves no room for a reply."""
        if len(ids) >= self.left:
            return False
        self.ids += ids
        self.is_own += [False] * len(ids)
        return True

    def rollout(self, reason: FinishReason) -> Rollout:
        is_own = () if all(self.is_own) else tuple(self.is_own)
        prompt, entropies = self.request.prompt_ids, tuple(self.entropies)
        return Rollout(prompt, tuple(self.ids), tuple(self.log_probs), reason, entropies, is_own)


class Talks:
    """The conversations of one call. Tells each reply when it ends, and gathers the answers."""

    def __init__(self, requests: Sequence[Request], limit: int, respond: Respond, on_end: OnEnd | None) -> None:
        self.all = [Conversation(number, request, limit) for number, request in enumerate(requests)]
        self.done: dict[int, Rollout] = {}
        self.answers: dict[int, Future[tuple[int, ...]]] = {}
        """Of the conversations that wait for one."""
        self._reasons: dict[int, FinishReason] = {}
        self._respond, self._on_end = respond, on_end

    def reply(
        self,
        number: int,
        ids: Sequence[int],
        log_probs: Sequence[float],
        entropies: Sequence[float],
        reason: FinishReason,
    ) -> None:
        """A reply has ended. One that was cut at the limit is the last."""
        one = self.all[number]
        one.reply(ids, log_probs, entropies)
        so_far = one.rollout(reason)
        if reason == "length" or not so_far.is_finite:
            self._end(number, so_far)
        else:
            self._reasons[number] = reason
            self.answers[number] = self._respond(number, so_far)

    def hear(self, number: int) -> bool:
        """Take the answer to a conversation, waiting for it. False if the conversation is over."""
        ids = self.answers.pop(number).result()
        if ids and self.all[number].hear(ids):
            return True
        self._end(number, self.all[number].rollout("length" if ids else self._reasons[number]))
        return False

    @property
    def rollouts(self) -> list[Rollout]:
        """All of them, in order."""
        return [self.done[number] for number in range(len(self.all))]

    def _end(self, number: int, rollout: Rollout) -> None:
        self.done[number] = rollout
        if self._on_end is not None:
            self._on_end(number, rollout)


def by_rounds(
    generate: Generate, requests: Sequence[Request], sampling: Sampling, respond: Respond, on_end: OnEnd | None = None
) -> list[Rollout]:
    """Conversations through any engine. A round is the next reply of each."""
    talks = Talks(requests, sampling.max_new_tokens, respond, on_end)
    running = list(talks.all)
    while running:
        longest = max(one.left for one in running)
        replies = generate([one.next_request for one in running], replace(sampling, max_new_tokens=longest))
        for one, reply in zip(running, replies, strict=True):
            part = slice(one.left)
            reason: FinishReason = "length" if len(reply.completion_ids) > one.left else reply.finish_reason
            talks.reply(one.number, reply.completion_ids[part], reply.log_probs[part], reply.entropies[part], reason)
        running = [one for one in running if one.number in talks.answers and talks.hear(one.number)]
    return talks.rollouts


def renumbered(tell: Callable[[int, Rollout], Told], share: Sequence[int]) -> Callable[[int, Rollout], Told]:
    """For the requests of a share: tells their numbers among all."""
    return lambda number, rollout: tell(share[number], rollout)
