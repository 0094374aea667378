"""How much GPU memory a profile needs at its largest shapes: a closed form, part by part and phase by phase. (pure)

All figures are bytes of PyTorch's allocator, but `device`, which adds fragmentation and the context of driver and
kernels. Symbols: h hidden width, f MLP width, k width of keys, L blocks, V vocabulary, T tokens of a micro-batch.

Activations of one block are counted from its modules: 7 tensors of f (gate, up, their product and its activation, and
gradients of three), 9 of h, 7 of k. Adapters through peft keep a float32 copy of their input besides: for the four of
the attention that is as much as 4 of h more, so 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.passes import is_scored
from profiles.schema import Profile
from profiles.shapes import Shape

GIB = 1 << 30
NF4_BYTES = 0.5 + 1 / 64 + 4 / 16384
"""Of a weight: 4 bits, a scale of 8 bits for 64 of them, and one of 32 bits for 256 scales."""
MAX_LOGITS = 1 << 24
"""Logits at one time, 64 MiB in float32, where more would cost memory."""
MOST_HEAD_ROWS = 1024
"""Rows of logits beyond which a chunk is no faster."""
LOGIT_BYTES = 10
"""Of one logit of a chunk: float32, its gradient, and that in 16 bits."""
DRAW_BYTES = 16
"""Of one logit that a rollout draws from: 16 bits, and three copies in float32."""
GRAPH_BYTES = 60 << 20
"""Pool of the captured decoding step."""
READ_BYTES = 512 << 20
"""Prompts are read in parts of about so many bytes of activations."""
ASLEEP_BYTES = GIB // 2
"""What vLLM keeps while it sleeps."""
NCCL_BYTES = GIB // 2
"""What exchanging with other GPUs takes outside the allocator: some 0.4 to 0.8 GiB."""
MASKED_QUERIES = 2048
"""Queries for which PyTorch's attention gets a mask at a time: for all of a row of 32,768 it would be 1 GiB."""
FRAGMENTATION = 1.08
CONTEXT_BYTES = int(0.45 * GIB)


@dataclass(frozen=True)
class Work:
    """The largest shapes of a step."""

    prompt_tokens: int
    completion_tokens: int
    rollout_rows: int
    """Rollouts that decode side by side."""
    prompts: int
    """Different prompts among them."""
    tokens: int
    """Of one forward and backward pass."""
    width: int
    """Of them in one row."""
    places: int
    """Of them with a loss."""
    head_rows: int
    """Places of which logits exist at one time."""
    is_scored: bool = True
    """Whether the trainer reads rollouts once more, without gradient, before the update."""
    has_dense_mask: bool = True
    """Whether attention gets a matrix that says which token sees which."""


@dataclass(frozen=True)
class Demand:
    """parts: phase -> what it holds at its peak -> bytes. beside: bytes of the GPU that are not the allocator's own."""

    parts: Mapping[str, Mapping[str, int]]
    beside: Mapping[str, int]

    @property
    def phases(self) -> dict[str, int]:
        """Highest allocated bytes of each phase."""
        return {phase: sum(parts.values()) for phase, parts in self.parts.items()}

    @property
    def devices(self) -> dict[str, int]:
        """Bytes of the card in each phase."""
        return {
            phase: int(FRAGMENTATION * held) + CONTEXT_BYTES + self.beside.get(phase, 0)
            for phase, held in self.phases.items()
        }

    @property
    def worst(self) -> str:
        """The phase that takes most of the card."""
        devices = self.devices
        return max(devices, key=devices.__getitem__)

    @property
    def device(self) -> int:
        """Most bytes of the card."""
        return self.devices[self.worst]


def work_of(profile: Profile, shape: Shape) -> Work:
    """The largest shapes of a step: every rollout has full length, in self-play also a prompt of its own."""
    sampling, optimizer = profile.sampling, profile.optimizer
    longest, completion = sampling.max_prompt_tokens, sampling.max_completion_tokens
    # Of one GPU: several divide a step's rollouts.
    rollouts = -(-rollouts_of(profile) // profile.run.gpus)
    sequence, group = longest + completion, group_of(profile)
    rows = min(sampling.max_rows, rollouts)
    micro_batch = min(optimizer.micro_batch_size, rollouts)
    # A prompt with some of its completions is one unit; it is packed whole also where it has more than a micro-batch.
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
    """Most tokens of all rows with their padding, and of a row, of `count` sequences of their own side by side."""
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
    """Most rollouts of one step; in self-play proposals, and the solver's answers to all of them."""
    if is_grpo(profile):
        return profile.grpo.groups_per_step * profile.grpo.group_size
    azr = profile.azr
    own_batch = 0 if azr.train_on_estimates else (azr.solve_batch or azr.proposals_per_task)
    return len(azr.tasks) * (azr.proposals_per_task * (1 + azr.group_size) + own_batch)


def demand_of(profile: Profile, shape: Shape, work: Work | None = None, *, card_bytes: int = 0) -> Demand:
    """What each phase needs. card_bytes: of the card, of which vLLM takes a share; 0: that share is left out."""
    work = work or work_of(profile, shape)
    held = resident(profile, shape)
    parts = {
        "load": held,
        "rollout": held | rollout(profile, shape, work),
        "score": held | scoring(profile, shape, work),
        "train": held | training(profile, shape, work),
    }
    if not work.is_scored:
        del parts["score"]
    beside = dict.fromkeys(parts, NCCL_BYTES) if profile.run.gpus > 1 else _of_vllm(profile, card_bytes)
    return Demand(parts, beside)


def head_rows_of(profile: Profile, shape: Shape) -> int:
    """Rows of logits that the output head makes at one time: as many as fit into what a block takes going backward.

    Every chunk reads the whole head, and takes a hundred launches.
    """
    return work_of(profile, shape).head_rows


def _head_rows(profile: Profile, shape: Shape, tokens: int, places: int) -> int:
    each, row = _itemsize(profile), LOGIT_BYTES * shape.vocab_size
    fitting = 0
    if profile.adapter.rank:  # else a head that learns takes more than a block anyway
        body = _block_bytes(profile, shape) * tokens + 2 * _dequantised(profile, shape)
        learning = (body - (each + 4) * shape.hidden_size * places) // row
        scoring = (body + _kept_bytes(profile, shape, tokens) - _reading_bytes(profile, shape) * tokens) // row
        fitting = min(learning, scoring, MOST_HEAD_ROWS)
    return min(places, max(1, MAX_LOGITS // shape.vocab_size, fitting))


def _kept_bytes(profile: Profile, shape: Shape, tokens: int) -> int:
    """What all blocks keep for the way back: their inputs alone with recomputation, else what each has saved."""
    input_bytes = _itemsize(profile) * shape.hidden_size
    saved = input_bytes if profile.model.gradient_checkpointing else _saved_bytes(profile, shape)
    return shape.num_hidden_layers * saved * tokens


def resident(profile: Profile, shape: Shape) -> dict[str, int]:
    """What stays from phase to phase: weights, and what the optimiser keeps of those that are trained.

    With several GPUs, on each: what is frozen is whole; what is trained has its shard, and is whole besides where it is
    used. Of all weights that is so in rollouts; in the update of a layer at a time, so there it is an upper bound.
    """
    gpus = profile.run.gpus
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
    held = {"weights": weights, "moments": moments * trained // gpus}
    if profile.adapter.rank:
        # Float32, its gradient, and a copy in 16 bits for the engine.
        held["adapter"] = 10 * trained
        return held | ({"shards": 8 * trained // gpus} if gpus > 1 else {})  # of it and of its gradient
    has_copy = each == 2 and not profile.optimizer.offload
    held["copies"] = 4 * trained // gpus if has_copy else 0
    return held | ({"shards": each * trained // gpus} if gpus > 1 else {})


def trained_parameters(profile: Profile, shape: Shape) -> int:
    if profile.adapter.rank:
        return shape.adapter_parameters(profile.adapter.rank, profile.adapter.targets)
    return shape.parameters


def rollout(profile: Profile, shape: Shape, work: Work) -> dict[str, int]:
    """Cache of all rows at full length, logits to draw from, activations of the prompts that are read."""
    if profile.sampling.engine == "vllm":
        return {}
    each = _itemsize(profile)
    cache = 2 * each * shape.num_hidden_layers * shape.key_width
    reading = _reading_bytes(profile, shape)
    prompts = max(work.prompt_tokens, min(work.prompts * work.prompt_tokens, READ_BYTES // reading))
    return {
        "cache": cache * work.rollout_rows * (work.prompt_tokens + work.completion_tokens),
        "logits": DRAW_BYTES * work.rollout_rows * shape.vocab_size,
        "prompts": reading * prompts,
        "graph": GRAPH_BYTES,
        "dequantised": _dequantised(profile, shape),
    }


def scoring(profile: Profile, shape: Shape, work: Work) -> dict[str, int]:
    """One pass without gradient, for log-probs alone."""
    return {
        "activations": _reading_bytes(profile, shape) * work.tokens,
        "logits": LOGIT_BYTES * work.head_rows * shape.vocab_size,
        "mask": _mask(work),
    }


def training(profile: Profile, shape: Shape, work: Work) -> dict[str, int]:
    """The worst moment of an update: in the head, in a block going backward, or after the last one."""
    each, h = _itemsize(profile), shape.hidden_size
    is_full = profile.adapter.rank == 0
    block = _block_bytes(profile, shape)
    kept = _kept_bytes(profile, shape, work.tokens)
    table = shape.vocab_size * h
    head = LOGIT_BYTES * work.head_rows * shape.vocab_size + (each + 4) * h * work.places
    body = block * work.tokens + 2 * _dequantised(profile, shape)
    # All weights: the head's gradient is summed in float32 and rounded, then waits for the embedding's.
    head_and_its_gradient = head + (4 + each) * table * is_full
    body_and_its_gradient = body + each * table * is_full
    return {
        "gradients": 4 * shape.parameters * is_full // profile.run.gpus,
        "block inputs" if profile.model.gradient_checkpointing else "all blocks": kept,
        "block or head": max(head_and_its_gradient, body_and_its_gradient),
        "mask": _mask(work),
    } | _exchange(profile, shape)


def _exchange(profile: Profile, shape: Shape) -> dict[str, int]:
    """Buffer that gradients of one group are exchanged through: a whole adapter, or the largest layer, or embedding."""
    if profile.run.gpus == 1:
        return {}
    if profile.adapter.rank:
        return {"exchange": 4 * trained_parameters(profile, shape)}
    return {"exchange": 4 * max(shape.embedding_parameters, shape.linear_parameters // shape.num_hidden_layers)}


def _of_vllm(profile: Profile, card_bytes: int) -> dict[str, int]:
    """Bytes that vLLM holds outside the allocator, awake and asleep."""
    if profile.sampling.engine != "vllm":
        return {}
    awake = int(profile.vllm.gpu_memory_utilization * card_bytes)
    asleep = ASLEEP_BYTES if profile.vllm.sleep else awake
    return {"rollout": awake, "score": asleep, "train": asleep}


def _itemsize(profile: Profile) -> int:
    return 2 if profile.model.dtype == "bfloat16" else 4


def _reading_bytes(profile: Profile, shape: Shape) -> int:
    """Of one token in one block, without gradient."""
    f, h, k = shape.intermediate_size, shape.hidden_size, shape.key_width
    is_wide = has_peft(profile) and "down_proj" in profile.adapter.targets
    return _itemsize(profile) * (4 * f + 6 * h + 4 * k) + 4 * f * is_wide


def _saved_bytes(profile: Profile, shape: Shape) -> int:
    """Of one token in one block that keeps what its backward pass needs."""
    f, h, k = shape.intermediate_size, shape.hidden_size, shape.key_width
    return _itemsize(profile) * (4 * f + 9 * h + 4 * k) + _adapter_inputs(profile, shape)


def _block_bytes(profile: Profile, shape: Shape) -> int:
    """Of one token in the block that goes backward: saved tensors (again, where they are recomputed) and gradients."""
    f, h, k = shape.intermediate_size, shape.hidden_size, shape.key_width
    each = _itemsize(profile)
    if profile.model.gradient_checkpointing:
        of_h = 13 if has_peft(profile) else 9
        return each * (7 * f + of_h * h + 7 * k) + _adapter_inputs(profile, shape)
    return each * (3 * f + 4 * h + 3 * k)


def _adapter_inputs(profile: Profile, shape: Shape) -> int:
    """Float32 inputs of the MLP's adapters, of one token; those of the attention are among the 13 of h."""
    if not has_peft(profile):
        return 0
    linear = shape.linear
    return sum(4 * linear[name][0] for name in ("gate_proj", "up_proj", "down_proj") if name in profile.adapter.targets)


def has_peft(profile: Profile) -> bool:
    """Whether peft computes with the adapter: in float32, of which it keeps a copy of each input."""
    return profile.adapter.rank > 0 and profile.adapter.implementation == "peft"


def _dequantised(profile: Profile, shape: Shape) -> int:
    """The largest matrix of a block as the product sees it, where it is kept in 4 bits."""
    if profile.model.quantization != "nf4":
        return 0
    return _itemsize(profile) * max(inputs * outputs for inputs, outputs in shape.linear.values())


def _mask(work: Work) -> int:
    """True or false for each pair of a row's tokens, and the same in 16 bits for PyTorch's attention, not for ours.
    For a part of the tokens at a time in a long row."""
    return 3 * work.tokens * min(work.width, MASKED_QUERIES) if work.has_dense_mask else 0
