"""Products with the output head for vocabularies of any size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import linear

from workers.head_products import EVEN, blocks_of, logits_buffer, times_head


@given(st.integers(1, 300))
def test_blocks_hold_every_word_once_and_only_the_last_is_uneven(vocabulary: int) -> None:
    blocks = blocks_of(vocabulary)
    assert [word for block in blocks for word in range(block.start, block.stop)] == list(range(vocabulary))
    assert all((block.stop - block.start) % EVEN == 0 for block in blocks[:-1])
    assert len(blocks) == 1 or blocks[-1].stop - blocks[-1].start < EVEN


@pytest.mark.parametrize("vocabulary", [5, 8, 296, 301])
def test_logits_of_a_vocabulary_of_any_size_are_plain_pytorch_s(vocabulary: int) -> None:
    x, head = torch.randn(3, 16, dtype=torch.float64), torch.randn(vocabulary, 16, dtype=torch.float64)
    torch.testing.assert_close(times_head(x, head), linear(x, head))


@pytest.mark.parametrize("vocabulary", [5, 8, 301])
def test_each_row_of_logits_begins_at_a_multiple_of_16_bytes(vocabulary: int) -> None:
    found = logits_buffer(3, torch.empty(vocabulary, 16), torch.bfloat16)
    assert found.shape == (3, vocabulary)
    assert all(row.data_ptr() % 16 == 0 for row in found)
