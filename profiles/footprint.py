"""Estimates the GPU memory that a profile needs at its largest shapes, by phase and part. (pure)

All figures are bytes of PyTorch's allocator, except `device`, which adds fragmentation and the context of driver and
kernels. Symbols: h hidden width, f MLP width, k width of keys, L blocks, V vocabulary, T tokens of a micro-batch.

Activations of one block are counted from its modules: 7 tensors of width f (gate, up, their product, its activation,
and three gradients), 9 of h, 7 of k. Adapters in peft also keep a float32 copy of their input; for the four of the
attention that equals 4 more of h, so 13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from profiles.capture import LOOKUP_ROWS
from profiles.description import ATTENTION
from profiles.passes import is_scored
from profiles.schema import Profile
from profiles.shapes import Shape
from profiles.targets import own_targets

GIB = 1 << 30
NF4_BYTES = 0.5 + 1 / 64 + 4 / 16384
"""Bytes per weight: 4 bits, an 8-bit scale per 64 weights, and a 32-bit scale per 256 scales."""
MAX_LOGITS = 1 << 24
"""Logits computed at a time (64 MiB in float32) if more would cost memory."""
MOST_HEAD_ROWS = 1024
"""Beyond this many rows of logits, a chunk is no faster."""
LOGIT_BYTES = 10
"""Bytes per logit of a chunk: float32, its float32 gradient, and the gradient in 16 bits."""
DRAW_BYTES = 16
"""Bytes per logit for sampling: 16 bits, and three copies in float32."""
GRAPH_BYTES = 60 << 20
"""Memory pool of the captured decode step."""
READ_BYTES = 512 << 20
"""Prompts are processed in parts with about this many bytes of activations."""
ASLEEP_BYTES = GIB // 2
"""Memory that vLLM keeps while it sleeps."""
NCCL_BYTES = GIB // 2
"""Memory for communication with other GPUs, outside the allocator: about 0.4 to 0.8 GiB."""
MASKED_QUERIES = 2048
"""PyTorch's attention gets a mask for this many queries at a time; for a whole row of 32,768 it would take 1 GiB."""
ON_CARD = 2
"""Inputs of layers that are on the card with model.offload_inputs: one that is used, one that is fetched."""
BESIDE = "beside: "
"""Begins the name of a part of the rollouts that are drawn beside an update (run.overlap)."""
KEPT = (f"{BESIDE}cache", f"{BESIDE}graph")
"""Those that stay from step to step."""
FRAGMENTATION = 1.08
CONTEXT_BYTES = int(0.45 * GIB)


@dataclass(frozen=True)
class Work:
    """The largest shapes of a step."""

    prompt_tokens: int
    completion_tokens: int
    rollout_rows: int
    """Rollouts that decode concurrently."""
    prompts: int
    """Distinct prompts among them."""
    tokens: int
    """Tokens of one forward and backward pass."""
    width: int
    """Tokens of one row."""
    places: int
    """Tokens of the pass that have a loss."""
    head_rows: int
    """Tokens whose logits exist at a time."""
    is_scored: bool = True
    """Whether the trainer scores the rollouts without gradient before the update."""
    has_dense_mask: bool = True
    """Whether attention gets a dense mask."""


@dataclass(frozen=True)
class Demand:
    """parts: phase -> part -> bytes at the peak. beside: phase -> bytes on the GPU outside the allocator."""

    parts: Mapping[str, Mapping[str, int]]
    beside: Mapping[str, int]
    fragmentation: float = FRAGMENTATION
    """Reserved by the allocator for each byte that is allocated."""
    context: int = CONTEXT_BYTES
    """Of driver, kernels and libraries."""

    @property
    def phases(self) -> dict[str, int]:
        """Peak of allocated bytes by phase."""
        return {phase: sum(parts.values()) for phase, parts in self.parts.items()}

    @property
    def devices(self) -> dict[str, int]:
        """Bytes used on the card by phase."""
        return {
            phase: int(self.fragmentation * held) + self.context + self.beside.get(phase, 0)
            for phase, held in self.phases.items()
        }

    @property
    def worst(self) -> str:
        """The phase that needs the most memory."""
        devices = self.devices
        return max(devices, key=devices.__getitem__)

    @property
    def device(self) -> int:
        """Bytes used on the card in the worst phase."""
        return self.devices[self.worst]


def work_of(profile: Profile, shape: Shape) -> Work:
    """The largest shapes of a step: every rollout has full length, and in self-play also its own prompt."""
    sampling, optimizer = profile.sampling, profile.optimizer
    longest, completion = sampling.max_prompt_tokens, sampling.max_completion_tokens
    # Of one GPU: several divide a step's rollouts.
    rollouts = -(-rollouts_held(profile) // profile.run.ranks)
    sequence, group = longest + completion, group_of(profile)
    rows = min(sampling.max_rows, rollouts)
    micro_batch = min(optimizer.micro_batch_size, rollouts)
    # A prompt with some of its completions is one unit, packed whole even if it exceeds a micro-batch.
    unit = max(sequence, min(optimizer.row_tokens, longest + group * completion))
    padded, width = _padded(micro_batch, sequence, optimizer.row_tokens)
    tokens = max(padded, unit)
    places = max(micro_batch * completion, min(optimizer.row_tokens, group * completion))
    return Work(
        prompt_tokens=longest,
        completion_tokens=completion,
        rollout_rows=rows,
        prompts=-(-rows // group) if is_grpo(profile) else rows,
        tokens=tokens,
        width=max(width, unit),
        places=places,
        head_rows=_head_rows(profile, shape, tokens, places),
        is_scored=is_scored(profile),
    )


def _padded(count: int, sequence: int, row_tokens: int) -> tuple[int, int]:
    """Pack `count` sequences into rows. Returns the padded tokens of all rows, and of the longest row, at most."""
    most_rows = -(-count // max(1, row_tokens // sequence))
    widths = [min(-(-count // rows) * sequence, max(row_tokens, sequence)) for rows in range(1, most_rows + 1)]
    return max(rows * width for rows, width in enumerate(widths, 1)), max(widths)


def is_grpo(profile: Profile) -> bool:
    worker: str = profile.run.worker
    return worker == "grpo"


def group_of(profile: Profile) -> int:
    """Rollouts of one prompt."""
    return profile.grpo.group_size if is_grpo(profile) else profile.azr.group_size


def rollouts_of(profile: Profile) -> int:
    """Maximum number of rollouts that a step begins; in self-play, proposals and the answers to all of them."""
    if is_grpo(profile):
        return profile.grpo.groups_per_step * profile.grpo.group_size
    azr = profile.azr
    own_batch = 0 if azr.train_on_estimates else (azr.solve_batch or azr.proposals_per_task)
    return len(azr.tasks) * (azr.proposals_per_task * (1 + azr.group_size) + own_batch)


def rollouts_held(profile: Profile) -> int:
    """Maximum number of rollouts that a step draws, with those that earlier steps have begun."""
    segment = profile.grpo.segment_tokens if is_grpo(profile) else 0
    return rollouts_of(profile) * (profile.sampling.max_completion_tokens // segment if segment else 1)


def demand_of(profile: Profile, shape: Shape, work: Work | None = None, *, card_bytes: int = 0) -> Demand:
    """The demand by phase. card_bytes: total memory of the card, of which vLLM takes a share; 0 ignores the share.

    With run.sampler_device the phase `rollout` is all that the second card holds, and the others are the first's.
    """
    work = work or work_of(profile, shape)
    held = resident(profile, shape)
    parts = {
        "load": held,
        "rollout": held | rollout(profile, shape, work),
        "score": held | scoring(profile, shape, work),
        "train": held | training(profile, shape, work),
    }
    if profile.run.sampler_device:
        parts["rollout"] = sampler(profile, shape) | rollout(profile, shape, work)
    elif profile.run.overlap:
        drawing = {f"{BESIDE}{name}": size for name, size in rollout(profile, shape, work).items()}
        parts["train"] |= drawing
        parts["score"] |= {name: drawing[name] for name in KEPT if name in drawing}
    if not work.is_scored:
        del parts["score"]
    beside = dict.fromkeys(parts, NCCL_BYTES) if profile.run.ranks > 1 else _of_vllm(profile, card_bytes)
    if profile.validation.overlap:
        beside = dict.fromkeys(parts, max(_of_validation(profile, shape, work), _of_loading(profile, shape)))
    return Demand(parts, beside)


def beside_of(profile: Profile) -> str:
    """What `Demand.beside` is. (pure)"""
    if profile.run.ranks > 1:
        return "nccl"
    return "validation" if profile.validation.overlap else "vllm"


def head_rows_of(profile: Profile, shape: Shape) -> int:
    """Rows of logits that the output head computes at a time: as many as fit into a block's backward memory.

    Large chunks are faster, because each one reads the whole head and launches about a hundred kernels.
    """
    return work_of(profile, shape).head_rows


def _head_rows(profile: Profile, shape: Shape, tokens: int, places: int) -> int:
    each, row, is_full = _itemsize(profile), LOGIT_BYTES * shape.vocab_size, profile.adapter.rank == 0
    body = _block_bytes(profile, shape) * tokens + 2 * _for_products(profile, shape)
    # A trained head sums its gradient in float32 while the logits are there.
    own = (each + 4) * shape.hidden_size * places + 4 * shape.vocab_size * shape.hidden_size * is_full
    scoring = (body + _kept_bytes(profile, shape, tokens) - _reading_bytes(profile, shape) * tokens) // row
    fitting = min((body - own) // row, scoring, MOST_HEAD_ROWS)
    return min(places, max(1, MAX_LOGITS // shape.vocab_size, fitting))


def _kept_bytes(profile: Profile, shape: Shape, tokens: int) -> int:
    """What all blocks keep for the backward pass: only inputs with gradient checkpointing, else all saved tensors."""
    input_bytes = _itemsize(profile) * shape.hidden_size
    saved = input_bytes if profile.model.gradient_checkpointing else _saved_bytes(profile, shape)
    layers = shape.num_hidden_layers
    return (min(ON_CARD, layers) if profile.model.offload_inputs else layers) * saved * tokens


def kept_tokens(profile: Profile, shape: Shape) -> int:
    """Tokens of all the layers together whose activations model.keep_gib holds."""
    return int(profile.model.keep_gib * GIB) // _saved_bytes(profile, shape)


def graph_tokens(profile: Profile, shape: Shape, room: int) -> int:
    """Tokens of the largest training pass whose graphs hold at most `room` bytes: what a pass takes but its head."""
    # Gradients of a layer: where they are computed, and where they wait to be added to those of earlier passes.
    fixed = 2 * _for_products(profile, shape) + 2 * _layer_gradients(profile, shape) + int(profile.model.keep_gib * GIB)
    inputs = _itemsize(profile) * shape.hidden_size * shape.num_hidden_layers
    return max(0, int(room / FRAGMENTATION) - fixed) // (_block_bytes(profile, shape) + inputs)


def offloaded_bytes(profile: Profile, shape: Shape) -> int:
    """Inputs of layers that wait in host memory during a pass."""
    if not profile.model.offload_inputs:
        return 0
    return shape.num_hidden_layers * _itemsize(profile) * shape.hidden_size * work_of(profile, shape).tokens


def resident(profile: Profile, shape: Shape) -> dict[str, int]:
    """What stays in memory in every phase: the weights, and the optimiser's state of the trained ones.

    With several GPUs, each holds an adapter and its moments whole. Where all weights are trained, each holds a shard of
    them, plus a whole copy of those in use. Rollouts use all of them at once, the update one layer at a time, so there
    this is an upper bound.
    """
    ranks = 1 if profile.adapter.rank else profile.run.ranks
    each = _itemsize(profile)
    if profile.model.quantization == "nf4":
        weights = int(shape.linear_parameters * NF4_BYTES)
        weights += each * (shape.embedding_parameters + shape.small_parameters)
    else:
        weights = each * shape.parameters
    trained = trained_parameters(profile, shape)
    moments = {"adamw": 8, "adamw8bit": 2, "paged_adamw8bit": 0}[profile.optimizer.kind]
    if profile.optimizer.offload:
        moments = 0
    held = {"weights": weights, "moments": moments * trained // ranks}
    if profile.adapter.rank:
        # Float32 weights, their gradient, and a 16-bit copy for the engine.
        held["adapter"] = 10 * trained
        return held
    has_copy = each == 2 and not profile.optimizer.offload
    held["copies"] = 4 * trained // ranks if has_copy else 0
    return held | ({"shards": each * trained // ranks} if ranks > 1 else {})


def sampler(profile: Profile, shape: Shape) -> dict[str, int]:
    """The copy of the policy from which a second card draws rollouts (run.sampler_device): nothing that only an update
    needs."""
    held = {"weights": resident(profile, shape)["weights"]}
    if profile.adapter.rank:
        # Float32 weights, the values that arrive for them, and a 16-bit copy for the engine.
        held["adapter"] = 10 * trained_parameters(profile, shape)
    return held


def trained_parameters(profile: Profile, shape: Shape) -> int:
    if profile.adapter.rank:
        return shape.adapter_parameters(profile.adapter.rank, profile.adapter.targets)
    return shape.parameters


def rollout(profile: Profile, shape: Shape, work: Work) -> dict[str, int]:
    """Cache of all rows at full length, logits for sampling, and activations of the prompts."""
    if profile.sampling.engine == "vllm":
        return {}
    each = _itemsize(profile)
    cache = 2 * each * shape.cache_width
    reading = _reading_bytes(profile, shape)
    overcommit = profile.sampling.overcommit
    # A row that is set back is read again with all that it had drawn.
    longest = work.prompt_tokens + (work.completion_tokens if overcommit > 1 else 0)
    prompts = max(longest, min(work.prompts * work.prompt_tokens, READ_BYTES // reading))
    most_rows = int(overcommit * work.rollout_rows)
    drawing = max(most_rows, min(most_rows, LOOKUP_ROWS) * (1 + profile.sampling.prompt_lookup_tokens))
    return {
        "cache": cache * work.rollout_rows * (work.prompt_tokens + work.completion_tokens),
        "logits": DRAW_BYTES * drawing * shape.vocab_size,
        "prompts": reading * prompts,
        "graph": GRAPH_BYTES,
        "dequantised": _dequantised(profile, shape),
    }


def scoring(profile: Profile, shape: Shape, work: Work) -> dict[str, int]:
    """One pass without gradient, for log-probs only."""
    return {
        "activations": _reading_bytes(profile, shape) * work.tokens,
        "logits": _logit_bytes(shape) * work.head_rows * shape.vocab_size,
        "mask": _mask(work),
    }


def training(profile: Profile, shape: Shape, work: Work) -> dict[str, int]:
    """The peak of an update: in the head, or in a block's backward pass."""
    each, h = _itemsize(profile), shape.hidden_size
    is_full = profile.adapter.rank == 0
    block = _block_bytes(profile, shape)
    kept = _kept_bytes(profile, shape, work.tokens)
    table = shape.vocab_size * h
    head = _logit_bytes(shape) * work.head_rows * shape.vocab_size + (each + 4) * h * work.places
    body = block * work.tokens + 2 * _for_products(profile, shape)
    # Full training: the head's gradient is summed in float32 and rounded, then kept until the embedding's is ready.
    head_and_its_gradient = head + (4 + each) * table * is_full
    body_and_its_gradient = body + _layer_gradients(profile, shape) + each * table * is_full
    return {
        "gradients": 4 * shape.parameters * is_full // profile.run.ranks,
        "block inputs" if profile.model.gradient_checkpointing else "all blocks": kept,
        "block or head": max(head_and_its_gradient, body_and_its_gradient),
        "kept layers": min(
            int(profile.model.keep_gib * GIB), _saved_bytes(profile, shape) * shape.num_hidden_layers * work.tokens
        ),
        "mask": _mask(work),
    } | _exchange(profile, shape)


def _layer_gradients(profile: Profile, shape: Shape) -> int:
    """The gradients of one layer, if all weights are trained by written-out layers: they are added to those of earlier
    passes when the layer is done. Modules hold one matrix at a time, which a block's activations exceed."""
    if profile.adapter.rank or profile.run.ranks > 1 or not profile.model.gradient_checkpointing:
        return 0
    return _itemsize(profile) * max(sum(map(math.prod, shape.linear_of(layer).values())) for layer in shape.layers)


def _logit_bytes(shape: Shape) -> int:
    """Bytes per logit of the rows that the output head computes at a time; a soft cap keeps its slopes."""
    return LOGIT_BYTES + (4 if shape.architecture.logit_cap is not None else 0)


def _exchange(profile: Profile, shape: Shape) -> dict[str, int]:
    """Buffer for exchanging the gradients of one group: the largest layer, or the embedding. An adapter's are exchanged
    after its passes, when there is room."""
    if profile.run.ranks == 1 or profile.adapter.rank:
        return {}
    return {"exchange": 4 * max(shape.embedding_parameters, shape.linear_parameters // shape.num_hidden_layers)}


def _of_validation(profile: Profile, shape: Shape, work: Work) -> int:
    """Bytes of the process that validates a cycle, which trains nothing."""
    held = {**resident(profile, shape), "moments": 0, **rollout(profile, shape, work)}
    return int(FRAGMENTATION * sum(held.values())) + CONTEXT_BYTES


def _of_loading(profile: Profile, shape: Shape) -> int:
    """Bytes of the process that loads for the next cycle while one trains: never beside one that validates. It has
    compared its model with plain transformers, on some tokens, and waits."""
    held = {**resident(profile, shape), "dequantised": _dequantised(profile, shape), "graph": GRAPH_BYTES}
    return int(FRAGMENTATION * sum(held.values())) + CONTEXT_BYTES


def _of_vllm(profile: Profile, card_bytes: int) -> dict[str, int]:
    """Bytes that vLLM holds outside the allocator, by phase."""
    if profile.sampling.engine != "vllm":
        return {}
    awake = int(profile.vllm.gpu_memory_utilization * card_bytes)
    asleep = ASLEEP_BYTES if profile.vllm.sleep else awake
    return {"rollout": awake, "score": asleep, "train": asleep}


def _itemsize(profile: Profile) -> int:
    return 2 if profile.model.dtype == "bfloat16" else 4


def _reading_bytes(profile: Profile, shape: Shape) -> int:
    """Bytes per token in one block, without gradient."""
    f, h, k = shape.intermediate_size, shape.hidden_size, shape.key_width
    is_wide = has_peft(profile) and "down_proj" in profile.adapter.targets
    return _itemsize(profile) * (4 * f + 6 * h + 4 * k) + 4 * f * is_wide


def _saved_bytes(profile: Profile, shape: Shape) -> int:
    """Bytes per token in one block that saves tensors for its backward pass."""
    f, h, k = shape.intermediate_size, shape.hidden_size, shape.key_width
    return _itemsize(profile) * (4 * f + 9 * h + 4 * k) + _adapter_inputs(profile, shape)


def _block_bytes(profile: Profile, shape: Shape) -> int:
    """Bytes per token in the block running backward: gradients, plus saved tensors if they are recomputed."""
    f, h, k = shape.intermediate_size, shape.hidden_size, shape.key_width
    each = _itemsize(profile)
    if profile.model.gradient_checkpointing:
        of_h = 13 if has_peft(profile) else 9
        return each * (7 * f + of_h * h + 7 * k) + _adapter_inputs(profile, shape) + _rounded_bytes(profile, shape)
    return each * (3 * f + 4 * h + 3 * k)


def _adapter_inputs(profile: Profile, shape: Shape) -> int:
    """Bytes per token of float32 inputs of the MLP's adapters; those of the attention are among the 13 of h."""
    if not has_peft(profile):
        return 0
    targets = set(own_targets(shape.architecture, profile.adapter.targets)) - ATTENTION - {"qkv_proj"}
    return sum(4 * inputs for name, (inputs, _) in shape.linear.items() if name in targets)


def has_peft(profile: Profile) -> bool:
    """Whether peft computes the adapter, which keeps a float32 copy of each input."""
    return profile.adapter.rank > 0 and profile.adapter.implementation == "peft"


def _dequantised(profile: Profile, shape: Shape) -> int:
    """The largest dequantised matrix of a block, if weights are in 4 bits."""
    if profile.model.quantization != "nf4":
        return 0
    return _itemsize(profile) * max(inputs * outputs for inputs, outputs in shape.linear.values())


def _for_products(profile: Profile, shape: Shape) -> int:
    """The largest matrix of a block as an update multiplies with it, where that is not the weight itself: dequantised,
    or rounded to 8 bits."""
    if not profile.model.fp8:
        return _dequantised(profile, shape)
    return max(inputs * outputs for inputs, outputs in shape.linear.values())


def _rounded_bytes(profile: Profile, shape: Shape) -> int:
    """Bytes per token of a product in 8 bits: its other factor, and one more gradient of an input, which is added to
    another only afterwards."""
    if not profile.model.fp8:
        return 0
    return max(max(pair) for pair in shape.linear.values()) + _itemsize(profile) * shape.hidden_size


def _mask(work: Work) -> int:
    """The dense mask for PyTorch's attention: a boolean and a 16-bit value per pair of tokens in a row.

    Long rows are masked in parts. Our own attention needs no mask.
    """
    return 3 * work.tokens * min(work.width, MASKED_QUERIES) if work.has_dense_mask else 0
