"""The engine of captured steps: slots, buckets, adapters and NF4 in plain PyTorch; its kernels where there is a GPU."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from profiles.schema import Adapter
from tests.workers.families import WINDOW, model_of
from tests.workers.interpreter import interpreted
from tests.workers.models.test_families import BOUND, OWN, UNSAMPLED
from tests.workers.rollout.models import REQUESTS, decode, direct_log_probs, tiny_model
from workers.models import attention, lora
from workers.rollout.engine import EngineUnavailable, Request, Rollout, Sampling, choose, draw_uniforms
from workers.rollout.graph.cuts import (
    GATE_RESIDENT,
    KEY_BLOCK,
    MANY_KEYS,
    MANY_TILES,
    MAX_WARPS,
    RESIDENT,
    few_cuts,
    is_one_attention_launch,
    key_splits,
    key_stages,
    launch_for,
    many_cuts,
    tiles_of,
)
from workers.rollout.graph.engine import CHECK_EVERY, GraphEngine, bucket_of, in_turn
from workers.rollout.graph.lookup import Lanes
from workers.rollout.graph.state import Shape, State
from workers.rollout.graph.step import TorchOperations
from workers.rollout.native import NativeEngine
from workers.rollout.select import Portions

MANY = [Request(tuple(range(3, 4 + length % 13)), seed) for seed, length in enumerate(range(40))]


def ids(rollouts: list[Rollout]) -> list[tuple[int, ...]]:
    return [one.completion_ids for one in rollouts]


@pytest.mark.parametrize("max_rows", [1, 3, 16, 64])
def test_row_41_rows_that_leave_and_enter_get_what_they_would_get_alone(max_rows: int) -> None:
    model = tiny_model()
    engine = GraphEngine(model, decode, max_rows=max_rows)
    sampling = Sampling(max_new_tokens=40)
    found = engine.generate(MANY, sampling)
    assert ids(found) == ids(NativeEngine(model).generate(MANY, sampling))
    assert len({len(one.completion_ids) for one in found}) > 5


def test_each_operation_runs_while_the_engine_s_device_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are launched and graphs captured on the current device, which may be the trainer's."""
    inside: list[torch.device] = []

    @contextmanager
    def on_device(device: torch.device) -> Iterator[None]:
        inside.append(device)
        yield
        inside.pop()

    class Watched(TorchOperations):
        calls = 0

        def project(self, *arguments: Any) -> Any:
            assert inside
            Watched.calls += 1
            return super().project(*arguments)

    def operations_for(device: torch.device) -> Watched:
        assert inside
        return Watched()

    monkeypatch.setattr("workers.rollout.graph.engine.on_device", on_device)
    monkeypatch.setattr("workers.rollout.graph.engine.operations_for", operations_for)
    engine = GraphEngine(tiny_model(), decode)
    sampling, over = Sampling(max_new_tokens=4), Future[tuple[int, ...]]()
    over.set_result(())
    counts = []
    for call in (
        lambda: engine.generate(REQUESTS, sampling),
        lambda: engine.stream(REQUESTS, sampling, None),
        lambda: engine.converse(REQUESTS, sampling, lambda number, reply: over),
        lambda: engine.rehearse(REQUESTS, sampling),
    ):
        call()
        counts.append(Watched.calls)
        assert not inside
    assert counts == sorted(set(counts)) and counts[0] > 0


def test_row_40_log_probs_are_the_trainer_s_and_greedy_ids_are_those_of_the_model() -> None:
    model = tiny_model()
    engine = GraphEngine(model, decode)
    for one in engine.generate(MANY[:9], Sampling(max_new_tokens=12)):
        torch.testing.assert_close(torch.tensor(one.log_probs), direct_log_probs(model, one, 1.0), atol=1e-5, rtol=0)
    for one in engine.generate(MANY[:3], Sampling(max_new_tokens=6, greedy=True)):
        prompt = torch.tensor([one.prompt_ids])
        expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
        assert list(one.completion_ids) == expected[0, prompt.shape[1] :].tolist()


@pytest.fixture(scope="module")
def uniforms() -> Tensor:
    """What 200,000 requests draw by, each from its own seed."""
    return draw_uniforms(range(200_000), 1)


def by_all_engines(logits: Tensor, uniforms: Tensor) -> Tensor:
    return choose(logits, uniforms[:, 0], Sampling(temperature=0.7)).tokens


def by_the_graph_engine(logits: Tensor, uniforms: Tensor) -> Tensor:
    rows = len(logits)
    state = State(Shape(slots=rows, cache_length=1, room=1), [], torch.float32, "cpu")
    state.set_sampling(Sampling(temperature=0.7, max_new_tokens=1), [])
    state.begin(torch.arange(rows), torch.zeros(rows), torch.zeros(rows), uniforms)
    TorchOperations().draw(logits, state)
    return state.out_ids[:, 0].long()


@pytest.mark.parametrize("drawn", [by_all_engines, by_the_graph_engine])
def test_row_42_200_000_draws_follow_the_distribution_and_each_is_the_same_in_any_batch(
    drawn: Callable[[Tensor, Tensor], Tensor], uniforms: Tensor
) -> None:
    logits = torch.tensor([2.0, -1.0, 0.5, 0.0, 1.5, -2.0, 0.3, 1.0, -0.5, 0.8, -1.5])
    draws = len(uniforms)
    tokens = drawn(logits.expand(draws, -1), uniforms)
    expected = torch.softmax(logits.double() / 0.7, -1) * draws
    statistic = ((torch.bincount(tokens, minlength=11) - expected) ** 2 / expected).sum().item()
    assert statistic < 29.59  # chi-squared with 10 degrees of freedom is larger once in 1000
    some = torch.arange(draws - 1, 0, -997)
    assert torch.equal(drawn(logits.expand(len(some), -1), uniforms[some]), tokens[some])


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_family_is_decoded_with_the_log_probs_of_plain_transformers(name: str) -> None:
    """In float32, within the bound of `tests/workers/models/test_families.py`; some prompts exceed the window."""
    if name in UNSAMPLED:
        pytest.skip("transformers itself gives other numbers with a cache")
    model, other = model_of(name), model_of(name)
    other.set_attn_implementation("eager")
    attention.enable(model)
    draws = torch.Generator().manual_seed(1)
    requests = [
        Request(tuple(torch.randint(2, 250, (length,), generator=draws).tolist()), length)
        for length in (1, 5, WINDOW + 2, 3 * WINDOW, 3 * WINDOW)
    ]
    sampling = Sampling(max_new_tokens=WINDOW + 2, ignore_stop=True)
    for one in GraphEngine(model, max_rows=3).generate(requests, sampling):
        truth = direct_log_probs(other, one, 1.0)
        assert float((torch.tensor(one.log_probs) - truth).abs().max()) < BOUND


KERNELS = """
import sys
from tests.workers.rollout.kernel_cases import differences

for name in sys.argv[1:]:
    for is_paged in (False, True):
        off = differences(name, is_paged=is_paged)
        assert max(off) < 1e-5, (name, is_paged, off)
sys.stdout.write("same\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_in_tritons_interpreter_the_kernels_of_a_step_do_what_pytorch_does() -> None:
    names = ["qwen2", "gemma3_text, two ropes, cap", "gemma4_text", "glm4", "olmo3, two ropes", "phi3, partial",
             "ministral3, window, beyond the original context", "apertus, llama 3 rope, biases"]  # fmt: skip
    done = interpreted("-c", KERNELS, *names, timeout=900)
    assert done.stdout == "same\n", done.stderr


FORMS = """
import sys
from tests.workers.rollout.kernel_cases import POSITIONS, PROCESSORS, are_forms_alike

for number, name in enumerate(sys.argv[1:]):
    positions, processors = list(POSITIONS.values())[number % 3], list(PROCESSORS.values())[number // 3 % 3]
    case = name, positions, processors
    assert are_forms_alike(name, is_paged=number % 2 > 0, positions=positions, processors=processors), case
sys.stdout.write("same\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_in_tritons_interpreter_attention_in_one_launch_leaves_the_bits_of_two() -> None:
    names = ["qwen2", "qwen3", "gemma3_text, two ropes, cap", "gemma4_text", "glm4", "olmo3, two ropes",
             "ministral3, window, beyond the original context", "phi3, partial", "mistral, window"]  # fmt: skip
    done = interpreted("-c", FORMS, *names, timeout=900)
    assert done.stdout == "same\n", done.stderr


TEAMS = """
import sys
from tests.workers.rollout.kernel_cases import PROCESSORS, teams_are_near

for number, name in enumerate(sys.argv[1:]):
    processors = list(PROCESSORS.values())[number % 3]
    assert teams_are_near(name, processors=processors), (name, processors)
sys.stdout.write("near\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_in_tritons_interpreter_rows_that_read_a_prompt_together_get_what_pytorch_gives() -> None:
    names = ["qwen2", "qwen3", "gemma2", "gemma3_text, two ropes, cap", "glm4", "granite"]
    done = interpreted("-c", TEAMS, *names, timeout=900)
    assert done.stdout == "near\n", done.stderr


TILES = """
import sys
from tests.workers.rollout.kernel_cases import off_of_tiles

for rows in (8, 13):
    assert off_of_tiles(rows) < 1e-6, rows
sys.stdout.write("near\\n")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_in_tritons_interpreter_rows_whose_adapters_are_read_together_are_activated_as_single_ones() -> None:
    done = interpreted("-c", TILES, timeout=300)
    assert done.stdout == "near\n", done.stderr


def test_row_42_tokens_come_as_often_as_their_probability_says() -> None:
    model = tiny_model()
    with torch.inference_mode():
        logits = model(torch.tensor([[5, 6]])).logits[0, -1] / 0.7
    expected = torch.softmax(logits, -1).double()
    draws = 20_000
    requests = [Request((5, 6), seed) for seed in range(draws)]
    rollouts = GraphEngine(model, max_rows=4096).generate(requests, Sampling(max_new_tokens=1, temperature=0.7))
    counts = torch.bincount(torch.tensor([one.completion_ids[0] for one in rollouts]), minlength=len(expected))
    likely = expected * draws > 5
    statistic = ((counts - expected * draws) ** 2 / (expected * draws))[likely].sum().item()
    freedom = int(likely.sum()) - 1
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom)  # beyond it once in 1e5 for a right sampler


def test_row_43_lengths_that_are_forced_a_stop_at_once_and_one_token() -> None:
    engine = GraphEngine(tiny_model())
    forced = engine.generate(MANY, Sampling(max_new_tokens=21, ignore_stop=True))
    assert {(len(one.completion_ids), one.finish_reason) for one in forced} == {(21, "length")}
    short = engine.generate([Request((5, 6), seed) for seed in range(200)], Sampling(max_new_tokens=1))
    reasons = {(one.completion_ids[-1] == 1, one.finish_reason) for one in short}
    assert reasons == {(True, "stop"), (False, "length")}


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                                          "up_proj", "down_proj")], ids=["some", "all"])  # fmt: skip
def test_row_44_adapters_count_and_a_step_of_theirs_is_seen(targets: tuple[str, ...]) -> None:
    model = tiny_model()
    lora.inject(model, Adapter(rank=4, alpha=8.0, targets=targets), seed=0)
    engine = GraphEngine(model)
    scramble(model)
    for _ in range(2):
        for one in engine.generate(REQUESTS, Sampling(max_new_tokens=8)):
            expected = direct_log_probs(model, one, 1.0)
            torch.testing.assert_close(torch.tensor(one.log_probs), expected, atol=1e-4, rtol=0)
        engine.rest()
        scramble(model)


def test_row_44_a_step_of_all_weights_is_seen_their_biases_too() -> None:
    model = tiny_model()
    engine = GraphEngine(model)
    for _ in range(3):
        for one in engine.generate(REQUESTS, Sampling(max_new_tokens=8)):
            expected = direct_log_probs(model, one, 1.0)
            torch.testing.assert_close(torch.tensor(one.log_probs), expected, atol=1e-4, rtol=0)
        engine.rest()
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter) * 0.1


def scramble(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.2)


def test_nf4_weights_are_those_that_the_trainer_computes_with() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = tiny_model(hidden_size=64, intermediate_size=128)
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            quantized = bitsandbytes.nn.Linear4bit(
                module.in_features, module.out_features, bias=module.bias is not None, compute_dtype=torch.float32,
                compress_statistics=True, quant_type="nf4",
            )  # fmt: skip
            quantized.load_state_dict(module.state_dict())
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, quantized.to("cpu"))
    for one in GraphEngine(model).generate(REQUESTS, Sampling(max_new_tokens=8)):
        expected = direct_log_probs(model, one, 1.0)
        torch.testing.assert_close(torch.tensor(one.log_probs), expected, atol=1e-4, rtol=0)


def test_a_cache_stays_while_the_trainer_works_where_there_is_room_for_it() -> None:
    engine = GraphEngine(tiny_model())
    engine.generate(REQUESTS, Sampling(max_new_tokens=4))
    size, kept = engine.cache_bytes, engine._state
    engine.rest()
    assert engine._state is kept is not None
    engine = GraphEngine(tiny_model(), keep_bytes=size - 1)
    engine.generate(REQUESTS, Sampling(max_new_tokens=4))
    engine.rest()
    assert engine.cache_bytes == 0
    assert len(engine.generate(REQUESTS, Sampling(max_new_tokens=4))) == len(REQUESTS)


def test_once_a_cache_was_too_large_to_stay_none_does_so_that_a_resumed_run_has_the_graphs_of_a_whole_one() -> None:
    large, small = Sampling(max_new_tokens=300), Sampling(max_new_tokens=4)
    engine = GraphEngine(tiny_model())
    engine.generate(MANY[:12], large)
    engine = GraphEngine(tiny_model(), keep_bytes=engine.cache_bytes - 1)
    for requests, sampling in ((MANY[:12], large), (MANY[:12], small), (MANY[:5], small)):
        engine.generate(requests, sampling)
        if sampling is small:
            assert engine._state is not None and engine._state.shape.slots == len(requests)
        engine.rest()
        assert engine.cache_bytes == 0


def test_a_cache_that_was_forgotten_for_lack_of_memory_is_not_kept_again() -> None:
    portions = Portions(GraphEngine(tiny_model()))
    portions.generate(REQUESTS, Sampling(max_new_tokens=4))
    portions.rest()
    assert portions.keeps_cache and portions.cache_bytes > 0
    portions.forget_cache()
    assert not portions.keeps_cache and portions.cache_bytes == 0
    portions.generate(REQUESTS, Sampling(max_new_tokens=4))
    portions.rest()
    assert portions.cache_bytes == 0


@pytest.mark.parametrize("overcommit", [1.0, 3.0])
def test_a_rehearsal_takes_the_cache_of_full_length_for_a_few_tokens_and_changes_no_draw(overcommit: float) -> None:
    model, full = tiny_model(), Sampling(max_new_tokens=200, ignore_stop=True)
    whole, short = (GraphEngine(model, decode, max_rows=4, overcommit=overcommit) for _ in range(2))
    expected = whole.generate(MANY[:12], full)
    steps = 0

    def counted(needed: Shape, prepared: Callable[[Shape], Any] = short._prepared) -> Any:
        state, made = prepared(needed)

        def step(rows: int) -> Callable[[], None]:
            one = made(rows)

            def run() -> None:
                nonlocal steps
                steps += 1
                one()

            return run

        return state, step

    short._prepared = counted  # type: ignore[method-assign]
    short.rehearse(MANY[:12], full)
    assert 0 < steps <= 2 * CHECK_EVERY
    assert short._state is not None and whole._state is not None
    assert short._state.shape == whole._state.shape and short.cache_bytes == whole.cache_bytes
    kept = short._state
    assert short.generate(MANY[:12], full) == expected
    assert short._state is kept


@pytest.mark.parametrize("overcommit", [1.0, 3.0])
@pytest.mark.parametrize("keep_bytes", [sys.maxsize, 1])
def test_a_cache_that_is_only_reserved_is_the_rehearsed_one_and_changes_no_number(
    overcommit: float, keep_bytes: int
) -> None:
    """Whatever the step after it asks for, and whether or not the cache stays while the trainer works."""
    longest = ([Request((3,) * 40, seed) for seed in range(12)], Sampling(max_new_tokens=200, ignore_stop=True))
    rehearsed, reserved = (
        GraphEngine(tiny_model(), decode, max_rows=4, keep_bytes=keep_bytes, overcommit=overcommit) for _ in range(2)
    )
    rehearsed.rehearse(*longest)
    reserved.reserve(*longest)
    shapes = [one._state.shape for one in (rehearsed, reserved) if one._state is not None]
    assert len(shapes) == 2 and shapes[0] == shapes[1]
    for engine in (rehearsed, reserved):
        engine.rest()
    assert rehearsed.cache_bytes == reserved.cache_bytes and rehearsed.keeps_cache == reserved.keeps_cache
    assert rehearsed.generate(MANY[:5], Sampling(max_new_tokens=9)) == reserved.generate(
        MANY[:5], Sampling(max_new_tokens=9)
    )


def test_a_rehearsal_of_a_shared_cache_reads_a_row_of_full_length_as_one_that_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, read = GraphEngine(tiny_model(), decode, max_rows=4, overcommit=2.0), list[int]()
    run_layers = engine._decoder.run_layers

    def noted(ids: Tensor, *rest: Any) -> Tensor:
        read.append(ids.shape[-1])
        return run_layers(ids, *rest)

    monkeypatch.setattr(engine._decoder, "run_layers", noted)
    engine.rehearse([Request((3,) * 40, seed) for seed in range(8)], Sampling(max_new_tokens=200))
    assert sum(read) >= 39 + 40 + 200 - CHECK_EVERY - 1


def test_fewer_rows_side_by_side_need_a_smaller_cache() -> None:
    engine = GraphEngine(tiny_model(), max_rows=32)
    before = engine.generate(MANY, Sampling(max_new_tokens=4))
    engine.set_rows(8)
    assert ids(engine.generate(MANY, Sampling(max_new_tokens=4))) == ids(before)
    assert engine._state is not None and engine._state.shape.slots == 8


def test_a_model_that_it_cannot_run_is_named() -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        hidden_act="relu",
    )  # fmt: skip
    with pytest.raises(EngineUnavailable, match="llama with hidden_act = relu"):
        GraphEngine(LlamaForCausalLM(config))


def test_a_model_that_is_wrapped_for_several_gpus_is_still_what_it_is() -> None:
    class Wrapped(type(tiny_model())):  # type: ignore[misc]
        pass

    model = tiny_model()
    model.__class__ = Wrapped
    assert len(GraphEngine(model).generate(MANY[:2], Sampling(max_new_tokens=2))) == 2


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_bucket_holds_its_rows_and_is_no_larger_than_the_cache(rows: int, slots: int) -> None:
    rows = min(rows, slots)
    assert rows <= bucket_of(rows, slots) <= min(slots, 2 * rows)


def test_equal_prompts_start_together_and_long_ones_first() -> None:
    requests = [Request(prompt, 0) for prompt in ((1,), (2, 2, 2), (3, 3), (2, 2, 2), (1,))]
    assert in_turn(requests) == [1, 3, 2, 0, 4]


@given(
    st.integers(1, 2000), st.integers(64, 30_000), st.integers(1, 16), st.integers(0, 1024), st.integers(1, 200),
    st.integers(1, 8),
)  # fmt: skip
def test_every_cut_covers_all_inputs_and_its_sums_fit(
    blocks: int, inputs: int, rows: int, beside: int, processors: int, most_splits: int
) -> None:
    tiles = tiles_of(rows)
    floats = 16 * 8 * tiles
    cuts = few_cuts((blocks, 0), inputs, (floats, beside), processors, (MAX_WARPS, RESIDENT[tiles]), most_splits)
    chunks = -(-inputs // 256)
    assert 1 <= len(cuts) == len(set(cuts))
    for cut in cuts:
        assert (cut.splits - 1) * cut.chunks < chunks <= cut.splits * cut.chunks
        assert 1 <= cut.splits <= most_splits
        assert 1 <= cut.warps <= cut.chunks and cut.warps * cut.groups <= MAX_WARPS
        assert cut.tiles == 1 or 4 * cut.tiles * (floats * cut.warps + beside) <= 48 << 10


@given(
    st.tuples(st.integers(1, 2000), st.integers(0, 12)), st.integers(64, 30_000), st.integers(17, 300),
    st.tuples(st.integers(1, 200), st.sampled_from([99 << 10, 227 << 10])), st.integers(1, 12), st.sampled_from([1, 4]),
)  # fmt: skip
def test_every_cut_for_many_rows_covers_all_inputs(
    tiles: tuple[int, int], inputs: int, rows: int, processors: tuple[int, int], most_splits: int, step: int
) -> None:
    chunks = -(-inputs // 256)
    for cut in many_cuts(tiles, inputs, rows, 12, processors, most_splits, step):
        assert cut.warps % step == 0
        assert (cut.splits - 1) * cut.chunks < chunks <= cut.splits * cut.chunks
        assert 1 <= cut.splits <= most_splits
        assert 1 <= cut.warps <= 12


@pytest.mark.parametrize(
    ("columns", "inputs", "rows", "splits", "warps"),
    [(2048, 1536, 8, 1, 6), (2048, 1536, 16, 1, 6), (2048, 1536, 32, 6, 6), (2048, 1536, 64, 6, 6),
     (17920, 1536, 8, 1, 3), (17920, 1536, 16, 1, 2), (17920, 1536, 32, 3, 4), (17920, 1536, 64, 1, 9),
     (1536, 8960, 8, 4, 5), (1536, 8960, 16, 4, 4), (1536, 8960, 32, 12, 9), (1536, 8960, 64, 12, 9)],
)  # fmt: skip
def test_the_first_cut_is_within_5_percent_of_the_fastest_that_was_measured_on_one_card(
    columns: int, inputs: int, rows: int, splits: int, warps: int
) -> None:
    tiles, across, processors = tiles_of(rows), columns // 16, 132
    if tiles < MANY_TILES:
        cuts = few_cuts((across, 0), inputs, (16 * 8 * tiles, 0), processors, (MAX_WARPS, RESIDENT[tiles]), 8)
    else:
        cuts = many_cuts((across, 0), inputs, rows, 12, (processors, 228 << 10), 12)
    assert (cuts[0].splits, cuts[0].warps) == (splits, warps)


@pytest.mark.parametrize(("blocks", "width", "is_paged", "stages"), [
    (0, 128, True, 1), (1, 128, True, 1), (2, 128, True, 4), (3, 128, True, 5), (20, 128, True, 5),
    (1, 128, False, 1), (2, 128, False, 3), (20, 128, False, 3), (1, 256, True, 1), (20, 256, True, 2),
])  # fmt: skip
def test_keys_are_read_ahead_as_far_as_there_are_blocks(blocks: int, width: int, is_paged: bool, stages: int) -> None:
    assert key_stages(blocks, width, is_paged=is_paged) == stages


@pytest.mark.parametrize(("tiles", "fastest"), [(1, (6, 1, 5)), (2, (6, 1, 5))])
def test_gate_and_up_may_be_divided_as_was_the_fastest_on_one_card(tiles: int, fastest: tuple[int, int, int]) -> None:
    cuts = few_cuts((8960 // 8, 0), 1536, (16 * 8 * tiles, 0), 132, (MAX_WARPS, GATE_RESIDENT), 1)
    assert fastest in [(cut.warps, cut.groups, cut.tiles) for cut in cuts]


def test_tall_inputs_are_split_where_there_are_fewer_blocks_than_processors() -> None:
    assert few_cuts((96, 0), 8960, (128, 0), 132, (12, 16), 8)[0].splits > 1
    assert few_cuts((1120, 0), 1536, (128, 0), 132, (12, 16), 8)[0].chunks * 256 >= 1536 // 2


@given(st.integers(1, 600).map(lambda n: 32 * n), st.integers(1, 300).map(lambda n: 64 * n), st.integers(1, 200))
def test_triton_s_splits_are_whole_pieces(columns: int, inputs: int, processors: int) -> None:
    cut = launch_for(columns, inputs, processors)
    assert inputs // 2 % (cut.words * cut.splits) == 0


@given(st.integers(1, 512), st.integers(1, 9000), st.integers(1, 200))
def test_keys_are_split_by_a_power_of_two_but_no_finer_than_blocks_nor_for_nothing(
    pairs: int, length: int, processors: int
) -> None:
    splits = key_splits(pairs, length, processors)
    assert splits in (1, 2, 4, 8, 16)
    assert splits == 1 or splits * KEY_BLOCK <= length
    if length < MANY_KEYS:
        assert (splits == 1) == (pairs >= 2 * processors or length < 2 * KEY_BLOCK)
        assert splits <= 2 or pairs * splits <= 2 * processors


@pytest.mark.parametrize(("pairs", "length", "splits"), [(352, 4096, 4), (128, 4096, 4), (64, 4096, 8), (16, 8192, 16)])
def test_many_keys_are_split_so_that_the_last_programs_have_as_much_to_do_as_the_first(
    pairs: int, length: int, splits: int
) -> None:
    """The first two were the fastest on a card with 132 multiprocessors."""
    assert key_splits(pairs, length, 132) == splits


def test_attention_is_one_launch_unless_rows_read_keys_that_others_write_in_the_step() -> None:
    shape = Shape(slots=3, cache_length=128, room=8, pages=6, has_context=True)
    state = State(shape, [(2, 16), (4, 16)], torch.float32, "cpu")
    lanes = Lanes(state, 3)
    assert is_one_attention_launch(has_lanes=state.has_lanes, repeated=16)
    assert not is_one_attention_launch(has_lanes=lanes.has_lanes, repeated=16)
    assert [len(state.arrivals), len(lanes.arrivals)] == [3 * 4, 3 * 3 * 4]  # a counter for each head of keys
