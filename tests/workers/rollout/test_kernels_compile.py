"""The Triton kernels of a decode step compile for every generation of GPU, which need not be there."""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Any

import pytest
import torch

from tests.workers.rollout.test_graph_kernels import lay
from workers.rollout.graph.cuts import FRAGMENTS, MATRICES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets its kernels"),
    pytest.mark.timeout(900),
]
SHARED_BYTES = {86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""Most shared memory of a block, by the GPU's compute capability."""
LAYER = ["add_norm", "attend", "add_norm", "activate"]


def compiled(name: str, capability: int) -> list[tuple[str, Any]]:
    """The kernels that a layer without its products and a draw launch, in order."""
    from tests.workers.rollout.compile_cases import CASES, compile_layer, compiling

    found: list[tuple[str, Any]] = []
    with compiling(capability, lambda kernel, code: found.append((kernel, code))):
        compile_layer(CASES[name])
    return found


@pytest.mark.parametrize("layout", [FRAGMENTS, MATRICES], ids=["fragments", "matrices"])
def test_a_kernel_lays_x_out_as_the_products_read_it(layout: int) -> None:
    from workers.rollout.graph.kernel_parts import place_of_x
    from workers.rollout.graph.triton_step import Inputs

    rows = torch.arange(16 * 512).view(16, 512)
    x = Inputs(torch.empty(2, 2, 2048, dtype=torch.long), 16)
    lay(x, rows, is_together=layout == MATRICES)
    places = place_of_x.fn(torch.arange(16)[:, None], torch.arange(512)[None], 512, layout, IN_EIGHTS=False)
    assert torch.equal(x.data.view(-1)[places], rows)


@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize("name", ["qwen2.5-1.5b", "lanes", "qwen2.5-3b, teams", "gemma4, window"])
def test_every_kernel_compiles_and_fits_into_shared_memory(name: str, capability: int) -> None:
    for kernel, code in compiled(name, capability):
        assert code.metadata.shared <= SHARED_BYTES[capability], kernel


@pytest.mark.parametrize(("name", "launches"), [
    ("qwen2.5-1.5b", LAYER),
    ("qwen3-1.7b, 64 rows", LAYER),
    ("glm4", LAYER),
    ("heads of 72, no rope", LAYER),
    ("olmo2", ["add_norm", "whole_norms", *LAYER[1:]]),
    ("lanes", ["add_norm", "rope_write", *LAYER[1:]]),
    ("qwen2.5-3b, teams", ["add_norm", "rope_write", "attend_together", *LAYER[1:]]),
])  # fmt: skip
def test_attention_and_the_draw_are_one_launch_each(name: str, launches: list[str]) -> None:
    assert [kernel for kernel, _ in compiled(name, 90)] == [*launches, "draw"]


def test_whoever_combines_has_waited_for_what_the_others_stored() -> None:
    """All threads store before one counts, and what is read behind it does not come from L1."""
    for kernel, code in compiled("qwen2.5-1.5b", 90):
        if kernel in ("attend", "draw"):
            before, _, behind = code.asm["ptx"].partition("atom.global.gpu.acq_rel.add.u32")
            assert behind, kernel
            last_store, last_barrier = before.rindex("st.global"), before.rindex("bar.sync")
            assert last_store < last_barrier, kernel
            assert behind.index("bar.sync") < behind.index("ld.global.cg"), kernel


@pytest.mark.parametrize(("name", "shape"), [
    ("qwen3-1.7b, 64 rows", "4x128"), ("gemma4, window", "16x256"), ("heads of 72, normed", "16x128"),
])  # fmt: skip
def test_the_norms_of_heads_add_squares_in_one_order_in_either_kernel(
    name: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order follows the layout, so with equal layouts attention in one launch and in two gives the same bits."""
    from workers.rollout.graph import triton_step

    layouts = set()
    for is_one in (True, False):
        monkeypatch.setattr(
            triton_step, "is_one_attention_launch", lambda *, has_lanes, repeated, is_one=is_one: is_one
        )
        code = dict(compiled(name, 90))["attend" if is_one else "rope_write"].asm["ttgir"]
        layout = re.findall(rf"\}}\) : \(tensor<{shape}xf32, #(\w+)>\)", code)[0]
        layouts.add(re.findall(rf"^#{layout} = (.*)$", code, re.MULTILINE)[0])
    assert len(layouts) == 1
