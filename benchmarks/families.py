"""Captured decode steps and training passes of each family's real shape on a GPU, beside Qwen2's by bytes read.

Weights are random, in NF4, with an adapter of rank 16 on all layers. Each shape has eight layers and its output head;
with --whole all its layers, of which the head is then a smaller share. A step reads all weights, the adapter and the
caches of its rows once; "us/GB" is its time for each GB of these, and "of Qwen2" that of Qwen2.5-1.5B's. A training
pass is one row of a prompt of 128 tokens with four completions of 512: forward and backward through the layers, written
out, beside the model's own modules with gradient checkpointing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

FEW_LAYERS, PROMPT, COMPLETION, ANSWERS = 8, 128, 512, 4
_SLIDING = {"sliding_window": 512, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5}
SHAPES: dict[str, tuple[str, tuple[int, int, int, int, int, int], int, dict[str, Any]]] = {
    "Qwen2.5-1.5B": ("qwen2", (1536, 8960, 12, 2, 128, 28), 151_936, {}),
    "Qwen3-0.6B": ("qwen3", (1024, 3072, 16, 8, 128, 28), 151_936, {}),
    "Qwen3-1.7B": ("qwen3", (2048, 6144, 16, 8, 128, 28), 151_936, {}),
    "Qwen3-4B": ("qwen3", (2560, 9728, 32, 8, 128, 36), 151_936, {}),
    "Llama-3.2-1B": ("llama", (2048, 8192, 32, 8, 64, 16), 128_256, {}),
    "Llama-3.2-3B": ("llama", (3072, 8192, 24, 8, 128, 28), 128_256, {}),
    "Gemma-3-1B": ("gemma3_text", (1152, 6912, 4, 1, 256, 26), 262_144, {**_SLIDING, "query_pre_attn_scalar": 256}),
    "Gemma-2-2B": ("gemma2", (2304, 9216, 8, 4, 256, 26), 256_000, {"sliding_window": 4096}),
    "SmolLM3-3B": ("smollm3", (2048, 11_008, 16, 4, 128, 36), 128_256, {"no_rope_layers": [1, 1, 1, 0] * 9}),
    "OLMo-2-1B": ("olmo2", (2048, 8192, 16, 16, 128, 16), 100_352, {}),
    "Phi-4-mini": (
        "phi3",
        (3072, 8192, 24, 8, 128, 32),
        200_064,
        {
            "sliding_window": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
        },
    ),
    "Ministral-3-3B": ("ministral3", (3072, 9216, 32, 8, 128, 26), 131_072, {}),
    "Granite-3.3-2B": ("granite", (2048, 8192, 32, 8, 64, 40), 49_159, {"residual_multiplier": 0.22}),
    "GLM-4-9B": (
        "glm4",
        (4096, 13_696, 32, 2, 128, 40),
        151_552,
        {"partial_rotary_factor": 0.5, "attention_bias": True},
    ),
    "EXAONE-4-1.2B": (
        "exaone4",
        (2048, 4096, 32, 8, 64, 30),
        102_400,
        {"sliding_window": None, "layer_types": ["full_attention"] * 30},
    ),
    "Apertus-8B": ("apertus", (4096, 21_504, 32, 8, 128, 32), 131_072, {}),
}
"""Model type; hidden and intermediate sizes, heads of queries and keys, width of a head, layers; vocabulary; what
else."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks families", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--whole", action="store_true", help=f"all layers of each shape in place of {FEW_LAYERS}")
    args = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        print("needs a GPU")
        return 2
    depth = "all" if args.whole else FEW_LAYERS
    print(f"reproduce: python -m benchmarks families {' '.join(arguments)}")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {depth} layers, NF4, adapters of rank 16\n")
    steps = "".join(f"{f'{rows} rows, us':>13}{'us/GB':>8}{'of Qwen2':>10}" for rows in args.rows)
    print(f"{'':<16}{steps}{'pass, ms':>10}{'modules':>9}")
    first: list[float] = []
    for name in dict.fromkeys([next(iter(SHAPES)), *args.shapes]):
        model = model_of(name, is_whole=args.whole)
        found = [decoded(model, rows) for rows in args.rows]
        per_gb = [time / gb for time, gb in found]
        first = first or per_gb
        parts = zip(found, per_gb, first, strict=True)
        told = "".join(f"{time:>13.0f}{each:>8.0f}{each / base:>10.2f}" for (time, _), each, base in parts)
        ours, theirs = passes(model)
        print(f"{name:<16}{told}{ours:>10.2f}{theirs:>9.2f}", flush=True)
        del model
        torch.cuda.empty_cache()
    return 0


def model_of(name: str, *, is_whole: bool) -> Any:
    import torch
    from bitsandbytes.nn import modules as four_bits
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from profiles.schema import Adapter
    from workers.models import attention, fast_graphs, fused_layers, lora
    from workers.models.adapters import linear_names

    kind, (hidden, inner, heads, key_heads, width, depth), vocabulary, changes = SHAPES[name]
    layers = depth if is_whole else FEW_LAYERS
    changes = {key: value[:layers] if isinstance(value, list) else value for key, value in changes.items()}
    config = CONFIG_MAPPING[kind](
        **{
            "vocab_size": vocabulary,
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_attention_heads": heads,
            "num_key_value_heads": key_heads,
            "head_dim": width,
            "tie_word_embeddings": True,
            "eos_token_id": 1,
            "pad_token_id": 0,
            "bos_token_id": None,
            "max_position_embeddings": 8192,
            **changes,
        }
    )
    make: Any = AutoModelForCausalLM.from_config
    make_layer: Any = four_bits.Linear4bit
    make_weight: Any = four_bits.Params4bit
    with torch.device("cuda"):
        model = make(config, dtype=torch.bfloat16).eval().requires_grad_(False)
    for path, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and path != "lm_head":
            made = make_layer(
                module.in_features,
                module.out_features,
                bias=module.bias is not None,
                compute_dtype=torch.bfloat16,
                compress_statistics=True,
                quant_type="nf4",
                device="meta",
            )
            weight = make_weight(module.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True)
            made.weight, made.bias = weight.to("cuda"), module.bias
            parent, _, last = path.rpartition(".")
            setattr(model.get_submodule(parent), last, made)
    lora.inject(model, Adapter(rank=16, alpha=32.0, targets=tuple(linear_names(model))), seed=0)
    attention.enable(model)
    fused_layers.enable(model)
    fast_graphs.enable(model, with_graphs=False)
    return model


def decoded(model: Any, rows: int) -> tuple[float, float]:
    """Microseconds of a captured step in the middle of completions, and the GB that it reads."""
    import torch

    from workers.rollout.decoder import Decoder
    from workers.rollout.engine import Sampling
    from workers.rollout.graph.capture import Steps
    from workers.rollout.graph.engine import operations_for
    from workers.rollout.graph.state import Shape, State
    from workers.rollout.graph.step_weights import Weights

    length, place = PROMPT + COMPLETION, PROMPT + COMPLETION // 2
    with torch.inference_mode():
        weights, decoder = Weights(model), Decoder(model)
        weights.refresh()
        decoder.grow_rope(length)
        state = State(Shape(rows, length, COMPLETION), weights.caches, torch.bfloat16, model.device)
        state.set_sampling(Sampling(max_new_tokens=COMPLETION), [])
        slots = torch.arange(rows, device="cuda")
        state.begin(slots, slots, torch.full_like(slots, place), torch.rand(rows, COMPLETION, device="cuda"))
        step = Steps(weights, state, decoder.ropes, operations_for(model.device))(rows)
        time = median(step, 60)
    tensors = [weights.head]
    for each in weights.projections():
        tensors += [one for matrix in each.matrices for one in (matrix.data, matrix.absmax) if one is not None]
        tensors += [] if each.adapters is None else [each.adapters.a, each.adapters.b]
    cached = sum(heads * width for heads, width in weights.caches) * 2 * 2 * rows * place
    return time, (sum(one.nbytes for one in tensors) + cached) / 1e9


def passes(model: Any) -> tuple[float, float]:
    """Milliseconds of a training pass by written-out layers, and by the model's own modules."""
    from workers.models.fast_stack import hidden_of
    from workers.models.packing import Unit, pack

    unit = Unit((5,) * PROMPT, ((6,) * COMPLETION,) * ANSWERS, tuple(range(ANSWERS)))
    one = pack([[unit]]).to(model.device)
    runner = model.fast_runner

    def of(hidden: Any) -> None:
        hidden.float().sum().backward()

    def ours() -> None:
        hidden = hidden_of(model, one.ids, one.positions, one.segments)
        assert hidden is not None
        of(hidden)

    def theirs() -> None:
        from workers.models.attention import mask_for

        mask = mask_for(model, one)
        found = model.model(input_ids=one.ids, position_ids=one.positions, attention_mask=mask, use_cache=False)
        of(found.last_hidden_state)

    first = median(ours, 6) / 1e3
    model.fast_runner = None
    model.train()  # checkpointing asks for it; no layer has a dropout
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    second = median(theirs, 6) / 1e3
    model.fast_runner = runner
    return first, second


def median(run: Callable[[], Any], repeats: int) -> float:
    """Microseconds, after three calls that are not timed."""
    import torch

    event: Any = torch.cuda.Event
    pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(repeats)]
    for _ in range(3):
        run()
    for begin, end in pairs:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) for begin, end in pairs)
    return 1e3 * float(times[len(times) // 2])
