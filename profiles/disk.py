"""How much disk a run takes at most while the retention rule is kept: a closed form, part by part. (pure)

Not counted: the store, logs and reports (megabytes), quarantine, and what a person pins or exports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.footprint import rollouts_of, trained_parameters
from profiles.schema import Profile
from profiles.shapes import Shape

MIB = 1 << 20
INLINE_BYTES = 256 * MIB
"""Checkpoints up to this size are hashed before they become the head; larger ones afterwards, beside the loop
(orchestrator/verifying.py). Until then they count as unverified when something is pruned."""
BALLAST_BYTES = 16 * MIB
FAKE_BYTES = 64 << 10
"""Of the fake worker's checkpoint, beside its filler; measured: 16 KiB."""
SMALL_FILES_BYTES = MIB
"""Of a checkpoint: manifest, progress, random states, cursors, config; measured: 30 KiB to 60 KiB."""
TOKENIZER_BYTES_OF_TOKEN = 80
"""tokenizer.json with its merges, for each token of the vocabulary; published for Qwen2.5: 74."""
QUANTILES_BYTES = 2048
"""Two code books of bitsandbytes, stored beside the moments of each tensor."""
TENSORS_OF_LAYER = 14
ENTRY_BYTES = 512
"""Of a buffer's entry beside its program: input, output, counts; measured: 390 with a short program."""
BYTES_OF_TOKEN = 4
"""Text of a sampled token, at most; of a program in English letters about 3."""
ROLLOUT_BYTES_OF_TOKEN = 32
"""Of a sampled token in a rollout file: its number and its log-prob as JSON."""
PROMPT_BYTES_OF_TOKEN = 8
IN_FLIGHT = 2
"""One that is being written while the one before it is committed and nothing is pruned yet."""
MOST_UNHASHED = 2
"""Large checkpoints newer than the newest verified one, beyond which a worker waits before it writes another."""
IN_FLIGHT_LARGE = MOST_UNHASHED + 2
"""One is written, two wait for their hash, and a second verified one stays meanwhile."""


@dataclass(frozen=True)
class DiskPlan:
    """checkpoint: bytes of one at its largest. parts: what is kept -> bytes, at most."""

    checkpoint: int
    parts: Mapping[str, int]
    growth: int = 0
    """Bytes that every `retention.keep_every` cycles add for good, in a run without a last cycle."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def checkpoint_bytes(profile: Profile, shape: Shape | None) -> int | None:
    """Bytes of a checkpoint at its largest: buffers are full. None: the model's shape is not known."""
    if profile.run.worker == "fake":
        return profile.fake.state_bytes + FAKE_BYTES
    if shape is None:
        return None
    return state_bytes(profile, shape) + buffer_bytes(profile) + static_bytes(shape)


def state_bytes(profile: Profile, shape: Shape) -> int:
    """Weights, or the adapter alone in float32; moments; float32 copies of weights in 16 bits. docs/memory.md"""
    trained = trained_parameters(profile, shape)
    is_half = profile.model.dtype == "bfloat16"
    weights = 4 * trained if profile.adapter.rank else (2 if is_half else 4) * shape.parameters
    has_copy = profile.optimizer.offload or (is_half and not profile.adapter.rank)
    return weights + moment_bytes(profile, shape, trained) + 4 * trained * has_copy


def moment_bytes(profile: Profile, shape: Shape, trained: int) -> int:
    if profile.optimizer.kind == "adamw":
        return 8 * trained
    # Two codes of 8 bits, two float32 scales for 256 of them; small tensors keep two float32 moments.
    tensors = TENSORS_OF_LAYER * shape.num_hidden_layers + 2
    return trained * 2 + trained * 8 // 256 + 8 * shape.small_parameters + QUANTILES_BYTES * tensors


def buffer_bytes(profile: Profile) -> int:
    """Buffers of self-play: as many tasks as a run of `max_cycles` can find, or as they hold."""
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
    """Rollout files: of the steps since the last checkpoint, and of `retention.keep_rollout_steps` before them."""
    if profile.run.worker == "fake":
        return 0
    sampling = profile.sampling
    each = ROLLOUT_BYTES_OF_TOKEN * sampling.max_completion_tokens + PROMPT_BYTES_OF_TOKEN * sampling.max_prompt_tokens
    steps = profile.run.checkpoint_every + profile.retention.keep_rollout_steps
    return steps * rollouts_of(profile) * each


def disk_plan(profile: Profile, checkpoint: int, kept_for_good: int = 0) -> DiskPlan:
    """checkpoint: bytes of one. kept_for_good: checkpoints of every Nth cycle that are there already.

    Each part at its largest at the same time: the best ones are no ancestors, no Nth cycle is the best.
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
