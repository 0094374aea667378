"""This project as a contender: a worker's rollout engine, rows and update."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.contenders.lengths import rows_end
from benchmarks.contenders.report import Budget, Meter
from benchmarks.contenders.workload import LORA_TARGETS, Workload, rewards

BASE = "grpo-1.5b-8gb"
SEEDS = 1000
"""Seeds of the rows of one step."""


def profile_of(work: Workload, model: Path, engine: str, overrides: list[str]) -> Any:
    """The profile to measure; `overrides` (KEY=VALUE) are applied last."""
    from profiles.load import load_profile

    targets = ", ".join(f'"{name}"' for name in LORA_TARGETS)
    settings = [
        f"model.path={model}",
        "model.random_init=off",
        "model.dtype=bfloat16",
        "model.quantization=nf4",
        "model.gradient_checkpointing=true",
        f"adapter.rank={work.lora_rank}",
        f"adapter.alpha={work.lora_alpha}",
        f"adapter.targets=[{targets}]",
        f"sampling.engine={engine}",
        "sampling.fallback=[]",
        "sampling.temperature=1.0",
        f"sampling.max_prompt_tokens={work.prompt}",
        f"sampling.max_completion_tokens={work.completion}",
        f"sampling.max_rows={work.group_size}",
        f"optimizer.learning_rate={work.learning_rate}",
        "optimizer.warmup_steps=0",
        "optimizer.tis_cap=-1",
        "optimizer.kind=adamw",
        "optimizer.offload=false",
        "optimizer.updates_per_step=1",
        "optimizer.entropy_coef=0.0",
        "optimizer.weight_decay=0.0",
        "run.device=auto",
        f"optimizer.clip_ratio_low={work.clip}",
        f"optimizer.clip_ratio_high={work.clip}",
        f"optimizer.micro_batch_size={min(8, work.group_size)}",
        f"optimizer.row_tokens={work.prompt + work.completion}",
        "grpo.groups_per_step=1",
        f"grpo.group_size={work.group_size}",
        "grpo.kl_coef=0.0",
        "grpo.entropy_mask=off",
        "grpo.variants.mask_norm=all",
        "grpo.norm=token",
        "grpo.truncated=keep",
        "grpo.inner_epochs=1",
        "grpo.sent.enabled=false",
    ]
    return load_profile(BASE, settings + overrides).profile


class Session:
    """A policy, its engine and its update, as in a train worker."""

    def __init__(
        self,
        work: Workload,
        model: Path,
        engine: str,
        overrides: list[str],
        phase: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        from workers.environment import set_environment
        from workers.grpo.entropy import EntropyMask
        from workers.grpo.update import GroupUpdate
        from workers.models import optimizer
        from workers.models.policy import open_policy
        from workers.models.torch_setup import device_of, set_up_torch
        from workers.rollout.engine import Sampling
        from workers.rollout.select import engine_of

        set_environment()
        self.work = work
        self.profile = profile = profile_of(work, model, engine, overrides)
        device = device_of(profile)
        set_up_torch(profile, isolate=False)
        policy = open_policy(profile, None, device)
        self.model = policy.model
        self._optimiser = optimiser = optimizer.build(policy.model, profile.optimizer)
        self.engine = engine_of(policy.model, profile, policy.tokenizer)
        self.update = GroupUpdate(policy.model, optimiser, profile, EntropyMask(profile.grpo), phase=phase)
        self._sampling = Sampling(max_new_tokens=work.completion, ignore_stop=not work.real_lengths)

    @property
    def settings(self) -> dict[str, Any]:
        """The resolved settings, for the report."""
        from workers.grpo.old_source import old_source_of

        profile = self.profile
        return {
            "engine": type(self.engine.engine).__name__,
            "sizes": self.update.sizes._asdict(),
            "deterministic": profile.run.deterministic,
            "adapter": profile.adapter.implementation,
            "old_source": old_source_of(profile),
            "optimizer": profile.optimizer.kind,
        }

    def limit(self, completion: int) -> None:
        """Limit completions to this many tokens from now on."""
        self.work = replace(self.work, completion=completion)
        self._sampling = replace(self._sampling, max_new_tokens=completion)

    def rollout(self, step: int) -> list[Any]:
        """The group's rollouts with the current weights."""
        from workers.rollout.engine import Request

        prompt = self.work.prompt_ids(step)
        requests = [Request(prompt, step * SEEDS + row) for row in range(self.work.group_size)]
        wanted = self.work.lengths(step)
        with rows_end(wanted, SEEDS) if self.work.real_lengths else nullcontext():
            rollouts = self.engine.generate(requests, self._sampling)
        lengths = tuple(len(one.completion_ids) for one in rollouts)
        if lengths != wanted:
            raise ValueError(f"completions have {lengths} tokens, not {wanted}")
        return rollouts

    def train(self, step: int, rollouts: list[Any]) -> dict[str, float]:
        """Rewards, advantages and one optimiser update. Returns its metrics."""
        from workers.models.optimizer import learning_rate_at

        self.engine.rest()
        rate = learning_rate_at(step, self.profile.optimizer)
        rows, advantages = rows_of(rollouts), advantages_of(rollouts, self.profile)
        is_finite, metrics = self.update.apply(step, rate, rows, advantages)
        if not is_finite:
            raise ValueError(f"numbers of the update are not finite: {metrics}")
        return metrics

    def log_probs(self, rollouts: list[Any]) -> list[Any]:
        """The trainer's log-probs of each rollout's tokens."""
        from workers.grpo.scoring import score_rows

        return score_rows(self.model, rows_of(rollouts), 1.0, self.update.sizes).log_probs

    def gradients(self, rollouts: list[Any]) -> dict[str, Any]:
        """Gradients of the adapter's matrices before clipping, by peft's names."""
        from workers.grpo.entropy import EntropyMask
        from workers.grpo.prepare import prepare
        from workers.grpo.update import GroupUpdate
        from workers.models.adapters import adapter_of

        # The ratio is 1 and there are no importance weights, so the gradient has a simple form.
        profile = replace_in(self.profile, "grpo", old_source="detach")
        mask = EntropyMask(profile.grpo)
        update = GroupUpdate(self.model, self._optimiser, profile, mask)
        rows, advantages = rows_of(rollouts), advantages_of(rollouts, profile)
        prepared = prepare(self.model, profile, rows, advantages, (), mask, update.sizes)
        if prepared.tis is not None or prepared.tis_cap:
            raise ValueError("tokens are weighed by importance sampling")
        update.accumulate(prepared, prepared.minibatches[0])
        matrices: dict[str, Any] = dict(adapter_of(self.model))
        found = {name: one.grad.detach().cpu().clone() for name, one in matrices.items()}
        update.forget_gradients()
        return found

    def close(self) -> None:
        self.engine.close()


def rows_of(rollouts: list[Any]) -> list[Any]:
    """One group, with the workload's rewards."""
    from workers.grpo.rows import Row

    return [
        Row(
            group=0,
            problem=0,
            finish_reason=one.finish_reason,
            reward=reward,
            prompt_ids=one.prompt_ids,
            completion_ids=one.completion_ids,
            log_probs=one.log_probs,
        )
        for one, reward in zip(rollouts, rewards(len(rollouts)), strict=True)
    ]


def advantages_of(rollouts: list[Any], profile: Any) -> list[float]:
    """Advantages of the rows that the trainer selects, which must be all of them."""
    from workers.grpo.rows import Collected
    from workers.grpo.trainer import chosen

    rows, advantages, _ = chosen(Collected(rows=rows_of(rollouts), train=(0,)), profile)
    if len(rows) != len(rollouts):
        raise ValueError(f"{len(rows)} of {len(rollouts)} rows would be trained on")
    return advantages


def replace_in(profile: Any, section: str, **knobs: Any) -> Any:
    from msgspec.structs import replace as with_

    return with_(profile, **{section: with_(getattr(profile, section), **knobs)})


def run(work: Workload, model: Path, engine: str, overrides: list[str], meter: Meter, budget: Budget) -> None:
    report = meter.report
    # `score`: everything before the first gradient; `train`: the rest
    session = Session(work, model, engine, overrides, meter.phase)
    report.settings = session.settings | {"overrides": overrides}
    done = 0
    while not budget.is_spent(report):
        done += 1
        began = meter.now()
        with meter.phase("rollout"):
            rollouts = session.rollout(done)
        report.metrics = session.train(done, rollouts)
        meter.end_step(meter.now() - began, timed=budget.is_timed(done - 1), lengths=work.lengths(done))
    session.close()
