"""GPU memory of full fine-tuning that is sharded over many GPUs: a closed form, part by part and phase by phase. (pure)

For engines that are not ours: ZeRO-3 (open-instruct) and FSDP2 (verl). `profiles/footprint.py` is for our own. Symbols:
P parameters, N shards, L blocks, h hidden width, f MLP width, k width of keys, V vocabulary, T tokens of a pass. All
figures are bytes of one GPU. docs/cluster-memory.md has the formulas as a table, and what they give for a 32B model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiles.footprint import ASLEEP_BYTES, GIB, LOGIT_BYTES, Demand
from profiles.shapes import Shape

FRAGMENTATION = 1.05
"""With expandable segments."""
FIXED_BYTES = int(1.65 * GIB)
"""Context .6, cuBLAS .25, NCCL .8 GiB: the upper end of each."""
MAX_LIVE = 1_000_000_000
PREFETCH = 50_000_000
REDUCE_BUCKET = 500_000_000
"""DeepSpeed's defaults, in parameters: what ZeRO-3 may hold gathered, read ahead, and reduce at a time."""
BLOCK_SHARE = 1.5
"""Of one block's activations that exist at a time while it goes backward: they are computed again, then left."""
ENTROPY_LOGIT_BYTES = 24
"""Per logit of a pass whose loss has verl's entropy: measured 23.2 with rows that are padded (docs/verl.md)."""
ENGINE_BYTES = 3 * GIB
"""What vLLM needs beside weights and cache: its profile run and workspace, the upper end."""


@dataclass(frozen=True)
class Sharding:
    """How one job trains all weights of a model. Sizes are of one GPU that trains."""

    engine: Literal["zero3", "fsdp2"]
    shards: int
    """GPUs over which weights, gradients and moments are divided."""
    tokens: int
    """Of one forward and backward pass."""
    logit_rows: int = 0
    """Positions whose logits exist at a time; 0: all of a pass."""
    trained: int | None = None
    """Parameters that learn; None: all of them."""
    is_checkpointed: bool = True
    gathers_whole: bool = False
    """Weights are handed to the rollout engines whole from every GPU that trains, not tensor by tensor."""
    secondary: int = 1
    """ZeRO++: GPUs that share one more copy of the weights (`deepspeed_zpg`); 1: there is none."""
    has_reference: bool = False
    has_entropy: bool = False
    """The loss has the policy's entropy."""
    offloads_optimizer: bool = False
    offloads_weights: bool = False
    rollout_bytes: int = 0
    """Of the card, that a rollout engine on the same GPU takes while it is awake; 0: rollouts are drawn elsewhere."""


def demand_of(shape: Shape, job: Sharding) -> Demand:
    """What each phase needs on one GPU that trains."""
    held = state(shape, job)
    working = held | _in_use(shape, job)
    parts = {
        "load": held,
        "first sync": held | handing_over(shape, job),
        "log-probs": working | scoring(shape, job),
        "train": working | training(shape, job),
        "sync": held | _secondary(shape, job) | handing_over(shape, job),
    }
    if not _secondary(shape, job):
        del parts["first sync"]  # the later ones need as much
    if not job.rollout_bytes:
        return Demand(parts, {}, FRAGMENTATION, FIXED_BYTES)
    parts["rollout"] = held
    beside = dict.fromkeys(parts, ASLEEP_BYTES) | {"sync": job.rollout_bytes, "rollout": job.rollout_bytes}
    return Demand(parts, beside, FRAGMENTATION, FIXED_BYTES)


def state(shape: Shape, job: Sharding) -> dict[str, int]:
    """What stays from phase to phase. ZeRO-3 computes with 16 bits and keeps a float32 copy of what learns, FSDP2 has
    the float32 weights alone; both sum gradients in float32."""
    weights, trained = shape.parameters, shape.parameters if job.trained is None else job.trained
    held = {
        "weights": (2 if job.engine == "zero3" else 4) * weights * (not job.offloads_weights),
        "gradients": 4 * trained,
        "master": 4 * trained * (job.engine == "zero3" and not job.offloads_optimizer),
        "moments": 8 * trained * (not job.offloads_optimizer),
        "reference": 2 * weights * job.has_reference,
    }
    return {name: size // job.shards for name, size in held.items() if size}


def total_state(shape: Shape) -> tuple[int, int]:
    """State of full fine-tuning on all GPUs together, with gradients in 16 and in 32 bits."""
    return 16 * shape.parameters, 18 * shape.parameters


def _in_use(shape: Shape, job: Sharding) -> dict[str, int]:
    """Layers that are gathered while a pass goes over them."""
    if job.engine == "zero3":
        gathered = 2 * (MAX_LIVE + PREFETCH) + 4 * REDUCE_BUCKET
    else:  # this layer and the next in 16 bits, gradients of one in float32
        gathered = 8 * max(shape.linear_parameters // shape.num_hidden_layers, shape.vocab_size * shape.hidden_size)
    return {"gathered": gathered} | _secondary(shape, job)


def _secondary(shape: Shape, job: Sharding) -> dict[str, int]:
    """It exists from the first pass on."""
    return {"secondary copy": 2 * shape.parameters // job.secondary} if job.secondary > 1 else {}


def training(shape: Shape, job: Sharding) -> dict[str, int]:
    """What a backward pass needs besides: inputs of all blocks, one block in full, logits."""
    block = _block(shape, job.tokens)
    layers, inputs = shape.num_hidden_layers, 2 * shape.num_hidden_layers * shape.hidden_size * job.tokens
    activations = inputs + int(BLOCK_SHARE * block) if job.is_checkpointed else layers * block
    each = ENTROPY_LOGIT_BYTES if job.has_entropy else LOGIT_BYTES
    return {"activations": activations, "logits": each * shape.vocab_size * _rows(job)}


def scoring(shape: Shape, job: Sharding) -> dict[str, int]:
    """A pass without gradient: one block, and half of the bytes of logits. verl's also finds the entropy, from float32
    probabilities and their product with the logits, so that it takes as many bytes as with a gradient."""
    each = LOGIT_BYTES if job.engine == "fsdp2" else LOGIT_BYTES // 2
    return {"activations": _block(shape, job.tokens), "logits": each * shape.vocab_size * _rows(job)}


def handing_over(shape: Shape, job: Sharding) -> dict[str, int]:
    """Weights on their way to the rollout engines: all of them, or the largest tensor and a copy of it."""
    if job.gathers_whole:
        return {"whole weights": 2 * shape.parameters}
    return {"largest tensor": 2 * 2 * shape.vocab_size * shape.hidden_size}


def _block(shape: Shape, tokens: int) -> int:
    """Activations of one block, with an attention that makes no matrix of scores."""
    return tokens * (22 * shape.hidden_size + 4 * shape.key_width + 8 * shape.intermediate_size)


def _rows(job: Sharding) -> int:
    return min(job.logit_rows or job.tokens, job.tokens)


def cache_tokens(shape: Shape, *, tensor_parallel: int, share: float, card_bytes: int) -> int:
    """Tokens of rollouts for which an engine of so many GPUs has room; below 0: its weights alone are too large.

    share: of the card (`gpu_memory_utilization`). Windows of attention are not counted: with them there is more room.
    """
    free = share * card_bytes - 2 * shape.parameters / tensor_parallel - ENGINE_BYTES
    return int(free * tensor_parallel / (4 * shape.cache_width))


def divides_heads(shape: Shape, tensor_parallel: int) -> bool:
    """Whether an engine can have so many GPUs: each gets as many heads, and key heads are not repeated."""
    return shape.num_attention_heads % tensor_parallel == shape.num_key_value_heads % tensor_parallel == 0
