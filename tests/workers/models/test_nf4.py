"""NF4 in plain PyTorch: the layout by hand, the error by theory, and bitsandbytes as the other witness."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workers.models import nf4

SHAPES = [(64, 64), (256, 512), (33, 70), (1, 1), (1, 65)]
GAP = max(high - low for low, high in zip(nf4.LEVELS, nf4.LEVELS[1:], strict=False))


def weight_of(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return 0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_row_29_the_first_of_two_codes_is_in_the_high_nibble() -> None:
    packed = nf4.pack(torch.tensor([1, 2, 15, 0], dtype=torch.uint8))
    assert packed.tolist() == [0x12, 0xF0]
    assert nf4.unpack(packed, 3).tolist() == [1, 2, 15]


@given(st.lists(st.integers(0, 15), min_size=1, max_size=70))
def test_packing_loses_nothing(codes: list[int]) -> None:
    assert nf4.unpack(nf4.pack(torch.tensor(codes, dtype=torch.uint8)), len(codes)).tolist() == codes


def test_a_block_that_holds_the_levels_gets_the_codes_in_order() -> None:
    block = torch.tensor(nf4.LEVELS).repeat(4)
    found = nf4.quantize(block)
    assert nf4.unpack(found.packed, 64).tolist() == list(range(16)) * 4
    assert float(nf4.scales_of(found)) == 1.0  # one block: its scale is the mean, and the rest is zero
    assert torch.equal(nf4.dequantize(found), block)


def test_row_29_a_value_on_a_midpoint_takes_the_lower_level_and_a_zero_block_is_all_sevens() -> None:
    levels = torch.tensor(nf4.LEVELS)
    midpoints = (levels[:-1] + levels[1:]) / 2
    codes = nf4.unpack(nf4.quantize(torch.cat((midpoints, torch.ones(1)))).packed, 15)
    assert codes.tolist() == list(range(15))
    zero = nf4.quantize(torch.zeros(128))
    assert nf4.unpack(zero.packed, 128).unique().tolist() == [7] and not nf4.dequantize(zero).any()


@given(st.integers(0, 1000), st.sampled_from(SHAPES))
@settings(max_examples=30, deadline=None)
def test_row_29_the_error_is_half_the_largest_gap_at_most(seed: int, shape: tuple[int, int]) -> None:
    weight = weight_of(shape, seed)
    found = nf4.quantize(weight)
    flat, restored = weight.view(-1), nf4.dequantize(found).view(-1)
    scales = nf4.scales_of(found).repeat_interleave(nf4.BLOCK)[: len(flat)]
    largest = torch.stack([block.abs().max() for block in flat.split(nf4.BLOCK)]).repeat_interleave(nf4.BLOCK)
    # Half a gap of the block's largest value, and what rounding that value to 8 bits adds.
    allowed = GAP / 2 * largest[: len(flat)] + (scales - largest[: len(flat)]).abs() + 1e-7
    assert bool(((flat - restored).abs() <= allowed).all())


def test_row_29_a_weight_takes_this_many_bytes() -> None:
    found = nf4.quantize(weight_of((1024, 1024)))
    assert found.bytes / 2**20 == pytest.approx(0.5 + 1 / 64 + 4 / 16384, abs=1e-5)
    assert round(found.bytes / 2**20, 5) == 0.51587


def test_scales_are_decoded_in_float32_before_the_weight_is_rounded() -> None:
    found = nf4.quantize(weight_of((256, 512)))
    assert torch.equal(nf4.dequantize(found, torch.bfloat16), nf4.dequantize(found).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_row_29_bitsandbytes_makes_the_same_codes_and_reads_ours(shape: tuple[int, int], dtype: torch.dtype) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = weight_of(shape).to(dtype)
    ours = nf4.quantize(weight)
    packed, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    assert torch.equal(nf4.scale_levels(), state.state2.code)
    assert torch.equal(nf4.unpack(packed.view(-1), weight.numel()), nf4.unpack(ours.packed, weight.numel()))
    assert torch.equal(ours.scale_scales, state.state2.absmax) and torch.equal(ours.offset, state.offset)
    # Its CPU code finds the place of a scale by a coarse table: between two levels it may take the farther one.
    apart = (ours.scale_codes.int() - state.absmax.int()).abs()
    assert int(apart.max()) <= 1 and float((apart > 0).float().mean()) < 0.01
    codes = packed.view(torch.uint8).view(-1)
    theirs = nf4.Quantized(codes, state.absmax, state.state2.absmax, state.offset, torch.Size(state.shape))
    assert torch.equal(nf4.dequantize(theirs, dtype), functional.dequantize_4bit(packed, state))
