"""The policy of a profile: weights, or base and adapter; tokenizer; and which of it is state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import graph_tokens, kept_tokens
from profiles.schema import Profile
from profiles.shapes import shape_of
from state.registry import Stateful
from workers.memory.cap import limits_of
from workers.memory.phases import room_for_graphs
from workers.models import adapters, attention, fast_graphs, fused_layers, load, plain, proof, recompute
from workers.models.identity import base_sha256
from workers.models.torch_setup import device_of
from workers.models.weights import Weights

log = logging.getLogger("worker")


@dataclass(frozen=True)
class Policy:
    """model: a plain causal language model of transformers, with any adapters inside. items: its state, to register."""

    model: Any
    tokenizer: load.Tokenizer
    static: load.StaticFiles
    items: Sequence[Stateful]


def open_policy(profile: Profile, head: Path | None, device: torch.device) -> Policy:
    """The policy at the start of a run, or with weights that `items` restore from `head`, a verified checkpoint.

    Raises LonghaulError: INPUT if files are missing or do not fit, or the adapter was trained on another base; GPU if
    the profile asks for one and there is none.
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise LonghaulError(
            'run.device is "cuda", but no usable GPU was found',
            kept="the run, unchanged",
            next_command="python -m orchestrator doctor   (or --set run.device=cpu)",
            exit_code=ExitCode.GPU,
        )
    policy = _with_adapter(profile, head, device) if profile.adapter.rank else _whole(profile, head, device)
    is_plain = bool(plain.choose_path(policy.model, profile))
    if not is_plain:
        attention.enable(policy.model)
        fused_layers.enable(policy.model)
    if profile.model.gradient_checkpointing:
        recompute.enable(policy.model, offloads_inputs=profile.model.offload_inputs)
    if profile.model.gradient_checkpointing and not is_plain:
        shape = shape_of(policy.model.config.to_dict())
        most = 0
        if device.type == "cuda":
            room = room_for_graphs(profile, shape, *limits_of(policy.model.device))
            most = graph_tokens(profile, shape, room)
        fast_graphs.enable(
            policy.model,
            with_graphs=profile.optimizer.cuda_graphs,
            offloads_inputs=profile.model.offload_inputs,
            kept_tokens=kept_tokens(profile, shape),
            most_tokens=most,
        )
    return policy


def restored_policy(
    profile: Profile, head: Path, step: int, device: torch.device, warn: Callable[[str], None] = log.warning
) -> Policy:
    """The policy restored from `head`, for validation. Raises LonghaulError if the restore cannot be proven.

    warn: called if the adapter still has its initial values, so that in effect the base model answers.
    """
    policy = open_policy(profile, head, device)
    for item in policy.items:
        item.load(head / item.filename)
    if profile.adapter.rank and step > 0 and adapters.count_trained(policy.model) == 0:
        warn(
            f"no gradient has reached the adapter in {step} steps (all rewards of a group the same?): "
            "validations measure the base model"
        )
    return policy


def _whole(profile: Profile, head: Path | None, device: torch.device) -> Policy:
    if head is None:
        with load.opened_model(profile.model, profile.run.seed) as source:
            model = load.load_model(source, profile.model, device)
            return Policy(model, load.Tokenizer(source), load.static_files(source, model), [Weights(model)])
    model = load.empty_model(head, profile.model, device)
    return Policy(model, load.Tokenizer(head), load.static_files(head, model), [Weights(model)])


def _with_adapter(profile: Profile, head: Path | None, device: torch.device) -> Policy:
    """The base is read from the profile's path each time; a checkpoint holds only the adapter."""
    knobs = profile.model
    base = knobs.path if knobs.random_init == "off" else f"random_init/{knobs.random_init}"
    with load.opened_model(knobs, profile.run.seed) as source:
        sha256 = base_sha256(source)
        if head is not None:
            proof.refuse_other_base(head, base, sha256)
        model = load.load_model(source, knobs, device, sha256)
        tokenizer = load.Tokenizer(source)
        targeted = adapters.knobs_for(model, profile.adapter)
        extra = {adapters.CONFIG: adapters.config_json(targeted, base)}
        static = load.StaticFiles(source, load.TOKENIZER_FILES, extra)
    adapters.inject(model, targeted, profile.run.seed)
    return Policy(model, tokenizer, static, [adapters.AdapterWeights(model), proof.Proof(model, sha256)])


def profile_for_reading(profile: Profile, directory: str | None) -> Profile:
    """A profile for inference. directory: of a model without a run; then the dtype is bfloat16 on a GPU."""
    changes: dict[str, Any] = {"gradient_checkpointing": False}
    if directory is not None:
        is_gpu = device_of(profile).type == "cuda"
        changes |= {"path": directory, "dtype": "bfloat16" if is_gpu else profile.model.dtype}
    return replace(profile, model=replace(profile.model, **changes))
