"""The policy update of one step: splits rows into minibatches, applies their gradients and reports metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from profiles.footprint import MAX_LOGITS
from profiles.schema import Optimizer as Knobs
from workers.azr.advantages import Advantages, cell_advantages, group_advantages
from workers.azr.importance import Corrected, correct
from workers.azr.rows import Row
from workers.cycle.ahead import Ahead
from workers.loss.policy import clipped_token_loss, k3
from workers.memory.phases import Measured, applied_once, unmeasured
from workers.models import packing
from workers.models.host_copies import sent
from workers.models.log_probs import score
from workers.models.optimizer import AnyOptimizer, learning_rate_at, moments_to_come
from workers.models.parallel import Single
from workers.models.plain import row_tokens_for
from workers.ranks.group import Group
from workers.rng import stream
from workers.tasks.items import ROLES
from workers.tasks.kinds import registry


def advantages_of(rows: Sequence[Row], kind: str, norm: Literal["sample", "token"] = "sample") -> Advantages:
    """TRR++ over (task, role) cells; kind "group" uses the mean of the prompt's group as the baseline. (pure)

    norm: whether cell statistics are per sample or per token. Kind "group" ignores it and uses samples.
    """
    cells = [(row.task, row.role) for row in rows]
    rewards = [row.reward or 0.0 for row in rows]
    if kind == "group":
        # A proposer's prompt repeats only by chance, so its baseline is the mean of its cell, not of its prompt.
        groups = [row.group if row.role == "solve" else -1 for row in rows]
        return group_advantages(cells, groups, rewards)
    return cell_advantages(cells, rewards, [len(row.completion_ids) for row in rows], norm)


def minibatches(rows: Sequence[Row], count: int, mix: Random | None = None) -> list[list[int]]:
    """`count` lists of row numbers; sizes differ by at most 1. Raises ValueError if count > len(rows). (pure)

    Rows are ordered by kind of task as in the registry, proposals first within a kind. mix: shuffles them instead.
    """
    if count > len(rows):
        raise ValueError(f"{len(rows)} rollouts cannot be split into {count} updates (optimizer.updates_per_step)")
    tasks = registry.names()
    order = sorted(range(len(rows)), key=lambda i: (tasks.index(rows[i].task), ROLES.index(rows[i].role)))
    if mix is not None:
        mix.shuffle(order)
    bounds = [len(order) * part // max(count, 1) for part in range(count + 1)]
    return [order[begin:end] for begin, end in pairwise(bounds)]


TokenWeights = tuple[float, ...]


class Pass(NamedTuple):
    """Sums over the tokens of a forward and backward pass, and a maximum. mismatch: |engine log_prob - trainer
    log_prob|; kl: their k3 estimate."""

    loss: float
    entropy: float
    clipped: float
    mismatch: float
    kl: float
    mismatch_max: float
    tokens: int


@dataclass
class Sums:
    """Sums over the tokens of a step. `metrics` computes the means once, at the end."""

    tokens: float = 0.0
    loss: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    compared: float = 0.0
    """Tokens scored before the step's first weight change. The next three fields cover only these tokens."""
    mismatch: float = 0.0
    mismatch_max: float = 0.0
    kl: float = 0.0
    grad_norms: list[float] = field(default_factory=list)

    def add(self, one: Pass, *, is_unmoved: bool) -> None:
        """is_unmoved: no weight has changed in this step, so differences are those of the engine."""
        self.tokens += one.tokens
        self.entropy += one.entropy
        self.clipped += one.clipped
        if is_unmoved:
            self.compared += one.tokens
            self.mismatch += one.mismatch
            self.mismatch_max = max(self.mismatch_max, one.mismatch_max)
            self.kl += one.kl

    def merge(self, other: Sums, group: Group) -> None:
        """Add `other`, summed over all ranks of `group`; each rank passes the sums of its own part."""
        added = ("tokens", "loss", "entropy", "clipped", "compared", "mismatch", "kl")
        for name, value in zip(added, group.total([getattr(other, name) for name in added]), strict=True):
            setattr(self, name, getattr(self, name) + value)
        self.mismatch_max = max(self.mismatch_max, *group.largest([other.mismatch_max]))

    def metrics(self) -> dict[str, float]:
        tokens, compared = max(self.tokens, 1), max(self.compared, 1)
        return {
            "loss": self.loss,
            "entropy": self.entropy / tokens,
            "clip_fraction": self.clipped / tokens,
            "mismatch_mean": self.mismatch / compared,
            "mismatch_max": self.mismatch_max,
            "mismatch_kl": self.kl / compared,
            "mismatch_tokens": self.compared,
            "grad_norm": max(self.grad_norms, default=0.0),
        }


class PolicyUpdate:
    """Applies one step's rows to the model.

    A minibatch is applied as a whole or not at all. After an out-of-memory error, calling `apply` again with the same
    rows resumes at the minibatch that failed.
    """

    def __init__(
        self,
        model: Any,
        optimizer: AnyOptimizer,
        knobs: Knobs,
        temperature: float,
        parallel: Single | None = None,
        *,
        phase: Measured = unmeasured,
        head_rows: int = 0,
        tis_cap: float = 0.0,
        shuffle_seed: int | None = None,
        rollout_tokens: float | None = None,
    ) -> None:
        """parallel: shares the update among GPUs; every rank calls `apply` with the same rows. phase: measures a part
        of the update. head_rows: positions per logits chunk of the output head; 0 means as many as MAX_LOGITS allows.
        tis_cap: cap on the importance weight of a token; 0 means that the engine's log_probs equal the trainer's and
        need no correction. shuffle_seed: of the random mix of tasks in minibatches; None orders them by task.
        rollout_tokens: see `divisor_of`.
        """
        self._model, self._optimizer, self._knobs, self._temperature = model, optimizer, knobs, temperature
        self.parallel, self._phase = parallel or Single(), phase
        self._tis_cap, self._shuffle_seed, self._rollout_tokens = tis_cap, shuffle_seed, rollout_tokens
        self.micro_batch_size = knobs.micro_batch_size
        self.head_rows = head_rows or max(1, MAX_LOGITS // int(model.config.vocab_size))
        self._applied: tuple[int, int] = (0, 0)  # step, minibatches that are done
        self._sums = Sums()
        self._corrected: Corrected | None = None
        self.beside = Ahead()
        """What is drawn while the gradient of a step's first update is computed."""

    def moments_to_come(self) -> int:
        """Bytes that this rank's first update adds on the device; 0 after it."""
        return moments_to_come(self._optimizer, self._model, self._knobs, self.parallel.state_ranks)

    def apply(self, step: int, rows: Sequence[Row], advantages: Sequence[float]) -> tuple[bool, dict[str, float]]:
        """Returns whether all numbers were finite, and the step's metrics. Skips a minibatch with a non-finite number.

        If there are fewer rows than updates, because most could not be judged, makes one update per row.
        """
        if self._applied[0] != step:
            self._applied, self._sums, self._corrected = (step, 0), Sums(), None
        rows, weights, mismatch = self._correct(rows)
        rate = learning_rate_at(step, self._knobs)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        # The order depends only on seed and step, so a retry after an out-of-memory error uses the same one.
        mix = stream(self._shuffle_seed, step, "minibatch order") if self._shuffle_seed is not None else None
        batches = minibatches(rows, min(self._knobs.updates_per_step, len(rows)), mix)
        self.beside.begin()
        is_finite = True
        for number in range(self._applied[1], len(batches)):
            chosen = batches[number]
            is_finite &= self._one(
                [rows[i] for i in chosen],
                [advantages[i] for i in chosen],
                [weights[i] for i in chosen] if weights else (),
            )
            self._applied = (step, number + 1)
        return is_finite, self._sums.metrics() | {"learning_rate": rate} | mismatch

    def _correct(self, rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[TokenWeights], dict[str, float]]:
        """Rows with the old log_probs of the ratio, the importance weights of their tokens, and mismatch metrics.

        Computed once per step, before its first update. A retry after an out-of-memory error reuses the result.
        """
        if not self._tis_cap:
            return rows, (), {}
        if self._corrected is None:
            with self._phase("score"):
                self._corrected = correct(
                    self._model,
                    rows,
                    self._temperature,
                    self._tis_cap,
                    micro_batch_size=self.micro_batch_size,
                    row_tokens=self._row_tokens,
                    max_logits=self.head_rows * self._model.config.vocab_size,
                    parallel=self.parallel,
                )
        return self._corrected.rows, self._corrected.weights, self._corrected.metrics

    @property
    def _row_tokens(self) -> int:
        """Tokens per packed row. Shrinks with the micro-batch, so that smaller micro-batches do use less memory."""
        wanted = max(1, self._knobs.row_tokens * self.micro_batch_size // self._knobs.micro_batch_size)
        return row_tokens_for(self._model, wanted)

    def _one(self, rows: Sequence[Row], advantages: Sequence[float], weights: Sequence[TokenWeights]) -> bool:
        sums = Sums(**{**vars(self._sums), "grad_norms": list(self._sums.grad_norms)})
        self.forget_gradients()
        found = Sums()
        with self.parallel.passes():
            found.loss = self.accumulate(rows, advantages, found, weights)
        sums.merge(found, self.parallel.group)
        self.parallel.complete(self._optimizer)
        norm = self.parallel.clip(self._optimizer, self._model, self._knobs.max_grad_norm)
        is_finite = bool(torch.isfinite(norm)) and math.isfinite(sums.loss)
        if is_finite:
            self.beside.before_change()
            with applied_once("the optimiser's step"):
                self._optimizer.step()
            self.parallel.changed()
            sums.grad_norms.append(float(norm))
        else:
            sums.loss = self._sums.loss  # a non-finite sum would skip every later minibatch of the step
        self._sums = sums
        self.forget_gradients()
        return is_finite

    def resize(self, rollouts: int, head_rows: int) -> None:
        """Use these sizes from now on. rollouts: per micro-batch. head_rows: positions per logits chunk."""
        self.micro_batch_size, self.head_rows = rollouts, head_rows

    def forget_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self.parallel.forget()

    def accumulate(
        self, rows: Sequence[Row], advantages: Sequence[float], sums: Sums, weights: Sequence[TokenWeights] = ()
    ) -> float:
        """Accumulate the gradient of the minibatch's loss; returns the loss. Both cover this rank's part only.

        weights: truncated importance weights of each row's tokens; empty means all 1. Divides by the divisor of the
        whole minibatch: averaging the means of micro-batches would overweight short ones.
        """
        divisor = divisor_of(rows, self._rollout_tokens)
        row_tokens = self._row_tokens
        units = packing.units_of([row.prompt_ids for row in rows], [row.completion_ids for row in rows], row_tokens)
        told: list[Tensor] = []  # on the device: the next pass is asked for while this one is computed
        tokens: list[int] = []
        for batch, counts in self.parallel.partition(units, self.micro_batch_size, row_tokens):
            found = self._micro_batch(batch, rows, advantages, weights, divisor, counts=counts)
            if counts:
                told.append(found)
                tokens.append(sum(len(rows[i].completion_ids) for row in batch for unit in row for i in unit.members))
        total = 0.0
        for values, count in zip(torch.stack(told).tolist() if told else [], tokens, strict=True):
            one = Pass._make((*values, count))
            sums.add(one, is_unmoved=not self._sums.grad_norms)
            total += one.loss
        return total

    def _micro_batch(
        self,
        batch: list[list[packing.Unit]],
        rows: Sequence[Row],
        advantages: Sequence[float],
        weights: Sequence[TokenWeights],
        divisor: float,
        *,
        counts: bool,
    ) -> Tensor:
        """The fields of `Pass` but `tokens`, on the device. counts: False for a padding pass that only keeps this rank
        in step with the others; its gradient is zero."""
        knobs = self._knobs
        device = self._model.device
        members = [member for row in batch for unit in row for member in unit.members]
        old = sent(torch.tensor([value for i in members for value in rows[i].log_probs]), device)  # [N]
        pack = packing.pack(batch).to(device)
        pushes = sent(torch.tensor(advantages, dtype=torch.float32), device)[pack.owners]  # [N]
        if weights:  # a token's loss is linear in its advantage and no weight is negative
            pushes = pushes * sent(torch.tensor([value for i in members for value in weights[i]]), device)
        limit = self.head_rows * self._model.config.vocab_size
        tokens = sum(len(row.completion_ids) for row in rows)

        def forward() -> tuple[Tensor, Tensor, Tensor, Tensor]:
            scored = score(
                self._model, pack, self._temperature, entropy_needs_grad=knobs.entropy_coef != 0.0, max_logits=limit
            )
            losses, is_clipped = clipped_token_loss(
                scored.log_probs,
                old,
                pushes,
                clip_ratio_low=knobs.clip_ratio_low,
                clip_ratio_high=knobs.clip_ratio_high,
            )
            loss = losses.sum() / divisor
            if knobs.entropy_coef != 0.0:
                loss = loss - knobs.entropy_coef * scored.entropy.sum() / tokens
            return loss, scored.log_probs.detach(), scored.entropy.detach(), is_clipped

        loss, now, entropy, is_clipped = self.parallel.run(forward)
        (loss if counts else 0.0 * loss).backward()  # type: ignore[no-untyped-call]
        self.parallel.passed()
        delta = (now - old).abs()
        sums = (one.sum() for one in (entropy, is_clipped.float(), delta, k3(old, now)))
        return torch.stack([loss.detach(), *sums, delta.max()])


def divisor_of(rows: Sequence[Row], rollout_tokens: float | None = None) -> float:
    """The divisor of the summed token losses: the number of tokens, or `rollout_tokens` per rollout. (pure)"""
    if rollout_tokens is not None:
        return len(rows) * rollout_tokens
    return float(sum(len(row.completion_ids) for row in rows))
