"""The model of an evaluation: loaded as in training, with room for the questions to be asked."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from profiles.schema import Profile
from workers.line_contract import EvaluationSpec
from workers.models.policy import Policy, open_policy, restored_policy
from workers.models.torch_setup import device_of, set_up_torch
from workers.rollout.free_rows import widen
from workers.rollout.probe import Advice, probe
from workers.rollout.select import Remedy, engine_of
from workers.suites.answer_format import AnswerFormat
from workers.suites.asking import Examinee

ADVICE = Advice(kept="every answer so far", engine="the same command with --engine {}")


def open_examinee(spec: EvaluationSpec, answer_format: AnswerFormat, prompt_tokens: int) -> Examinee:
    """Load the model. prompt_tokens: of the longest prompt.

    Raises LonghaulError (INPUT) if files are missing, torn or inconsistent, or if no engine can start.
    """
    profile = _profile(spec, prompt_tokens)
    device = device_of(profile)
    set_up_torch(profile, isolate=False)
    if spec.step is None:
        policy = open_policy(profile, None, device)
    else:
        policy = restored_policy(profile, Path(spec.model), spec.step, device)
    engine = engine_of(policy.model, profile, policy.tokenizer, remedy=remedy_of(profile))
    probe(policy.model, engine, profile, advice=ADVICE)
    widen(engine, policy.model, profile, prompt_tokens=prompt_tokens)
    return Examinee(engine, policy.tokenizer, answer_format, _positions(policy))


def remedy_of(profile: Profile) -> Remedy:
    """The engines that were not tried, those with the fewest requirements first. (pure)"""
    tried = {profile.sampling.engine, *profile.sampling.fallback}
    if "auto" in tried:
        tried.add("native")  # a worker turns "auto" into this
    others = [f"--engine {name}" for name in ("native", "hf") if name not in tried]
    instead = f"the same command with {' or '.join(others)}, or fix the cause" if others else "fix the cause"
    return Remedy(kept="every answer so far", next_command=instead)


def _profile(spec: EvaluationSpec, prompt_tokens: int) -> Profile:
    """The spec's profile, with room for the questions to be asked."""
    sampling = replace(
        spec.profile.sampling, max_prompt_tokens=max(1, prompt_tokens), max_completion_tokens=spec.max_new_tokens
    )
    model = spec.profile.model
    if spec.step is None:
        is_gpu = device_of(spec.profile).type == "cuda"
        model = replace(model, path=spec.model, dtype="bfloat16" if is_gpu else model.dtype)
    model = replace(model, gradient_checkpointing=False)
    return replace(spec.profile, sampling=sampling, model=model)


def _positions(policy: Policy) -> int:
    return int(getattr(policy.model.config, "max_position_embeddings", 0) or 0)
