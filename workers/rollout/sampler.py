"""A copy of the policy on a device of its own, from which rollouts are drawn (run.sampler_device).

The trainer's weights are copied to it between two draws, so an update may change its own meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from workers.models.adapters import adapter_of
from workers.models.policy import open_policy
from workers.models.torch_setup import on_device

COPIED_AT_ONCE = 64 << 20
"""Bytes that travel together. An adapter has hundreds of small matrices, and each transfer has a price of its own."""


class Sampler:
    """model: the copy. Its untrained weights are those of the same files."""

    def __init__(self, model: Any, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """sources, targets: what an update may change, in the trainer's model and in the copy."""
        self.model = model
        self._device: torch.device = targets[0].device
        self._groups = [
            ([sources[number] for number in group], [targets[number] for number in group])
            for group in groups_of([(one.dtype, one.nbytes) for one in sources], COPIED_AT_ONCE)
        ]

    @torch.no_grad()
    def copy_weights(self) -> None:
        """Returns when they have arrived. Nothing may be drawn meanwhile."""
        for sources, targets in self._groups:
            if len(sources) == 1:
                targets[0].copy_(sources[0])
            else:
                arrived = torch.cat([one.reshape(-1) for one in sources]).to(self._device)
                parts = torch.split(arrived, [one.numel() for one in sources])
                torch._foreach_copy_(targets, [part.view(one.shape) for part, one in zip(parts, targets, strict=True)])
        if self._device.type == "cuda":
            for device in (self._groups[0][0][0].device, self._device):
                torch.cuda.current_stream(device).synchronize()


def groups_of(tensors: Sequence[tuple[object, int]], most_bytes: int) -> Iterator[list[int]]:
    """Neighbours of one dtype with at most `most_bytes` together, or one tensor. tensors: dtype and bytes. (pure)"""
    group: list[int] = []
    size = 0
    for number, (dtype, more) in enumerate(tensors):
        if group and (dtype != tensors[group[0]][0] or size + more > most_bytes):
            yield group
            group, size = [], 0
        group.append(number)
        size += more
    if group:
        yield group


def sampler_of(profile: Profile, head: Path | None, model: Any) -> Sampler | None:
    """None without `run.sampler_device`. head: as for `open_policy`. model: the trainer's.

    Raises LonghaulError: GPU if there is no such GPU; INPUT for a device of another kind than the trainer's.
    """
    if not profile.run.sampler_device:
        return None
    device = torch.device(profile.run.sampler_device)
    _refuse(device, model.device)
    if device.type == "cuda":  # the cap holds for each card
        share = torch.cuda.get_per_process_memory_fraction(model.device)
        torch.cuda.set_per_process_memory_fraction(share, device)
    with on_device(device):
        copy = open_policy(profile, head, device).model
    copy.requires_grad_(False)
    return Sampler(copy, _trained(profile, model), _trained(profile, copy))


def _trained(profile: Profile, model: Any) -> list[Tensor]:
    """The adapter's matrices, or all that a checkpoint stores of the model, each once."""
    if profile.adapter.rank:
        return list(adapter_of(model).values())
    return list({one.data_ptr(): one for one in model.state_dict(keep_vars=True).values()}.values())


def _refuse(device: torch.device, trainer: torch.device) -> None:
    alone = "python -m orchestrator run --set run.sampler_device="
    if device.type != trainer.type:
        raise LonghaulError(
            f"run.sampler_device = {str(device)!r}, and the trainer is on {trainer}: both must be of one kind",
            kept="the run, unchanged",
            next_command=alone,
            exit_code=ExitCode.INPUT,
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise LonghaulError(
            f"run.sampler_device = {str(device)!r}, and {torch.cuda.device_count()} usable GPUs were found",
            kept="the run, unchanged",
            next_command=alone,
            exit_code=ExitCode.GPU,
        )
