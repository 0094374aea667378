"""Attention of packed rows: what float64 gives, nothing for what is not seen, and the same bits each time."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from profiles.schema import Adapter, Model, Optimizer, Profile, Run
from workers.models import adapters, attention, torch_setup
from workers.models.log_probs import score
from workers.models.packing import Unit, pack
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


def heads_of(mask: Tensor, heads: int, key_heads: int, dim: int, seed: int = 0) -> list[Tensor]:
    """q, k, v as the modules lay them, and the gradient of the result; bfloat16."""
    rows, _, length, _ = mask.shape
    generator = torch.Generator().manual_seed(seed)
    made = [
        torch.randn(rows, length, count, dim, generator=generator) for count in (heads, key_heads, key_heads, heads)
    ]
    q, k, v, grad = (one.to(mask.device, torch.bfloat16) for one in made)
    return [*(one.transpose(1, 2).requires_grad_() for one in (q, k, v)), grad]


def results(attend: Any, mask: Tensor, given: list[Tensor], dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    q, k, v = (one.detach().to(dtype).requires_grad_() for one in given[:3])
    out = attend(q, k, v, mask)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), given[3].to(dtype))]


def plainly(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    keys, values = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    return scaled_dot_product_attention(q, keys, values, attn_mask=mask).transpose(1, 2)


def ours(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    found, _ = attention.attend(None, q, k, v, mask)
    return found


def packed(prompt: int, completions: list[int], rows: int = 1) -> Tensor:
    """The mask of rows that hold a prompt and its completions."""
    unit = Unit((0,) * prompt, tuple((0,) * count for count in completions), tuple(range(len(completions))))
    return pack([[unit]] * rows).mask


MASKS = {
    "causal": torch.ones(1, 1, 128, 128, dtype=torch.bool).tril(),
    "shorter than a block": torch.ones(1, 1, 5, 5, dtype=torch.bool).tril(),
    "packed": packed(70, [200, 90, 131], rows=2),
    "many blocks": packed(128, [512] * 4),
    "scattered": (torch.rand(2, 1, 200, 200, generator=torch.Generator().manual_seed(1)) < 0.02)
    | torch.eye(200, dtype=torch.bool),
}


@on_gpu
@pytest.mark.parametrize(("heads", "key_heads", "dim"), [(12, 2, 128), (14, 2, 64), (3, 3, 32), (2, 1, 16)])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_it_is_as_near_to_float64_as_pytorch_is(mask: Tensor, heads: int, key_heads: int, dim: int) -> None:
    mask = mask.cuda()
    given = heads_of(mask, heads, key_heads, dim)
    assert attention.has_kernels(mask.device, dim)
    truth = results(plainly, mask, given, torch.float64)
    pairs = zip(results(ours, mask, given), results(plainly, mask, given), truth, strict=True)
    for found, theirs, exact in pairs:
        off, their_off = (float((one.double() - exact).norm() / exact.norm()) for one in (found, theirs))
        assert off <= 1.2 * their_off + 1e-4


@on_gpu
def test_the_same_inputs_give_the_same_bits() -> None:
    mask = MASKS["many blocks"].cuda()
    given = heads_of(mask, 12, 2, 128)
    first = results(ours, mask, given)
    for _ in range(5):
        assert all(map(torch.equal, results(ours, mask, given), first))


@on_gpu
def test_what_is_not_seen_has_no_part_in_it() -> None:
    mask = MASKS["packed"].cuda()
    given = heads_of(mask, 4, 2, 64)
    first = results(ours, mask, given)
    mask, hidden = mask.clone(), 150
    mask[..., hidden] = False
    before = results(ours, mask, given)
    for one in given[1:3]:
        one.data[:, :, hidden] = 100.0
    found = results(ours, mask, given)
    assert not torch.equal(found[0], first[0])
    assert torch.equal(found[0], before[0])
    assert not found[2][:, :, hidden].any() and not found[3][:, :, hidden].any()


@on_gpu
def test_a_query_that_sees_nothing_gives_zeros_and_has_no_gradient() -> None:
    mask = MASKS["packed"].cuda().clone()
    mask[:, :, 100] = False
    out, of_q, of_k, of_v = results(ours, mask, heads_of(mask, 4, 2, 64))
    assert not out[:, 100].any() and not of_q[:, :, 100].any()
    assert all(bool(one.isfinite().all()) for one in (out, of_q, of_k, of_v))


@on_gpu
def test_what_is_not_a_number_is_passed_on() -> None:
    mask = MASKS["packed"].cuda()
    given = heads_of(mask, 4, 2, 64)
    given[0].data[0, :, 200] = torch.nan
    out, of_q, *_ = results(ours, mask, given)
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
    mask = MASKS["packed"].to(device)
    q, k, v, _ = heads_of(mask, 4, 2, 64)
    module = torch.nn.Module()
    module.num_key_value_groups = 2  # type: ignore[assignment]
    expected = plainly(q.float(), k.float(), v.float(), mask)
    found, _ = attention.attend(module, q.float(), k.float(), v.float(), mask, scaling=64**-0.5)  # float32
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    bias = torch.zeros(mask.shape, dtype=torch.bfloat16, device=device).masked_fill(~mask, float("-inf"))
    found, _ = attention.attend(module, q, k, v, bias, scaling=64**-0.5)  # not a truth value
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
    found, _ = attention.attend(module, q[:, :, -1:], k, v, mask[:, :, -1:], scaling=64**-0.5)  # one token
    torch.testing.assert_close(found.float(), expected[:, -1:], rtol=0.05, atol=0.05)


def test_on_a_cpu_transformers_function_stays() -> None:
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    open_policy(Profile(name="x", model=Model(random_init="qwen2-tiny")), None, torch.device("cpu"))
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is plain


@pytest.mark.parametrize(("dim", "reason"), [(64, ""), (80, "ValueError: they are for heads of 16, 32, 64, 128")])
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
