"""[verl]: training by verl, a published engine for many GPUs and hosts (`run.worker = "verl"`). (pure)"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from profiles.section import FIXED, FREE, Count, Positive, Seconds, Section

OWN_SERVER = "start"
"""Of `verl.code_server`."""


class Verl(Section, frozen=True):
    """[verl]: how verl divides the work. What it has in common with GRPO is in [grpo], [optimizer] and [sampling]."""

    strategy: Annotated[Literal["fsdp2", "megatron"], FIXED] = "fsdp2"
    """What divides weights, gradients and moments: PyTorch's FSDP2, or Megatron, whose package you install."""
    tensor_parallel: Annotated[int, Meta(ge=1, le=8), FREE] = 1
    """GPUs that share one rollout engine, so one copy of the weights. It must divide heads and the GPUs of a host."""
    train_tensor_parallel: Annotated[int, Meta(ge=1, le=8), FIXED] = 1
    """Megatron: GPUs that share each layer while training."""
    pipeline_parallel: Annotated[Positive, FIXED] = 1
    """Megatron: parts into which the layers are divided while training."""
    rollout_gpus: Annotated[Count, FIXED] = 0
    """GPUs of each host that draw rollouts one step ahead while the others train; 0: all GPUs do both in turn."""
    tokens_per_gpu: Annotated[Positive, FREE] = 16384
    """Most tokens of one forward pass on a GPU, prompts included; at least one whole rollout."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where `grpo.kl_coef` weighs the KL against the first model; with 0 no reference policy is loaded."""
    code_server: Annotated[str, FREE] = ""
    """What judges problems with tests: `start`, a code server of the worker's own on its host; the URL that one
    prints (`python -m workers.sandbox serve`); empty: there are no such problems."""
    on_other_gpus: Annotated[Literal["refuse", "weights"], FREE] = "refuse"
    """If a checkpoint was made on another number of GPUs: refuse it, or go on from its weights without its moments."""
    start_s: Annotated[Seconds, FREE] = 1800.0
    """Longest time from the start of verl until its first step begins."""
