"""Seconds of a step on a GPU, for the engine `native` and our own update. (pure)

A decode step takes a time for each layer (launches, and kernels that wait for one another), reads the weights and half
of the full cache, and computes. A pass of the update, or of scoring, takes a time for each layer and computes. The
five constants are a least-squares fit of logarithms to such steps as MEASURED; `benchmarks grpo` and `memory` measure
them. docs/performance.md has the error of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.hours.cards import CardSpeed
from profiles.footprint import NF4_BYTES, group_of, is_grpo, rollouts_of, work_of
from profiles.passes import can_be_one_pass, is_scored
from profiles.schema import Profile
from profiles.shapes import Shape

LAYER_S = 3.94e-5
"""A layer in a decode step."""
READ_SHARE = 0.613
"""Of a card's bandwidth."""
DECODE_SHARE = 0.208
"""Of a card's rate, while decoding."""
PROMPT_SHARE = 0.0998
"""Of a card's rate, while prompts are read."""
PASS_LAYER_S = 2.74e-4
"""A layer in a forward and backward pass."""
UPDATE_SHARE = 0.239
SCORE_LAYER_S = 1.93e-3
SCORE_SHARE = 0.453
WORST_ERROR = 0.3
"""Of a whole step, on the cards that were measured."""
WORST_SCALED = 2.0
"""Factor by which a scaled prediction may be off, as far as one can say: no such card was measured."""


@dataclass(frozen=True)
class Row:
    """A step that was timed, every rollout at full length. seconds: of the whole step. settings: knobs of the profile.

    source: the table of docs/measurements.md.
    """

    card: str
    profile: str
    architecture: str
    settings: Mapping[str, Any]
    seconds: float
    source: str


def _grpo(prompt: int, group: int, micro: int, row_tokens: int) -> dict[str, Any]:
    return {
        "sampling.max_prompt_tokens": prompt,
        "sampling.max_completion_tokens": 512,
        "sampling.max_rows": group,
        "grpo.groups_per_step": 1,
        "grpo.group_size": group,
        "optimizer.micro_batch_size": micro,
        "optimizer.row_tokens": row_tokens,
    }


A_STEP, SELF_PLAY = "A step of GRPO", "Self-play at the real shapes"
MEASURED = (
    Row("H200", "grpo-1.5b-8gb", "r1-qwen-1.5b", _grpo(128, 8, 4, 2176), 0.95, A_STEP),
    Row("H200", "grpo-1.5b-8gb", "r1-qwen-1.5b", _grpo(128, 4, 4, 2176), 0.97, A_STEP),
    Row("H200", "grpo-1.5b-8gb", "r1-qwen-1.5b", _grpo(512, 8, 2, 1536), 1.10, A_STEP),
    Row("H200", "grpo-1.5b-8gb", "r1-qwen-1.5b", _grpo(128, 64, 8, 4224), 2.13, A_STEP),
    Row("H200", "azr-0.5b", "qwen2.5-0.5b", {}, 36.0, SELF_PLAY),
    Row("H200", "azr-3b-qlora", "qwen2.5-3b", {}, 105.0, SELF_PLAY),
    Row("H100", "grpo-1.5b-8gb", "r1-qwen-1.5b", _grpo(128, 8, 4, 2176), 1.12, A_STEP),
    Row("H100", "grpo-1.5b-8gb", "r1-qwen-1.5b", _grpo(128, 64, 4, 2176), 3.32, A_STEP),
)


@dataclass(frozen=True)
class StepParts:
    """Seconds of a step if every rollout has its full length."""

    rollout: float
    score: float
    update: float
    is_side_by_side: bool = False
    """Whether another GPU draws the next step's rollouts meanwhile."""

    @property
    def total(self) -> float:
        trained = self.score + self.update
        return max(self.rollout, trained) if self.is_side_by_side else self.rollout + trained


def weights_read(profile: Profile, shape: Shape) -> float:
    """Bytes that a decode step reads of the weights."""
    is_small = profile.model.quantization == "nf4"
    each = NF4_BYTES if is_small else _itemsize(profile)
    return each * shape.linear_parameters + _itemsize(profile) * shape.vocab_size * shape.hidden_size


def step_of(profile: Profile, shape: Shape, card: CardSpeed) -> StepParts:
    """The parts of a step; several GPUs divide its rollouts and passes."""
    work, layers = work_of(profile, shape), shape.num_hidden_layers
    head = shape.vocab_size * shape.hidden_size
    prompt, completion = work.prompt_tokens, work.completion_tokens

    def drawing(lot: Lot) -> float:
        rows = rows_of(profile, lot, work.rollout_rows, prompt, completion)
        cache = 2 * _itemsize(profile) * layers * shape.key_width * rows * (prompt + completion / 2)
        decode = (
            LAYER_S * layers
            + (weights_read(profile, shape) + cache) / (READ_SHARE * card.bandwidth)
            + 2 * rows * (shape.linear_parameters + head) / (DECODE_SHARE * card.flops)
        )
        reading = 2 * lot.prompts * prompt * shape.linear_parameters / (PROMPT_SHARE * card.flops)
        return math.ceil(lot.rollouts / rows) * completion * decode + reading

    def passing(lot: Lot) -> tuple[float, float]:
        """Seconds of the update, and of scoring."""
        passes, tokens = passes_of(profile, lot, prompt, completion)
        # Forward 2, backward 2 for inputs and 2 for weights that are trained, 2 again where layers are recomputed.
        body = 4 + 2 * (profile.adapter.rank == 0) + 2 * profile.model.gradient_checkpointing
        each = tokens * (body * shape.linear_parameters + 6 * head) / (UPDATE_SHARE * card.flops)
        score = 2 * tokens * (shape.linear_parameters + head) / (SCORE_SHARE * card.flops)
        return passes * (PASS_LAYER_S * layers + each), passes * (SCORE_LAYER_S * layers + score)

    lots = lots_of(profile)
    update, score = (sum(each) for each in zip(*map(passing, lots), strict=True))
    if not is_scored(profile) or (is_grpo(profile) and can_be_one_pass(profile)):
        score = 0.0
    epochs = profile.grpo.inner_epochs if is_grpo(profile) else 1
    is_side_by_side = bool(profile.run.overlap and profile.run.sampler_device)
    return StepParts(sum(map(drawing, lots)), score, epochs * update, is_side_by_side)


@dataclass(frozen=True)
class Lot:
    """Rollouts that are drawn together: `shared` of one prompt."""

    rollouts: int
    shared: int

    @property
    def prompts(self) -> int:
        return math.ceil(self.rollouts / self.shared)


def lots_of(profile: Profile) -> list[Lot]:
    """Of one GPU in a step: those of GRPO, or proposals and then answers."""
    count, ranks = rollouts_of(profile), profile.run.ranks
    if is_grpo(profile):
        return [Lot(math.ceil(count / ranks), group_of(profile))]
    proposals = len(profile.azr.tasks) * profile.azr.proposals_per_task
    return [
        Lot(math.ceil(proposals / ranks), 1),
        Lot(math.ceil((count - proposals) / ranks), group_of(profile)),
    ]


def rows_of(profile: Profile, lot: Lot, rows: int, prompt: int, completion: int) -> int:
    """Rollouts side by side. rows: of full length that the cache holds; in pages, those of one prompt share it."""
    overcommit = profile.sampling.overcommit
    if overcommit > 1:
        each = prompt / lot.shared + completion
        rows = max(1, min(int(overcommit * rows), int(rows * (prompt + completion) / each)))
    return min(rows, lot.rollouts)


def passes_of(profile: Profile, lot: Lot, prompt: int, completion: int) -> tuple[int, int]:
    """(passes, tokens of each). Completions of one prompt that fit a row share it, even more than a micro-batch has."""
    fitting = max(1, (profile.optimizer.row_tokens - prompt) // completion)
    unit = min(lot.shared, fitting, lot.rollouts)
    units = max(1, min(profile.optimizer.micro_batch_size, lot.rollouts) // unit)
    return math.ceil(lot.rollouts / (units * unit)), units * (prompt + unit * completion)


def _itemsize(profile: Profile) -> int:
    return 2 if profile.model.dtype == "bfloat16" else 4
