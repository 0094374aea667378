"""Computes how much disk a run needs at most under the retention rule, part by part. (pure)

Does not count the store, logs and reports (megabytes), quarantine, or pinned and exported checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of

if TYPE_CHECKING:  # each worker reads our constants, and none of them what a model needs
    from profiles.shapes import Shape

MIB = 1 << 20
INLINE_BYTES = 256 * MIB
"""Checkpoints up to this size are hashed before they become the head. Larger ones are hashed afterwards, in the
background (orchestrator/verifying.py), and count as unverified until then."""
BALLAST_BYTES = 16 * MIB
FAKE_BYTES = 64 << 10
"""Size of the fake worker's checkpoint without its filler; measured: 16 KiB."""
SMALL_FILES_BYTES = MIB
"""Manifest, progress, random states, cursors and config of a checkpoint; measured: 30 to 60 KiB."""
TOKENIZER_BYTES_OF_TOKEN = 80
"""Size of tokenizer.json with its merges, per token of the vocabulary; Qwen2.5's published file: 74."""
QUANTILES_BYTES = 2048
"""Two code books of bitsandbytes, stored with the moments of each tensor."""
TENSORS_OF_LAYER = 14
ENTRY_BYTES = 512
"""A buffer entry without its program: input, output, counts; measured: 390 with a short program."""
BYTES_OF_TOKEN = 4
"""Upper bound for the text of a sampled token; about 3 for a program in ASCII."""
ROLLOUT_BYTES_OF_TOKEN = 32
"""A sampled token in a rollout file: its id and log-prob as JSON."""
PROMPT_BYTES_OF_TOKEN = 8
IN_FLIGHT = 2
"""One is being written while the previous one is committed but nothing is pruned yet."""
MOST_UNHASHED = 2
"""A worker waits before writing another large checkpoint while this many are newer than the newest verified one."""
IN_FLIGHT_LARGE = MOST_UNHASHED + 2
"""One is being written, two wait for their hash, and a second verified one stays meanwhile."""


@dataclass(frozen=True)
class DiskPlan:
    """checkpoint: maximum size of one in bytes. parts: what is kept -> maximum bytes."""

    checkpoint: int
    parts: Mapping[str, int]
    growth: int = 0
    """Bytes added permanently every `retention.keep_every` cycles, in a run without a limit on cycles."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def checkpoint_bytes(profile: Profile, shape: Shape | None) -> int | None:
    """Maximum size of a checkpoint, with full buffers. None if the shape of the model is not known by the profile."""
    if profile.run.worker == "fake":
        return profile.fake.state_bytes + FAKE_BYTES
    if shape is None or not worker_kind_of(profile).uses_model:
        return None
    return state_bytes(profile, shape) + buffer_bytes(profile) + static_bytes(shape)


def state_bytes(profile: Profile, shape: Shape) -> int:
    """Weights (or only the adapter, in float32), moments, and float32 copies of 16-bit weights. See docs/memory.md."""
    from profiles.footprint import trained_parameters

    trained = trained_parameters(profile, shape)
    is_half = profile.model.dtype == "bfloat16"
    weights = 4 * trained if profile.adapter.rank else (2 if is_half else 4) * shape.parameters
    has_copy = profile.optimizer.offload or (is_half and not profile.adapter.rank)
    return weights + moment_bytes(profile, shape, trained) + 4 * trained * has_copy


def moment_bytes(profile: Profile, shape: Shape, trained: int) -> int:
    if profile.optimizer.kind == "adamw":
        return 8 * trained
    # Two 8-bit codes per weight, two float32 scales per 256 weights; small tensors keep two float32 moments.
    tensors = TENSORS_OF_LAYER * shape.num_hidden_layers + 2
    return trained * 2 + trained * 8 // 256 + 8 * shape.small_parameters + QUANTILES_BYTES * tensors


def buffer_bytes(profile: Profile) -> int:
    """Buffers of self-play, with as many tasks as they hold or as `max_cycles` can find."""
    if profile.run.worker != "azr":
        return 0
    azr, run = profile.azr, profile.run
    entries = azr.buffer_cap
    if run.max_cycles and not profile.data.sources and not profile.data.tasks:
        found = azr.seed_tasks + azr.proposals_per_task * run.max_cycles * run.steps_per_cycle
        entries = min(entries, found)
    return len(azr.tasks) * entries * (ENTRY_BYTES + BYTES_OF_TOKEN * profile.sampling.max_completion_tokens)


def static_bytes(shape: Shape) -> int:
    return SMALL_FILES_BYTES + TOKENIZER_BYTES_OF_TOKEN * shape.vocab_size


def rollout_bytes(profile: Profile) -> int:
    """Rollout files of the steps since the last checkpoint, and of `retention.keep_rollout_steps` before them."""
    if profile.run.worker == "fake":
        return 0
    from profiles.footprint import rollouts_held

    sampling = profile.sampling
    each = ROLLOUT_BYTES_OF_TOKEN * sampling.max_completion_tokens + PROMPT_BYTES_OF_TOKEN * sampling.max_prompt_tokens
    steps = profile.run.checkpoint_every + profile.retention.keep_rollout_steps
    return steps * rollouts_held(profile) * each


def disk_plan(profile: Profile, checkpoint: int, kept_for_good: int = 0) -> DiskPlan:
    """checkpoint: size of one in bytes. kept_for_good: existing checkpoints of every Nth cycle.

    Assumes the worst case for all parts at once: no checkpoint is kept for two reasons.
    """
    retention, run = profile.retention, profile.run
    flying = IN_FLIGHT if checkpoint <= INLINE_BYTES else IN_FLIGHT_LARGE
    for_good, growth = 0, 0
    if retention.keep_every:
        is_endless = run.max_cycles == 0
        planned = 1 if is_endless else 1 + run.max_cycles // retention.keep_every  # the seed phase is cycle 0
        for_good = max(planned, kept_for_good)
        growth = checkpoint if is_endless else 0
    parts = {
        "head and ancestors": checkpoint * (1 + retention.keep_ancestors),
        "best of each suite": checkpoint * len(profile.validation.suites),
        "every Nth cycle": checkpoint * for_good,
        "in flight": checkpoint * flying,
        "rollouts": rollout_bytes(profile),
        "ballast": BALLAST_BYTES,
    }
    return DiskPlan(checkpoint, {name: size for name, size in parts.items() if size}, growth)
