"""Attention of packed rows: what float64 gives, nothing for what is not seen, and the same bits each time."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, softmax
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from profiles.schema import Adapter, Model, Optimizer, Profile, Run
from tests.workers.interpreter import interpreted
from workers.models import adapters, attention, torch_setup
from workers.models.log_probs import score
from workers.models.packing import Unit, pack, visible
from workers.models.policy import open_policy

on_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("triton") is None, reason="no GPU, or no Triton"
)


@pytest.fixture(autouse=True)
def sdpa_again() -> Iterator[None]:
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield
    ALL_ATTENTION_FUNCTIONS["sdpa"] = plain
    torch.use_deterministic_algorithms(deterministic)


def heads_of(segments: Tensor, heads: int, key_heads: int, dim: int, seed: int = 0) -> list[Tensor]:
    """q, k, v as the modules lay them, and the gradient of the result; bfloat16."""
    rows, _, length, _ = segments.shape
    generator = torch.Generator().manual_seed(seed)
    made = [
        torch.randn(rows, length, count, dim, generator=generator) for count in (heads, key_heads, key_heads, heads)
    ]
    q, k, v, grad = (one.to(segments.device, torch.bfloat16) for one in made)
    return [*(one.transpose(1, 2).requires_grad_() for one in (q, k, v)), grad]


def results(attend: Any, segments: Tensor, given: list[Tensor], dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    q, k, v = (one.detach().to(dtype).requires_grad_() for one in given[:3])
    out = attend(q, k, v, segments)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), given[3].to(dtype))]


def plainly(q: Tensor, k: Tensor, v: Tensor, segments: Tensor) -> Tensor:
    keys, values = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    return scaled_dot_product_attention(q, keys, values, attn_mask=visible(segments)).transpose(1, 2)


def ours(q: Tensor, k: Tensor, v: Tensor, segments: Tensor) -> Tensor:
    found, _ = attention.attend(None, q, k, v, segments)
    return found


def by_hand(q: Tensor, k: Tensor, v: Tensor, segments: Tensor, *, window: int, cap: float) -> Tensor:
    """With a scale of .4."""
    keys, values = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    scores = cap * torch.tanh(q @ keys.transpose(-1, -2) * 0.4 / cap)
    shares = softmax(scores.masked_fill(~visible(segments, window=window), -torch.inf), -1)
    return (shares @ values).transpose(1, 2)


def windowed(q: Tensor, k: Tensor, v: Tensor, segments: Tensor, *, window: int | None, cap: float | None) -> Tensor:
    """Ours of a layer with a window or a cap."""
    module = SimpleNamespace(window=window, cap=cap)
    found, _ = attention.attend(module, q, k, v, segments, scaling=0.4)
    return found


def placed(prompt: int, completions: list[int], rows: int = 1) -> Tensor:
    """`packed` with the positions that windows need."""
    unit = Unit((0,) * prompt, tuple((0,) * count for count in completions), tuple(range(len(completions))))
    made = pack([[unit]] * rows)
    return torch.cat((made.segments, made.positions[:, None, :, None].int()), -1)


def packed(prompt: int, completions: list[int], rows: int = 1) -> Tensor:
    """The segments of rows that hold a prompt and its completions."""
    unit = Unit((0,) * prompt, tuple((0,) * count for count in completions), tuple(range(len(completions))))
    return pack([[unit]] * rows).segments


ROWS = {
    "causal": torch.zeros(1, 1, 128, 2, dtype=torch.int32),
    "shorter than a block": torch.zeros(1, 1, 5, 2, dtype=torch.int32),
    "packed": packed(70, [200, 90, 131], rows=2),
    "many blocks": packed(128, [512] * 4),
    "scattered": torch.randint(50, (2, 1, 200, 2), dtype=torch.int32, generator=torch.Generator().manual_seed(1)),
}


@on_gpu
@pytest.mark.parametrize(
    ("heads", "key_heads", "dim"),
    [(12, 2, 128), (14, 2, 64), (3, 3, 32), (2, 1, 16), (4, 1, 256), (5, 1, 96), (4, 2, 8)],
)
@pytest.mark.parametrize("segments", ROWS.values(), ids=ROWS.keys())
def test_it_is_as_near_to_float64_as_pytorch_is(segments: Tensor, heads: int, key_heads: int, dim: int) -> None:
    segments = segments.cuda()
    given = heads_of(segments, heads, key_heads, dim)
    assert attention.has_kernels(segments.device, dim)
    truth = results(plainly, segments, given, torch.float64)
    pairs = zip(results(ours, segments, given), results(plainly, segments, given), truth, strict=True)
    for found, theirs, exact in pairs:
        off, their_off = (float((one.double() - exact).norm() / exact.norm()) for one in (found, theirs))
        assert off <= 1.2 * their_off + 1e-4


@on_gpu
@pytest.mark.parametrize(("heads", "key_heads", "dim"), [(4, 1, 256), (8, 4, 128), (16, 1, 80)])
@pytest.mark.parametrize(("window", "cap"), [(90, 3.0), (90, None), (None, 3.0)])
def test_with_windows_and_caps_it_is_as_near_to_float64_as_pytorch_is(
    window: int | None, cap: float | None, heads: int, key_heads: int, dim: int
) -> None:
    """A window shorter than the prompt, and a cap that scores reach."""
    segments = placed(128, [300, 512, 100], rows=2).cuda()
    given = heads_of(segments, heads, key_heads, dim)
    hand = partial(by_hand, window=window or 1 << 20, cap=cap or 1e6)
    mine = results(partial(windowed, window=window, cap=cap), segments, given)
    truth = results(hand, segments, given, torch.float64)
    for found, theirs, exact in zip(mine, results(hand, segments, given), truth, strict=True):
        off, their_off = (float((one.double() - exact).norm() / exact.norm()) for one in (found, theirs))
        assert off <= 1.2 * their_off + 1e-4


@on_gpu
def test_keys_before_a_window_and_queries_behind_it_are_not_read() -> None:
    """A block that is read and masked would give NaN: a product of NaN and zero."""
    window, middle, block = 512, 4096, 128
    segments = placed(8193, [1]).cuda()
    given = heads_of(segments, 8, 2, 128)
    clean = results(partial(windowed, window=window, cap=None), segments, given)
    with torch.no_grad():
        for one in given[:3]:
            one[:, :, :middle] = torch.nan
        given[3][:, :middle] = torch.nan
    poisoned = results(partial(windowed, window=window, cap=None), segments, given)
    late = middle + window + block
    assert torch.equal(poisoned[0][:, late:], clean[0][:, late:])  # [R, T, heads, D]
    for found, expected in zip(poisoned[1:], clean[1:], strict=True):  # [R, heads, T, D]
        assert torch.equal(found[:, :, late:], expected[:, :, late:])


KERNELS = """
import sys
import torch
from workers.models import attention_kernels
from workers.models.attention_kernels import Attention
from tests.workers.models.test_attention import by_hand, placed, results

torch.manual_seed(0)
kinds = attention_kernels._kinds
short, long = placed(30, [25, 20]), placed(140, [40, 30])  # the long one has blocks of which all see all
for segments, heads, key_heads, dim, window, cap, queries, keys in (
    (short, 4, 2, 16, 0, 0.0, 64, 64), (short, 2, 1, 40, 7, 0.0, 64, 64), (short, 5, 1, 136, 13, 3.0, 32, 32),
    (long, 2, 1, 16, 0, 0.0, 64, 64), (long, 2, 1, 16, 150, 3.0, 64, 64), (long, 1, 1, 16, 0, 0.0, 128, 64),
    (long, 1, 1, 16, 0, 0.0, 32, 64),
):
    attention_kernels._kinds = lambda *each: [one | {"QUERIES": queries, "KEYS": keys} for one in kinds(*each)]
    made = [torch.randn(1, segments.shape[2], count, dim) for count in (heads, key_heads, key_heads, heads)]
    given = [*(one.transpose(1, 2) for one in made[:3]), made[3]]
    ours = lambda *each: Attention.apply(*each, 0.4, window, cap)
    hand = lambda *each: by_hand(*each, window=window or 1000, cap=cap or 1e6)
    pairs = zip(results(ours, segments, given, torch.float16), results(hand, segments, given, torch.float64))
    for found, exact in pairs:
        assert (found.double() - exact).norm() < 2e-3 * exact.norm(), (heads, dim, window, queries)
sys.stdout.write("same\\n")
"""
LISTS = """
import sys
import torch
from workers.models.attention_kernels import _listed
from workers.models.packing import visible
from tests.workers.models.test_attention import placed

for segments, window in ((placed(140, [40, 30], rows=2), 0), (placed(140, [40, 30]), 40), (placed(5, [3]), 0)):
    seen = visible(segments, window=window or None)[:, 0]
    for queries, keys in ((64, 64), (32, 64), (128, 32)):
        for side, (lists, counts) in enumerate(_listed(segments, queries, keys, window)):
            sizes = (queries, keys) if side == 0 else (keys, queries)
            for row, all_pairs in enumerate(seen if side == 0 else seen.mT):
                for number, lines in enumerate(all_pairs.split(sizes[0])):
                    parts = list(enumerate(lines.split(sizes[1], dim=1)))
                    full = [other for other, one in parts if one.all() and one.numel() == queries * keys]
                    some = [other for other, one in parts if one.any() and other not in full]
                    assert counts[row, number].tolist() == [len(full), len(full + some)]
                    assert lists[row, number].tolist()[: len(full + some)] == full + some
sys.stdout.write("same\\n")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_in_tritons_interpreter_the_kernels_do_what_float64_does() -> None:
    done = interpreted("-c", KERNELS, timeout=300)
    assert done.stdout == "same\n", done.stderr


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_blocks_of_which_all_see_all_are_listed_first_then_those_of_which_some_do() -> None:
    done = interpreted("-c", LISTS, timeout=300)
    assert done.stdout == "same\n", done.stderr


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_pass_lists_its_blocks_once_for_each_window_and_never_those_of_another_pass() -> None:
    """All passes lie in the same memory: by modules, as launches and as graphs."""
    done = interpreted("-m", "tests.workers.models.attention_list_cases", timeout=300)
    assert done.stdout == "same\n", done.stderr


def test_an_object_of_one_pass_shares_memory_but_no_lists_with_that_of_another() -> None:
    segments = ROWS["packed"]
    first, second = attention.of_one_pass(segments), attention.of_one_pass(segments)
    assert first.data_ptr() == second.data_ptr() == segments.data_ptr() and first.is_contiguous()
    first.lists[64, 0] = ()  # type: ignore[attr-defined]
    assert second.lists == {} and not hasattr(segments, "lists")  # type: ignore[attr-defined]


@on_gpu
def test_the_same_inputs_give_the_same_bits() -> None:
    segments = ROWS["many blocks"].cuda()
    given = heads_of(segments, 12, 2, 128)
    first = results(ours, segments, given)
    for _ in range(5):
        assert all(map(torch.equal, results(ours, segments, given), first))


@on_gpu
def test_what_is_not_seen_has_no_part_in_it() -> None:
    segments = ROWS["packed"].cuda()
    given = heads_of(segments, 4, 2, 64)
    first = results(ours, segments, given)
    segments, hidden = segments.clone(), 150
    segments[:, :, hidden] = -2  # it sees itself, and nobody else does
    others = [place for place in range(segments.shape[2]) if place != hidden]
    before = results(ours, segments, given)
    for one in given[1:3]:
        one.data[:, :, hidden] = 100.0
    found = results(ours, segments, given)
    assert not torch.equal(found[0][:, others], first[0][:, others])
    assert torch.equal(found[0][:, others], before[0][:, others])


@on_gpu
def test_what_is_not_a_number_is_passed_on() -> None:
    segments = ROWS["packed"].cuda()
    given = heads_of(segments, 4, 2, 64)
    given[0].data[0, :, 200] = torch.nan
    out, of_q, *_ = results(ours, segments, given)
    assert out[0, 200].isnan().all() and of_q[0, :, 200].isnan().all()
    assert out[1].isfinite().all() and out[0, :200].isfinite().all()


def test_an_architecture_whose_sizes_have_other_names_stays_as_it_is() -> None:
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    attention.enable(
        SimpleNamespace(device=torch.device("cuda"), config=SimpleNamespace(to_dict=lambda: {"n_head": 4}))
    )
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is plain


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_what_the_kernels_do_not_take_stays_with_pytorch(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "has_kernels", lambda *_: pytest.fail("asked for"))
    segments = ROWS["packed"].to(device)
    mask = visible(segments)
    q, k, v, _ = heads_of(segments, 4, 2, 64)
    module = torch.nn.Module()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    expected = plainly(q.float(), k.float(), v.float(), segments)
    for given in (segments, mask):  # in float32
        found, _ = attention.attend(module, q.float(), k.float(), v.float(), given, scaling=64**-0.5)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    found, _ = attention.attend(module, q, k, v, mask, scaling=64**-0.5)  # a mask that says it pair by pair
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
    bias = torch.zeros(mask.shape, dtype=torch.bfloat16, device=device).masked_fill(~mask, float("-inf"))
    found, _ = attention.attend(module, q, k, v, bias, scaling=64**-0.5)  # not a truth value
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
    found, _ = attention.attend(module, q[:, :, -1:], k, v, mask[:, :, -1:], scaling=64**-0.5)  # one token
    torch.testing.assert_close(found.float(), expected[:, -1:], rtol=0.05, atol=0.05)


def test_on_a_cpu_a_pass_has_one_mask_and_the_numbers_of_transformers_function() -> None:
    model = open_policy(Profile(name="x", model=Model(random_init="qwen2-tiny")), None, torch.device("cpu")).model
    segments = ROWS["packed"]
    pack = SimpleNamespace(segments=segments)
    assert attention.mask_for(model, pack).shape == (2, 1, segments.shape[2], segments.shape[2])
    positions = torch.arange(segments.shape[2]).expand(2, -1)
    ids = torch.randint(model.config.vocab_size, (2, segments.shape[2]), generator=torch.Generator().manual_seed(0))
    found = []
    for attend, given in (
        (attention.attend, attention.mask_for(model, pack)), (attention.attend, segments),
        (sdpa_attention_forward, visible(segments)),
    ):  # fmt: skip
        ALL_ATTENTION_FUNCTIONS["sdpa"] = attend
        found.append(model.model(input_ids=ids, position_ids=positions, attention_mask=given).last_hidden_state)
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[2])


def test_a_long_row_gets_its_mask_in_parts_and_has_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = packed(70, [200, 90, 131], rows=2)
    given = [one.double() for one in heads_of(segments, 4, 2, 16)]
    module: Any = torch.nn.Module()
    module.num_key_value_groups = 2

    def of_parts(q: Tensor, k: Tensor, v: Tensor, segments: Tensor) -> Tensor:
        return attention.attend(module, q, k, v, segments)[0]

    shapes: list[torch.Size] = []
    monkeypatch.setattr(
        attention, "visible", lambda *each, **how: shapes.append((one := visible(*each, **how)).shape) or one
    )
    monkeypatch.setattr(attention, "MASKED_QUERIES", 100)
    found = results(of_parts, segments, given, torch.float64)
    assert len(shapes) == 2 * 5 and all(shape[2] <= 100 for shape in shapes)  # once more for the gradient
    for one, other in zip(found, results(plainly, segments, given, torch.float64), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("limit", [100, 1000], ids=["in parts", "at once"])
@pytest.mark.parametrize(("window", "cap"), [(9, None), (None, 3.0), (9, 3.0)])
def test_windows_count_positions_of_the_lone_sequence_and_caps_bend_its_scores(
    window: int | None, cap: float | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completion far to the right in its row is as near to its prompt as the first one is."""
    made = pack([[Unit(tuple(range(30)), (tuple(range(50)), tuple(range(40)), tuple(range(70))), (0, 1, 2))]])
    length = made.ids.shape[1]
    q, k, v, _ = (one.double() for one in heads_of(made.segments, 4, 2, 16))
    monkeypatch.setattr(attention, "MASKED_QUERIES", limit)
    module: Any = torch.nn.Module()
    module.num_key_value_groups, module.window, module.cap = 2, window, cap
    segments = torch.cat((made.segments, made.positions[:, None, :, None].int()), -1)
    found = attention.attend(module, q, k, v, segments, scaling=0.3)[0]
    begin = 30
    for size in (49, 39, 69):
        alone = torch.tensor([*range(30), *range(begin, begin + size)])
        begin += size
        keys, values = (one[:, :, alone].repeat_interleave(2, 1) for one in (k, v))
        scores = q[:, :, alone] @ keys.mT * 0.3
        scores = scores if cap is None else (scores / cap).tanh() * cap
        near = torch.arange(30 + size)[:, None] - torch.arange(30 + size)
        hidden = (near < 0) | (near >= (window or length))
        truth = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ values
        torch.testing.assert_close(found[:, alone], truth.transpose(1, 2), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("dim", "reason"), [(64, ""), (20, "ValueError: they support heads of multiples of 8 up to 256")]
)
def test_kernels_that_cannot_run_are_told_and_left_out(dim: int, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    attention.has_kernels.cache_clear()
    assert not attention.has_kernels(torch.device("cpu"), dim)
    assert f"attention over heads of {dim} runs without its Triton kernels" in caplog.text
    assert reason in caplog.text


@on_gpu
@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("rank", [0, 4])
def test_a_training_pass_gives_the_same_bits_each_time(
    rank: int, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernels:
        monkeypatch.setattr(attention, "has_kernels", lambda *_: False)
    profile = Profile(
        name="x", run=Run(device="cuda"), adapter=Adapter(rank=rank, implementation="own"),
        model=Model(random_init="qwen2.5-0.5b", dtype="bfloat16", gradient_checkpointing=True),
        optimizer=Optimizer(cuda_graphs=False),
    )  # fmt: skip
    monkeypatch.setattr(torch_setup, "let_segments_grow", lambda _: None)  # it is for the whole process
    torch_setup.set_up_torch(profile, isolate=False)
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    model = open_policy(profile, None, torch.device("cuda")).model
    trained = [one for one in model.parameters() if one.requires_grad]
    if rank:
        for matrix in adapters.adapter_of(model).values():
            torch.nn.init.normal_(matrix, std=0.05)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(model.config.vocab_size, (5, 300), generator=draw).tolist()
    unit = Unit(tuple(ids[0]), tuple(tuple(one) for one in ids[1:]), (0, 1, 2, 3))
    given = pack([[unit]]).to(model.device)
    found = []
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        score(model, given, 0.7).log_probs.sum().backward()
        found.append([one.grad for one in trained if one.grad is not None])
    assert found[0] and all(map(torch.equal, found[1], found[0])) and all(map(torch.equal, found[2], found[0]))
