"""The policy update of one step: gradients of minibatches through the fused head, and the update's metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from profiles.schema import Profile
from workers.cycle.ahead import Ahead
from workers.cycle.mismatch import OF_FRESH
from workers.grpo.entropy import EntropyMask
from workers.grpo.metrics import Metrics
from workers.grpo.old_source import OldSource
from workers.grpo.prepare import Minibatch, Prepared, prepare
from workers.grpo.rows import Row
from workers.grpo.scoring import Sizes, packed, units_of
from workers.grpo.sequence_loss import sequence_policy_loss
from workers.loss.fused_loss import Diagnostics, PolicyLoss, Terms, Tokens, fused_policy_loss, measured
from workers.memory.phases import Measured, applied_once, unmeasured
from workers.models.host_copies import sent
from workers.models.log_probs import head_rows_for, read
from workers.models.optimizer import AnyOptimizer, moments_to_come
from workers.models.packing import Pack
from workers.models.parallel import Single
from workers.models.plain import row_tokens_for
from workers.ranks.group import Group

"""Metrics that need tokens of the present weights."""


@dataclass
class Sums:
    """Sums over the tokens of a step; means are taken once, at the end."""

    loss: float = 0.0
    found: list[Diagnostics] = field(default_factory=list)
    compared: list[Diagnostics] = field(default_factory=list)
    """The same before any weight has changed: only these compare the engine with the trainer."""
    grad_norms: list[float] = field(default_factory=list)

    def metrics(self, *, is_weighed: bool = False) -> Metrics:
        """is_weighed: whether the update computed importance weights."""

        def total(name: str, of: Sequence[Diagnostics] = self.found) -> float:
            return math.fsum(getattr(one, name) for one in of)

        compared = total("tokens", self.compared)
        tokens, kept = max(total("tokens"), 1.0), max(total("selected"), 1.0)
        weights = {"tis_weight": total("tis_weight") / tokens, "tis_capped": total("tis_cut") / tokens}
        return (weights if is_weighed else {}) | {
            "loss": self.loss,
            "grad_norm": max(self.grad_norms, default=0.0),
            "entropy": total("entropy") / tokens,
            "entropy_kept": total("entropy_selected") / kept,
            "clip_low": total("clipped_low") / kept,
            "clip_high": total("clipped_high") / kept,
            "clip_fraction": (total("clipped_low") + total("clipped_high")) / kept,
            "kl": total("kl") / tokens,
            "ratio_mean": total("ratio") / tokens,
            "ratio_max": max((one.ratio_max for one in self.found), default=0.0),
            "mismatch_mean": total("mismatch", self.compared) / max(compared, 1.0),
            "mismatch_max": max((one.mismatch_max for one in self.compared), default=0.0),
            "mismatch_kl": total("mismatch_kl", self.compared) / max(compared, 1.0),
            "mismatch_tokens": compared,
        }


class GroupUpdate:
    """Applies one step's rows to the model.

    Each minibatch is applied whole or not at all. After running out of memory, a second call with the same step
    continues at the minibatch that failed, with everything as prepared.
    """

    def __init__(
        self,
        model: Any,
        optimizer: AnyOptimizer,
        profile: Profile,
        mask: EntropyMask,
        parallel: Single | None = None,
        *,
        phase: Measured = unmeasured,
        sizes: Sizes | None = None,
    ) -> None:
        """parallel: if several GPUs share the update, each calls `apply` with the same rows. phase: measures a part of
        the update. sizes: for memory; None: as in the profile."""
        self.parallel, self._phase = parallel or Single(), phase
        self._model, self._optimizer, self._profile, self._mask = model, optimizer, profile, mask
        knobs = profile.optimizer
        row_tokens = row_tokens_for(model, knobs.row_tokens)
        self.sizes = sizes or Sizes(knobs.micro_batch_size, row_tokens, head_rows_for(profile, model))
        self._terms = Terms(
            clip_ratio_low=knobs.clip_ratio_low,
            clip_ratio_high=knobs.clip_ratio_high,
            kl_coef=profile.grpo.kl_coef,
            entropy_coef=knobs.entropy_coef,
            ratio_cap=profile.grpo.variants.ratio_cap,
            is_detached=profile.grpo.old_source == "detach",
            is_kl_kept=profile.grpo.variants.kl_tokens == "selected",
        )
        self.source = OldSource(profile)
        self._step = 0
        self._done = 0
        self._prepared: Prepared | None = None
        self._sums = Sums()
        self.beside = Ahead()
        """What is drawn while the gradient of a step's first update is computed."""

    def moments_to_come(self) -> int:
        """Bytes that this rank's first update adds on the device; 0 after it."""
        return moments_to_come(self._optimizer, self._model, self._profile.optimizer, self.parallel.state_ranks)

    def apply(
        self, step: int, rate: float, rows: Sequence[Row], advantages: Sequence[float], left_out: Sequence[Row] = ()
    ) -> tuple[bool, Metrics]:
        """Whether all numbers were finite, and the metrics. A minibatch with a non-finite number is dropped.

        rate: learning rate of all updates of the step. rows: those that get a gradient, at least one; left_out: those
        of the step that may count in the denominator.
        """
        if self._step != step:
            self._step, self._done, self._prepared, self._sums = step, 0, None, Sums()
        if self._prepared is None:
            with self._phase("score"):
                self._prepared = prepare(
                    self._model,
                    self._profile,
                    rows,
                    advantages,
                    left_out,
                    self._mask,
                    self.sizes,
                    self.parallel,
                    self.source.now,
                )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        queue = self._prepared.minibatches * self._profile.grpo.inner_epochs
        self.beside.begin()
        is_finite = True
        while self._done < len(queue):
            was_unmoved = not self._sums.grad_norms
            with self._phase("train"):
                is_finite &= self._one(self._prepared, queue[self._done])
            if was_unmoved and self._sums.grad_norms:
                self.source.look(*(self._sums.metrics()[f"mismatch_{name}"] for name in ("mean", "max")))
            self._done += 1
        metrics = self._sums.metrics(is_weighed=self._prepared.tis_cap > 0) | self._prepared.metrics
        self._prepared = None
        return is_finite, metrics if has_fresh(rows) else {k: v for k, v in metrics.items() if k not in OF_FRESH}

    def _one(self, prepared: Prepared, minibatch: Minibatch) -> bool:
        """One optimiser step. Its sums are added only once it is applied: a repeated step counts once, and one with
        non-finite numbers not at all."""
        if not minibatch.is_finite:  # every rank knows, because ranks exchange their scores
            return False
        self.forget_gradients()
        with self.parallel.passes():
            mine, tokens = self.accumulate(prepared, minibatch)
        loss, found = merged(mine, tokens, self.parallel.group)
        self.parallel.complete(self._optimizer)
        norm = self.parallel.clip(self._optimizer, self._model, self._profile.optimizer.max_grad_norm)
        is_unmoved = not self._sums.grad_norms  # after an update, differences say nothing about the engine
        is_finite = bool(torch.isfinite(norm)) and math.isfinite(loss)
        if is_finite:
            self.beside.before_change()
            with applied_once("the optimiser's step"):
                self._optimizer.step()
            self.parallel.changed()
            self._sums.grad_norms.append(float(norm))
            self._sums.loss += loss
            self._sums.found += found
            self._sums.compared += found if is_unmoved else []
        self.forget_gradients()
        return is_finite

    def resize(self, rollouts: int, head_rows: int) -> None:
        """Use these sizes from now on. Rows shrink too, because a prompt and its completions are read as one row."""
        knobs = self._profile.optimizer
        row_tokens = max(1, knobs.row_tokens * rollouts // knobs.micro_batch_size)
        self.sizes = Sizes(rollouts, row_tokens_for(self._model, row_tokens), head_rows)
        self.forget_gradients()

    def forget_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self.parallel.forget()

    def accumulate(
        self, prepared: Prepared, minibatch: Minibatch, *, is_partitioned: bool = True
    ) -> tuple[float, list[Diagnostics]]:
        """Add the gradient of the minibatch's loss to the parameters; returns the loss, and sums over its tokens.

        All of this covers only this rank's part, unless is_partitioned is False: then every rank makes every pass.
        """
        units = units_of([prepared.rows[i] for i in minibatch.rows], self.sizes)
        parallel = self.parallel if is_partitioned else Single()
        losses, told = [], []  # on the device: the next pass is asked for while this one is computed
        for batch, counts in parallel.partition(units, self.sizes.rollouts, self.sizes.row_tokens):
            pack, members = packed(batch)
            forward = partial(self._micro_batch, prepared, minibatch, pack.to(self._model.device), members)
            loss, tokens = self.parallel.run(forward)
            (loss.loss if counts else 0.0 * loss.loss).backward()  # type: ignore[no-untyped-call]
            self.parallel.passed()
            if counts:
                losses.append(loss.loss.detach().clone())  # a graph may write the next one to the same place
                told.append(measured(loss, tokens))
        if not told:
            return 0.0, []
        found = [Diagnostics(*one) for one in torch.stack(told).tolist()]
        return sum(torch.stack(losses).tolist(), 0.0), found

    def _micro_batch(
        self, prepared: Prepared, minibatch: Minibatch, pack: Pack, members: Sequence[int]
    ) -> tuple[PolicyLoss, Tokens]:
        """members: indices into the minibatch, in the order of their tokens in `pack`."""
        device = self._model.device
        places = [minibatch.rows[member] for member in members]
        owned = [prepared.rows[place].num_own for place in places]
        lengths = sent(torch.tensor(owned), device)

        def joined(values: Sequence[Tensor] | None, at: Sequence[int]) -> Tensor | None:
            return None if values is None else sent(torch.cat([values[i] for i in at]), device)

        def spread(values: list[float]) -> Tensor:
            return sent(torch.tensor(values), device).repeat_interleave(lengths, output_size=sum(owned))

        old = joined(prepared.old, places)
        assert old is not None
        tokens = Tokens(
            targets=pack.targets,
            old_log_probs=old,
            advantages=spread([prepared.advantages[place] for place in places]),
            tis_weights=joined(prepared.tis, places),
            keep=joined(minibatch.keep, members),
            ref_log_probs=joined(prepared.ref, places),
            kl_weights=joined(minibatch.kl_weights, members),
        )
        terms, of_sequences = self._terms, self._profile.grpo.variants.ratio_level == "sequence"
        if prepared.tis_cap:
            terms = replace(
                terms, is_detached=True, tis_cap=prepared.tis_cap, tis_mode=self._profile.grpo.variants.tis_mode
            )
        make = partial(sequence_policy_loss, lengths=lengths) if of_sequences else fused_policy_loss
        states, head, bias, scale, cap = read(self._model, pack)
        loss = make(
            states,
            head,
            tokens,
            terms,
            divisor=spread([1 / weight if (weight := minibatch.weights[member]) else math.inf for member in members]),
            temperature=self._profile.sampling.temperature,
            chunk=self.sizes.head_rows,
            bias=bias,
            scale=scale,
            cap=cap,
        )
        return loss, tokens


def has_fresh(rows: Sequence[Row]) -> bool:
    """Whether the present weights drew any of the tokens. (pure)"""
    return any(row.num_fresh for row in rows)


def merged(loss: float, found: Sequence[Diagnostics], group: Group) -> tuple[float, list[Diagnostics]]:
    """Loss and sums over all ranks, from those of this rank's passes."""
    if group.size == 1:
        return loss, list(found)
    largest = ("mismatch_max", "ratio_max")
    added = [name for name in Diagnostics._fields if name not in largest]
    total, *sums = group.total([loss, *(math.fsum(getattr(one, name) for one in found) for name in added)])
    most = group.largest([max((getattr(one, name) for one in found), default=0.0) for name in largest])
    return total, [Diagnostics(**dict(zip((*added, *largest), (*sums, *most), strict=True)))]
