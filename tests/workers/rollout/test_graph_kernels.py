"""The kernels of the captured decode step against plain PyTorch, at the real shapes; only where there is a GPU."""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from profiles.schema import Adapter
from tests.workers.rollout.models import direct_log_probs
from workers.head_products import times_head
from workers.models import attention, lora
from workers.models.adapters import linear_names
from workers.rollout.decoder import Decoder
from workers.rollout.engine import Request, Sampling
from workers.rollout.graph.capture import Steps
from workers.rollout.graph.cuts import MATRICES
from workers.rollout.graph.state import Shape, State
from workers.rollout.graph.step import TorchOperations, decode_step
from workers.rollout.graph.step_weights import Matrix, Projection, Sum, Weights

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.timeout(300),
]
SHAPES = {
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14},
    "3b": {"hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16},
}
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*QKVO, "gate_proj", "up_proj", "down_proj")
ROWS = (1, 2, 3, 4, 7, 8, 13, 16, 24, 32, 33, 64, 100)
TOLERANCE = 2e-2
"""Of the norm of the difference by that of the result: a few roundings to bfloat16, one after another."""


def make_model(shape: str, *, nf4: bool, targets: tuple[str, ...], layers: int = 1) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=5000, num_hidden_layers=layers, num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=1,
        pad_token_id=0, bos_token_id=None, max_position_embeddings=1024, **SHAPES[shape],
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16).eval().requires_grad_(False)
    return prepared(model, nf4=nf4, targets=targets)


def prepared(model: Any, *, nf4: bool, targets: tuple[str, ...]) -> Any:
    """The model with its layers in 4 bits, and with adapters that add something."""
    for name, module in list(model.named_modules()):
        if nf4 and isinstance(module, torch.nn.Linear) and name != "lm_head":
            bnb = pytest.importorskip("bitsandbytes")
            quantized = bnb.nn.Linear4bit(
                module.in_features, module.out_features, bias=module.bias is not None, compute_dtype=torch.bfloat16,
                compress_statistics=True, quant_type="nf4",
            )  # fmt: skip
            quantized.load_state_dict(module.cpu().state_dict())
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, quantized.to("cuda"))
    if targets:
        lora.inject(model, Adapter(rank=16, alpha=32.0, targets=targets), seed=0)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0, 0.02)
    return model


WINDOW = 32
_MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_TWO_ROPES = {"rope_parameters": {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}}  # fmt: skip
OTHERS: dict[str, tuple[str, tuple[int, int, int, int, int], dict[str, Any]]] = {
    "qwen3-1.7b": ("qwen3", (2048, 6144, 16, 8, 128), {}),
    "llama-3.2-1b": ("llama", (2048, 8192, 32, 8, 64), {}),
    "mistral": ("mistral", (1024, 3072, 32, 8, 128), {"sliding_window": WINDOW}),
    "ministral3": (
        "ministral3",
        (3072, 9216, 32, 8, 128),
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 16.0,
                "original_max_position_embeddings": 16,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            }
        },
    ),
    "smollm3-3b": ("smollm3", (2048, 11008, 16, 4, 128), {"no_rope_layers": [1, 0]}),
    "granite-2b": (
        "granite",
        (2048, 8192, 32, 8, 64),
        {
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.0156,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "olmo2-1b": ("olmo2", (2048, 8192, 16, 16, 128), {}),
    "olmo3": ("olmo3", (1024, 3072, 8, 8, 128), {**_MIXED, "rope_parameters": _TWO_ROPES["rope_parameters"]}),
    "phi-4-mini": (
        "phi3",
        (3072, 8192, 24, 8, 128),
        {
            "sliding_window": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
        },
    ),
    "gemma2-2b": ("gemma2", (2304, 9216, 8, 4, 256), {**_MIXED, "query_pre_attn_scalar": 256}),
    "gemma3-1b": ("gemma3_text", (1152, 6912, 4, 1, 256), {**_MIXED, **_TWO_ROPES, "query_pre_attn_scalar": 256}),
    "gemma4": (
        "gemma4_text",
        (1536, 6144, 8, 1, 128),
        {
            **_MIXED,
            "global_head_dim": 256,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "glm4": ("glm4", (1024, 4096, 16, 2, 64), {"partial_rotary_factor": 0.5, "attention_bias": True}),
    "exaone4-1.2b": ("exaone4", (2048, 4096, 32, 8, 64), {**_MIXED, "sliding_window_pattern": 2}),
    "apertus": ("apertus", (1024, 5376, 8, 2, 128), {}),
    "heads of 72, one key head": ("qwen3", (576, 1024, 8, 1, 72), {"attention_bias": True}),
    "heads of 40": ("llama", (320, 640, 8, 2, 40), {"mlp_bias": True}),
}
"""Name -> model type; hidden and intermediate sizes, heads of queries and of keys, width of a head; what else."""


def other_model(name: str, *, nf4: bool, has_adapters: bool, layers: int = 2) -> Any:
    kind, (hidden, inner, heads, key_heads, dim), changes = OTHERS[name]
    of_each = {field: changes[field] * (layers // 2) for field in ("layer_types", "no_rope_layers") if field in changes}
    config = CONFIG_MAPPING[kind](**{
        "vocab_size": 5000, "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner,
        "num_attention_heads": heads, "num_key_value_heads": key_heads, "head_dim": dim, "tie_word_embeddings": True,
        "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None, "max_position_embeddings": 1024, **changes,
        **of_each,
    })  # fmt: skip
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, dtype=torch.bfloat16).to("cuda").eval().requires_grad_(False)
    for parameter_name, parameter in model.named_parameters():
        if parameter.ndim == 1 and "alpha" not in parameter_name:  # norms and biases
            parameter.add_(0.3 * torch.randn_like(parameter))
    attention.enable(model)
    return prepared(model, nf4=nf4, targets=tuple(linear_names(model)) if has_adapters else ())


@functools.cache
def kinds(rows: int) -> list[Any]:
    """All kinds of operations for so many rows that this machine can compile."""
    from workers.rollout.graph.cuda import has_warpgroups
    from workers.rollout.graph.engine import operations_for
    from workers.rollout.graph.triton_step import TritonOperations

    device = torch.device("cuda", 0)
    found: list[Any] = [TritonOperations(device), operations_for(device)]
    if type(found[1]) is type(found[0]):
        return found[:1]
    if has_warpgroups(device) and rows > 16:
        from workers.rollout.graph.cuda_step import TogetherOperations

        found.append(TogetherOperations(device))
    return found


def plain(x: Any, columns: int, *, is_together: bool = False) -> torch.Tensor:
    """x of a projection as rows. The CUDA order: [m / 8][k / 256][k % 64 / 8][m % 8][k % 256 / 64][k % 8]; for four
    warps together: [m / 8][k / 256][k % 64 / 8][k % 8 / 2][m % 8][k % 256 / 64][k % 2]."""
    data = x.data
    if data.dim() == 2:
        return data
    tiles, chunks = data.shape[:2]
    if is_together:
        rows = data.view(tiles, chunks, 8, 4, 8, 4, 2).permute(0, 4, 1, 5, 2, 3, 6)
    else:
        rows = data.view(tiles, chunks, 8, 8, 4, 8).permute(0, 3, 1, 4, 2, 5)
    return rows.reshape(tiles * 8, chunks * 256)[: x.rows, :columns]


def lay(x: Any, rows: torch.Tensor, *, is_together: bool = False) -> None:
    """The reverse of `plain`: rows, [M, K], into x, zeros where there are none."""
    if x.data.dim() == 2:
        x.data.copy_(rows)
        return
    tiles, chunks = x.data.shape[:2]
    whole = rows.new_zeros(tiles * 8, chunks * 256)
    whole[: rows.shape[0], : rows.shape[1]] = rows
    if is_together:
        laid = whole.view(tiles, 8, chunks, 4, 8, 4, 2).permute(0, 2, 4, 5, 1, 3, 6)
    else:
        laid = whole.view(tiles, 8, chunks, 4, 8, 8).permute(0, 2, 4, 1, 3, 5)
    x.data.copy_(laid.reshape(x.data.shape))


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize(("shape", "nf4", "targets"), [
    ("1.5b", True, QKVO), ("1.5b", True, ALL), ("1.5b", False, ()), ("0.5b", False, ()), ("0.5b", False, ALL),
    ("3b", True, ALL),
])  # fmt: skip
@torch.inference_mode()
def test_row_48_every_operation_of_a_layer_is_plain_pytorch_s(shape: str, nf4: bool, targets: tuple[str, ...]) -> None:
    model = make_model(shape, nf4=nf4, targets=targets)
    weights, reference = Weights(model), TorchOperations()
    weights.refresh()
    layer, eps, hidden = weights.layers[0], weights.plain.eps, model.config.hidden_size
    rope = torch.stack(model.model.rotary_emb(model.lm_head.weight, torch.arange(256, device="cuda")[None]))[:, 0]
    rope = rope.bfloat16().contiguous()
    for rows in ROWS:
        for ops in kinds(rows):
            order: Any = {"is_together": ops.layout == MATRICES}
            mine, theirs = state_of(weights, rows), state_of(weights, rows)
            start = torch.randn(rows, hidden, device="cuda").bfloat16()
            how = Sum(eps, torch.float32, torch.bfloat16)
            _, a = reference.add_norm(start, None, None, layer.before_attention, how)
            _, b = ops.add_norm(start, None, None, layer.before_attention, how)
            assert apart(plain(b, hidden, **order), a) < TOLERANCE
            a = reference.attention(reference.project(a, layer.qkv), layer.qkv, mine, 0, rope, layer, how)
            b = ops.attention(ops.project(b, layer.qkv), layer.qkv, theirs, 0, rope, layer, how)
            assert apart(theirs.keys[0], mine.keys[0]) < TOLERANCE
            assert apart(theirs.values[0], mine.values[0]) < TOLERANCE
            assert apart(plain(b, hidden, **order), a) < TOLERANCE
            for kind in (torch.float32, torch.bfloat16):  # the last is gone on with
                found = reference.project(a, layer.out), ops.project(b, layer.out)
                each = Sum(eps, kind, torch.bfloat16)
                residual, c = reference.add_norm(start, found[0], layer.out, layer.before_mlp, each, mlp=layer)
                other, d = ops.add_norm(start, found[1], layer.out, layer.before_mlp, each, mlp=layer)
                assert other.dtype == residual.dtype == kind
                assert apart(other, residual) < TOLERANCE
            a, b = c, d
            a, b = (one.gate_up(x, layer.gate_up, layer.gate) for one, x in ((reference, a), (ops, b)))
            assert apart(plain(b, model.config.intermediate_size, **order), a) < TOLERANCE
            last, again = (
                one.add_norm(start, one.project(x, layer.down), layer.down, weights.norm, how, is_last=True)[1]
                for one, x in ((reference, a), (ops, b))
            )
            assert apart(again, last) < TOLERANCE
            first, second = ops.project(b, layer.down).data, ops.project(b, layer.down).data
            assert torch.equal(first, second)


def keeping(draw: Any, logits: list[torch.Tensor]) -> Any:
    """A draw that also keeps the logits."""

    def kept(found: torch.Tensor, *others: Any) -> None:
        logits.append(found)
        draw(found, *others)

    return kept


@pytest.mark.parametrize("how", ["bfloat16", "bfloat16, adapters", "nf4, adapters"])
@pytest.mark.parametrize("name", OTHERS)
@torch.inference_mode()
def test_a_step_of_every_family_rounds_no_worse_than_plain_pytorch(name: str, how: str) -> None:
    """Beside float32: Gemma 4 does not scale its scores, so a rounding may move its logits by some percent."""
    model = other_model(name, nf4="nf4" in how, has_adapters="adapters" in how)
    exact = copy.deepcopy(model).float()
    for rows in (1, 8, 13, 64, 100):
        right, _ = step_of(exact, rows, TorchOperations())
        plain, mine = step_of(model, rows, TorchOperations())
        weights = Weights(model)
        for ops in (one.of(weights, rows) for one in kinds(rows)):
            found, theirs = step_of(model, rows, ops)
            for number in range(len(mine.keys)):
                assert apart(theirs.keys[number], mine.keys[number]) < TOLERANCE
                assert apart(theirs.values[number], mine.values[number]) < TOLERANCE
            assert apart(found, right) < max(TOLERANCE, 1.5 * apart(plain, right))


def test_many_rows_of_dense_weights_are_multiplied_by_the_library() -> None:
    from workers.rollout.graph.cuda_step import LibraryOperations

    ops = kinds(1)[-1]
    for nf4, rows, is_library in ((False, 64, False), (False, 65, True), (True, 65, False)):
        weights = Weights(make_model("0.5b", nf4=nf4, targets=ALL))
        assert isinstance(ops.of(weights, rows), LibraryOperations) == is_library


def step_of(model: Any, rows: int, ops: Any) -> tuple[torch.Tensor, State]:
    """The logits of a step, and what it leaves. The caches begin with the same numbers for each dtype."""
    weights, decoder = Weights(model), Decoder(model)
    weights.refresh()
    decoder.grow_rope(256)
    state, logits = state_of(weights, rows, model.dtype), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "draw", keeping(ops.draw, logits))
        decode_step(weights, state, decoder.ropes, rows, ops)
    return logits[0].float(), state


@pytest.mark.parametrize("name", ["qwen3-1.7b", "gemma3-1b", "phi-4-mini", "olmo3"])
@pytest.mark.parametrize("nf4", [False, True], ids=["bfloat16", "nf4"])
def test_captured_steps_of_a_family_draw_what_plain_transformers_would(nf4: bool, name: str) -> None:
    from workers.rollout.graph.engine import GraphEngine

    model = other_model(name, nf4=nf4, has_adapters=True)
    requests = [Request(tuple(range(5, 6 + number * 7 % 90)), number) for number in range(20)]
    for engine in (GraphEngine(model, max_rows=8), GraphEngine(model, max_rows=2, overcommit=4.0)):
        rollouts = engine.generate(requests, Sampling(max_new_tokens=40))
        off = torch.cat([(torch.tensor(one.log_probs) - direct_log_probs(model, one, 1.0)).abs() for one in rollouts])
        assert float(off.mean()) < 0.02
        assert float(off.max()) < 0.5


@pytest.mark.parametrize("name", ["qwen3-1.7b", "smollm3-3b", "glm4", "granite-2b", "phi-4-mini"])
@pytest.mark.parametrize("nf4", [False, True], ids=["bfloat16", "nf4"])
def test_rows_that_read_a_prompt_together_draw_what_plain_transformers_would(
    nf4: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workers.rollout.graph import engine as graph_engine

    model = other_model(name, nf4=nf4, has_adapters=True)
    prompts = [tuple(range(5, 5 + length)) for length in (300, 129, 64)]
    requests = [Request(prompts[number % 3], number) for number in range(30)]  # ten rows of each: a team and two more
    offs = []
    for least in (0, sys.maxsize):
        monkeypatch.setattr(graph_engine, "LEAST_SAVED", least)
        engine = graph_engine.GraphEngine(model, max_rows=15, overcommit=2.0)
        rollouts = engine.generate(requests, Sampling(max_new_tokens=40))
        assert engine._state is not None and engine._state.reads_together == (least == 0)
        each = [(torch.tensor(one.log_probs) - direct_log_probs(model, one, 1.0)).abs() for one in rollouts]
        offs.append(float(torch.cat(each).mean()))
        assert float(torch.cat(each).max()) < 0.5
    together, alone = offs
    assert together < 0.02 and together < 1.2 * alone


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("name", ["qwen3-1.7b", "gemma3-1b", "olmo2-1b", "glm4", "heads of 72, one key head"])
@torch.inference_mode()
def test_captured_steps_with_attention_in_one_launch_leave_the_bits_of_those_in_two(name: str, rows: int) -> None:
    """Two hundred in a row, so that a read before its write would show."""
    from workers.rollout.graph import triton_step

    model, steps = other_model(name, nf4=False, has_adapters=True, layers=4), 200
    weights, decoder = Weights(model), Decoder(model)
    weights.refresh()
    decoder.grow_rope(512)
    for ops in kinds(rows):
        found = []
        for is_one in (True, False):
            state = state_of(weights, rows, length=512, room=steps)
            state.set_sampling(Sampling(max_new_tokens=steps, temperature=0.8, ignore_stop=True), [])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    triton_step, "is_one_attention_launch", lambda *, has_lanes, repeated, is_one=is_one: is_one
                )
                step = Steps(weights, state, decoder.ropes, ops)(rows)
            for _ in range(steps):
                step()
            assert not state.arrivals.any()
            found.append([state.out_ids, state.out_log_probs, state.out_entropies, *state.keys, *state.values])
        assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@torch.inference_mode()
def test_keys_before_a_window_are_not_read() -> None:
    """Keys that are read and masked would give NaN: a product of NaN and zero."""
    window, position, block = 256, 16000, 128
    OTHERS["windowed"] = "mistral", (1024, 1024, 32, 8, 128), {"sliding_window": window}
    weights = Weights(other_model("windowed", nf4=False, has_adapters=False, layers=4))
    rope = torch.zeros(2, 16384, 128, dtype=torch.bfloat16, device="cuda")
    for ops in kinds(8):
        state = State(Shape(8, 16384, 8), weights.caches, torch.bfloat16, torch.device("cuda", 0))
        state.set_sampling(Sampling(max_new_tokens=8, ignore_stop=True), [])
        state.positions.fill_(position)
        state.active.fill_(1)
        state.out_log_probs.fill_(torch.nan)
        for cache in (*state.keys, *state.values):
            cache[:, :, : position - window - block] = torch.nan
        Steps(weights, state, {"": rope}, ops)(8)()
        assert state.out_log_probs[:, 0].isfinite().all()


@pytest.mark.parametrize("rows", [8, 16, 32, 64])
@torch.inference_mode()
def test_a_product_with_a_one_is_the_weight_that_the_trainer_computes_with(rows: int) -> None:
    columns, inputs = (64, 32, 32), 320
    generator = torch.Generator("cuda").manual_seed(rows)
    matrices = [
        Matrix(
            torch.randint(0, 256, (n * inputs // 2,), dtype=torch.uint8, device="cuda", generator=generator),
            torch.rand(n * inputs // 64, device="cuda", generator=generator) * 0.02 + 0.001, (n, inputs),
        )
        for n in columns
    ]  # fmt: skip
    expected = torch.cat([one.dense(torch.bfloat16) for one in matrices]).float()
    ones = torch.eye(inputs, dtype=torch.bfloat16, device="cuda")
    for ops in kinds(rows):
        for first in range(0, inputs, rows):
            x = ops.inputs(rows, inputs, ones.device)
            lay(x, ones[[at % inputs for at in range(first, first + rows)]], is_together=ops.layout == MATRICES)
            found = ops.project(x, Projection([], matrices, None, None)).data.sum(0)
            assert torch.equal(found, expected[:, [at % inputs for at in range(first, first + rows)]].T)


def state_of(
    weights: Weights, rows: int, dtype: torch.dtype = torch.bfloat16, length: int = 256, room: int = 8
) -> State:
    generator = torch.Generator("cuda").manual_seed(rows)
    state = State(Shape(rows, length, room), weights.caches, dtype, torch.device("cuda", 0))
    for cache in (*state.keys, *state.values):
        cache.copy_(torch.randn(cache.shape, generator=generator, device="cuda").bfloat16())
    state.set_sampling(Sampling(max_new_tokens=8, temperature=0.8), [7])
    places = torch.arange(rows, device="cuda")
    uniforms = torch.rand(rows, room, generator=generator, device="cuda")
    state.begin(places, places + 11, places * 37 % 200, uniforms)
    return state


@pytest.mark.parametrize("vocabulary", [5000, 5001])
@torch.inference_mode()
def test_a_draw_is_plain_pytorch_s(vocabulary: int) -> None:
    weights = Weights(make_model("1.5b", nf4=False, targets=()))
    mine, theirs = state_of(weights, 64), state_of(weights, 64)
    head = torch.randn(vocabulary, 16, device="cuda").bfloat16()
    logits = times_head((torch.randn(64, 16, device="cuda") * 0.75).bfloat16(), head)
    TorchOperations().draw(logits, mine)
    kinds(1)[0].draw(logits, theirs)
    same = mine.tokens == theirs.tokens  # a number at the very edge between two tokens may fall to the other side
    assert int(same.sum()) >= 63
    torch.testing.assert_close(theirs.out_log_probs[same], mine.out_log_probs[same], atol=1e-4, rtol=0)
    torch.testing.assert_close(theirs.out_entropies, mine.out_entropies, atol=1e-3, rtol=0)
    assert torch.equal(theirs.active[same], mine.active[same])


@pytest.mark.parametrize(("end", "ulps"), [(4096, ulps) for ulps in range(-3, 4)] + [(5000, -2), (5000, -1)])
def test_a_draw_at_the_end_of_a_part_of_the_vocabulary_takes_no_token_without_probability(end: int, ulps: int) -> None:
    state = state_of(Weights(make_model("1.5b", nf4=False, targets=())), 64)
    state.temperature.fill_(1.0)
    logits = torch.randn(64, 5000, device="cuda") * 2
    logits[:, 4092:4096] = logits[:, 4996:] = -60.0  # a part has 4,096; both end with what is never drawn
    shares = torch.softmax(logits.bfloat16().float(), dim=1)
    numbers = shares[:, :end].sum(dim=1) if end < 5000 else torch.ones(64, device="cuda")
    for _ in range(abs(ulps)):
        numbers = torch.nextafter(numbers, torch.full_like(numbers, 2.0 * (ulps > 0)))
    state.uniforms[:, 0] = numbers
    kinds(1)[0].draw(logits.bfloat16(), state)
    assert float(state.out_log_probs[:, 0].min()) > -40.0


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("broken", [1, 5000], ids=["one", "all"])
@torch.inference_mode()
def test_where_logits_are_nan_a_token_of_the_vocabulary_is_drawn_and_its_log_prob_tells(
    broken: int, greedy: bool
) -> None:
    state = state_of(Weights(make_model("1.5b", nf4=False, targets=())), 8)
    state.set_sampling(Sampling(max_new_tokens=8, temperature=0.8, greedy=greedy), [7])
    logits = torch.randn(8, 5000, device="cuda").bfloat16()
    logits[:, :broken] = torch.nan
    kinds(1)[0].draw(logits, state)
    assert bool(((state.tokens >= 0) & (state.tokens < 5000)).all())
    assert not bool(torch.isfinite(state.out_log_probs[:, 0]).any())


def test_graphs_that_are_made_anew_take_no_more_memory() -> None:
    from workers.rollout.graph.engine import GraphEngine

    engine = GraphEngine(make_model("1.5b", nf4=True, targets=QKVO), max_rows=4)
    requests = [Request((5, 6, 7), number) for number in range(4)]

    def left() -> int:
        engine.generate(requests, Sampling(max_new_tokens=4, ignore_stop=True))
        engine.close()
        torch.cuda.synchronize()
        return int(torch.cuda.memory_allocated())

    first = [left() for _ in range(3)][-1]  # by now every library has its work space
    assert max(left() for _ in range(4)) <= first + (1 << 20)


@pytest.mark.parametrize("nf4", [False, True], ids=["bfloat16", "nf4"])
def test_captured_steps_draw_what_the_trainer_would(nf4: bool) -> None:
    from workers.rollout.graph.engine import GraphEngine

    model = make_model("1.5b", nf4=nf4, targets=QKVO, layers=4)
    engine = GraphEngine(model, max_rows=16)
    requests = [Request(tuple(range(5, 6 + number % 50)), number) for number in range(60)]
    for _ in range(2):
        rollouts = engine.generate(requests, Sampling(max_new_tokens=70))
        off = torch.cat([
            (torch.tensor(one.log_probs) - direct_log_probs(model, one, 1.0)).abs() for one in rollouts
        ])  # fmt: skip
        assert float(off.mean()) < 0.02
        assert float(off.max()) < 0.5
        engine.rest()
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                with torch.no_grad():
                    parameter.add_(torch.randn_like(parameter) * 0.02)
