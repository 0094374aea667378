"""This project as a contender: the rollout engine, the rows and the update that a worker's step is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.contenders.report import Budget, Meter
from benchmarks.contenders.workload import LORA_TARGETS, Workload, rewards

BASE = "azr-0.5b"


def profile_of(work: Workload, model: Path, engine: str, overrides: list[str]) -> Any:
    """The profile of the run that is measured; `overrides` (KEY=VALUE) come last."""
    from profiles.load import load_profile

    targets = ", ".join(f'"{name}"' for name in LORA_TARGETS)
    settings = [
        f"model.path={model}", "model.random_init=off", "model.dtype=bfloat16", "model.quantization=nf4",
        "model.gradient_checkpointing=true", f"adapter.rank={work.lora_rank}", f"adapter.alpha={work.lora_alpha}",
        f"adapter.targets=[{targets}]", f"sampling.engine={engine}", "sampling.temperature=1.0",
        f"sampling.max_prompt_tokens={work.prompt}", f"sampling.max_completion_tokens={work.completion}",
        f"sampling.max_rows={work.group_size}", f"optimizer.learning_rate={work.learning_rate}",
        "optimizer.warmup_steps=0", "optimizer.tis_cap=-1", "optimizer.kind=adamw", "optimizer.offload=false",
        "optimizer.updates_per_step=1", "run.device=auto",
        f"optimizer.clip_ratio_low={work.clip}", f"optimizer.clip_ratio_high={work.clip}",
        f"optimizer.micro_batch_size={min(8, work.group_size)}",
        f"optimizer.row_tokens={work.prompt + work.completion}",
    ]  # fmt: skip
    return load_profile(BASE, settings + overrides).profile


class Session:
    """A policy, its engine and its update, as a train worker holds them."""

    def __init__(self, work: Workload, model: Path, engine: str, overrides: list[str]) -> None:
        from workers.azr.trainer import device_of, set_up_torch
        from workers.azr.update import PolicyUpdate
        from workers.azr.warm import set_environment
        from workers.models import optimizer
        from workers.models.policy import open_policy
        from workers.rollout.engine import Sampling
        from workers.rollout.select import engine_of, tis_cap_of

        set_environment()
        self.work = work
        self.profile = profile = profile_of(work, model, engine, overrides)
        device = device_of(profile)
        set_up_torch(profile, isolate=False)
        policy = open_policy(profile, None, device)
        self.model = policy.model
        optimiser = optimizer.build(policy.model, profile.optimizer)
        self.engine = engine_of(policy.model, profile, policy.tokenizer)
        self._update = PolicyUpdate(policy.model, optimiser, profile.optimizer, profile.sampling.temperature)
        self._update.tis_cap = tis_cap_of(profile)
        self._sampling = Sampling(max_new_tokens=work.completion, ignore_stop=True)

    def limit(self, completion: int) -> None:
        """From now on completions have so many tokens."""
        self.work = replace(self.work, completion=completion)
        self._sampling = replace(self._sampling, max_new_tokens=completion)

    def rollout(self, step: int) -> list[Any]:
        """The group's rollouts, by the engine with the weights as they are."""
        from workers.rollout.engine import Request

        prompt = self.work.prompt_ids(step)
        requests = [Request(prompt, step * 1000 + row) for row in range(self.work.group_size)]
        rollouts = self.engine.generate(requests, self._sampling)
        lengths = {len(one.completion_ids) for one in rollouts}
        if lengths != {self.work.completion}:
            raise ValueError(f"completions have {sorted(lengths)} tokens, not {self.work.completion}")
        return rollouts

    def train(self, step: int, rollouts: list[Any]) -> dict[str, float]:
        """Rewards, advantages and one optimiser update; what it tells of itself."""
        from workers.azr.rows import Row
        from workers.grpo.advantages import group_advantages, rule_of

        given = rewards(len(rollouts))
        rows = [
            Row(task="ded", role="solve", group=0, finish_reason="length", reward=reward, prompt_ids=one.prompt_ids,
                completion_ids=one.completion_ids, log_probs=one.log_probs)
            for one, reward in zip(rollouts, given, strict=True)
        ]  # fmt: skip
        values = group_advantages(given, [0] * len(given), rule_of(self.profile.grpo)).values
        self.engine.rest()
        is_finite, metrics = self._update.apply(step, rows, values)
        if not is_finite:
            raise ValueError(f"numbers of the update are not finite: {metrics}")
        return metrics

    def close(self) -> None:
        self.engine.close()


def run(work: Workload, model: Path, engine: str, overrides: list[str], meter: Meter, budget: Budget) -> None:
    report = meter.report
    session = Session(work, model, engine, overrides)
    knobs = session.profile
    report.settings = {
        "engine": engine, "micro_batch_size": knobs.optimizer.micro_batch_size,
        "row_tokens": knobs.optimizer.row_tokens, "deterministic": knobs.run.deterministic, "overrides": overrides,
    }  # fmt: skip
    done = 0
    while not budget.is_spent(report):
        done += 1
        began = meter.now()
        with meter.phase("rollout"):
            rollouts = session.rollout(done)
        with meter.phase("train"):
            report.metrics = session.train(done, rollouts)
        meter.end_step(meter.now() - began, timed=budget.is_timed(done - 1))
    session.close()
