"""Products with weights in 4 bits where there is no kernel: dequantise, then multiply."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from workers.models.nf4 import LEVELS
from workers.rollout.graph.step import TorchOperations
from workers.rollout.graph.step_weights import Adapters, Matrix, Projection

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = {
    "query or out": (1536, (1536,)),
    "key or value": (1536, (256,)),
    "query, key and value": (1536, (1536, 256, 256)),
    "gate and up": (1536, (8960, 8960)),
    "down": (8960, (1536,)),
}
"""Of a layer of 1.5B: inputs, and outputs side by side."""
ROWS = (1, 2, 3, 4, 7, 8, 16, 33, 64)
RANK = 16


@pytest.mark.parametrize("name", SHAPES)
def test_row_48_plain_products_are_those_of_the_numbers_that_the_codes_stand_for(name: str) -> None:
    inputs, outs = SHAPES[name]
    draws, expected_weights, matrices = np.random.default_rng(0), [], []
    for out in outs:
        codes = draws.integers(0, 16, (out, inputs))
        scales = draws.uniform(0.01, 0.03, (out, inputs // 64)).astype(np.float32)
        packed = torch.from_numpy((codes[:, ::2] << 4 | codes[:, 1::2]).astype(np.uint8).reshape(-1, 1))
        matrices.append(Matrix(packed, torch.from_numpy(scales.reshape(-1)), (out, inputs)))
        values = np.array(LEVELS, np.float32)[codes].reshape(out, -1, 64) * scales[:, :, None]
        expected_weights.append(values.reshape(out, inputs))
    weight, width = np.concatenate(expected_weights), sum(outs)
    a, b = (draws.normal(size=shape).astype(np.float32) * 0.1 for shape in ((len(outs) * RANK, inputs), (RANK, width)))
    bias = draws.normal(size=width).astype(np.float32)
    adapters = Adapters(torch.from_numpy(a), torch.from_numpy(b), RANK, 0.5)
    projection = Projection([], matrices, torch.from_numpy(bias), adapters)
    x = draws.normal(size=(max(ROWS), inputs)).astype(np.float32)
    expected = x.astype(np.float64) @ weight.T + bias
    inner = x.astype(np.float64) @ a.T
    for number, end in enumerate(projection.ends):
        columns = slice(end - outs[number], end)
        expected[:, columns] += 0.5 * inner[:, number * RANK : (number + 1) * RANK] @ b[:, columns]
    for rows in ROWS:
        found = TorchOperations().project(torch.from_numpy(x[:rows]), projection).numpy()
        assert np.abs(found - expected[:rows]).max() <= 1e-5 * np.abs(expected).max(), rows
