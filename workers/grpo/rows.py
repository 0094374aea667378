"""What a step of GRPO writes to disk before its update: rollouts with rewards, groups to train on, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import msgspec
from msgspec import Struct

from workers.cycle.cursor import Place as CursorPlace
from workers.grpo.curriculum import Place as StagePlace
from workers.rollout.engine import FinishReason, Rollout


class Row(Struct, frozen=True, kw_only=True):
    """One rollout. `group`: one draw of a problem in this step; a problem drawn twice has two groups."""

    group: int
    problem: int
    """The problem's number among the usable lines of its file."""
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """Of each token that the model drew, as reported by the rollout engine. Empty, like `entropies`, unless all are
    finite."""
    entropies: tuple[float, ...] = ()
    """Of the distributions that the tokens were drawn from, nats; empty if the engine did not report them."""
    finish_reason: str
    reward: float
    is_correct: bool = False
    is_answered: bool = True
    """Whether an answer was found in it."""
    parts: dict[str, float] = {}
    """Parts of `reward` by name, without their weights."""
    failure: str = ""
    """Why a part of the reward could not be computed; empty: all could. Such a row is not trained on."""
    is_finite: bool = True
    """False: the engine's numbers were NaN or infinite, which JSON cannot express. The row is not trained on."""

    is_own: tuple[bool, ...] = ()
    """For each completion token, whether the model drew it. An environment said the others: they are read, but nothing
    is learnt from them. Empty: the model drew all."""
    turns: int = 1
    """Replies of the model."""
    segments: tuple[int, ...] = ()
    """Tokens that it drew in each step from its group's first to this one; empty: all in this one."""

    @property
    def num_fresh(self) -> int:
        """Tokens that the policy of this step drew."""
        return self.segments[-1] if self.segments else self.num_own

    @property
    def num_own(self) -> int:
        """Tokens that the model drew: R_i."""
        return sum(self.is_own) if self.is_own else len(self.completion_ids)

    @property
    def is_usable(self) -> bool:
        """Whether it may be compared with others and trained on."""
        return self.is_finite and not self.failure


class Part(Struct, frozen=True):
    """A rollout that may take several steps, as far as it has come. Fields as in `Row`."""

    completion_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    finish_reason: FinishReason = "length"
    segments: tuple[int, ...] = ()
    is_finite: bool = True

    def goes_on(self, longest: int) -> bool:
        """Whether it has neither ended nor as many tokens as it may have."""
        return self.finish_reason == "length" and self.is_finite and len(self.completion_ids) < longest

    def followed_by(self, rollout: Rollout) -> Part:
        """With its next segment. Numbers that are not finite end it: it is not trained on. Entropies are kept while
        there is one for each token: another engine may report none."""
        have_all = all(len(one.entropies) == len(one.completion_ids) for one in (self, rollout))
        return Part(
            self.completion_ids + rollout.completion_ids,
            self.log_probs + rollout.known_log_probs,
            self.entropies + rollout.entropies if have_all and rollout.is_finite else (),
            rollout.finish_reason,
            (*self.segments, len(rollout.completion_ids)),
            rollout.is_finite,
        )

    def rollout(self, prompt_ids: tuple[int, ...]) -> Rollout:
        """As if it had been drawn at once."""
        log_probs = self.log_probs if self.is_finite else (nan,) * len(self.completion_ids)
        return Rollout(prompt_ids, self.completion_ids, log_probs, self.finish_reason, self.entropies)


class WaitingGroup(Struct, frozen=True):
    """A group of which a rollout has not ended."""

    problem: int
    prompt_ids: tuple[int, ...]
    parts: tuple[Part, ...]

    def goes_on(self, longest: int) -> bool:
        return any(part.goes_on(longest) for part in self.parts)


class Collected(Struct, frozen=True, kw_only=True):
    """A whole step before its update. Contains every rollout, including groups that teach nothing."""

    rows: list[Row]
    train: tuple[int, ...]
    """Groups to train on, in order; empty: no update."""
    rounds: int = 0
    """Extra draws in place of uniform groups."""
    metrics: dict[str, float] = {}
    cursor: CursorPlace | None = None
    """The place after these problems, of one kind or the other."""
    stage: StagePlace | None = None
    waiting: tuple[WaitingGroup, ...] = ()
    """Groups that go on in the next step."""

    def records(self) -> list[dict[str, Any]]:
        """JSON records, one per line of the rollout file."""
        rest = msgspec.to_builtins(self)
        rows = rest.pop("rows")
        return [*rows, rest]

    @staticmethod
    def of(records: Sequence[dict[str, Any]]) -> Collected:
        *rows, rest = records
        return msgspec.convert({**rest, "rows": rows}, Collected)
