"""An update on several GPUs is that of one, wherever its state came from. On a CPU, its ranks are processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.workers.rank_group.member import Task, together, work
from workers.ranks.group import ALONE

pytestmark = pytest.mark.slow
FILES = ("model.safetensors", "adapter_model.safetensors", "optimizer.safetensors")
NF4, OWN, BITS, ALL, ROUNDED = (
    "adapter over nf4", "own adapter", "adapter with moments in 8 bits", "all weights", "all weights in bfloat16",
)  # fmt: skip
ON_ONE = {
    "nf4": Task(NF4, rows=10),
    "own": Task(OWN, rows=7),
    "8 bits": Task(BITS, rows=7),
    "all": Task(ALL, rows=7),
    "few": Task(ALL, rows=1, steps=(1, 3)),
    "groups": Task("groups", rows=10, steps=(1, 3)),
}
ON_TWO = ON_ONE | {
    "out of memory": replace(ON_ONE["nf4"], failing=(1, 2)),
    "nf4 to 2": replace(ON_ONE["nf4"], steps=(1, 3)),
    "nf4 from 2": replace(ON_ONE["nf4"], steps=(3, 4), begin="2/nf4 to 2"),
    "bf16": Task(ROUNDED),
    "bf16 to 2": Task(ROUNDED, steps=(1, 3)),
    "bf16 from 2": Task(ROUNDED, steps=(3, 4), begin="2/bf16 to 2"),
}
READ_BY_ONE = {
    "nf4 read": Task(NF4, steps=(3, 3), begin="2/nf4 to 2"),
    "bf16 read": Task(ROUNDED, steps=(3, 3), begin="2/bf16 to 2"),
}
READ_BY_TWO = {
    "nf4 read": Task(NF4, steps=(3, 3), begin="1/nf4 read"),
    "bf16 read": Task(ROUNDED, steps=(3, 3), begin="1/bf16 read"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tasks done: in `1/` by one process, in `2/` by two ranks."""
    root = tmp_path_factory.mktemp("ranks")

    def placed(tasks: dict[str, Task], folder: str) -> list[Task]:
        return [
            replace(task, out=str(root / folder / name), begin=task.begin and str(root / task.begin / "saved"))
            for name, task in tasks.items()
        ]

    threads = torch.get_num_threads()
    work(placed(ON_ONE, "1"), lambda: ALONE)
    together(placed(ON_TWO, "2"), root / "store", 2)
    work(placed(READ_BY_ONE, "1"), lambda: ALONE)
    together(placed(READ_BY_TWO, "2"), root / "second store", 2)
    torch.set_num_threads(threads)
    return root


def found(folder: Path) -> dict[str, Any]:
    held: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return held


def saved(folder: Path) -> dict[str, torch.Tensor]:
    files = [load_file(path) for name in FILES if (path := folder / "saved" / name).exists()]
    assert len(files) == 2
    return {name: tensor for one in files for name, tensor in one.items()}


def difference(one: Path, other: Path) -> float:
    """The largest between two tensors of the same name."""
    mine, theirs = saved(one), saved(other)
    assert mine.keys() == theirs.keys()
    # A bias of keys changes nothing that a softmax sees: its gradient is rounding alone, which AdamW makes a step of.
    seen = [name for name in mine if "k_proj.bias" not in name or torch.equal(mine[name], theirs[name])]
    assert len(seen) > 0.9 * len(mine)
    return max(float((mine[name].double() - theirs[name].double()).abs().max()) for name in seen)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        pytest.param("nf4", 1e-5, id="an adapter over nf4, 4 passes"),
        pytest.param("own", 1e-4, id="our own adapter, 4 passes"),
        # A moment may round to the next of its 8-bit codes, which are up to 1/32 apart: 3 steps of .003, times 1/32.
        pytest.param("8 bits", 3e-4, id="our own adapter, moments in 8 bits, 4 passes"),
        pytest.param("all", 5e-5, id="all weights, tied, 3 passes"),
        pytest.param("groups", 1e-5, id="GRPO, KL to the base and entropy mask, over nf4"),
        pytest.param("few", 5e-5, id="all weights, 1 pass: the other rank makes it too, and counts nothing"),
    ],
)
def test_several_steps_on_two_ranks_are_those_on_one(root: Path, name: str, tolerance: float) -> None:
    assert difference(root / "1" / name, root / "2" / name) < tolerance
    one, two = found(root / "1" / name), found(root / "2" / name)
    for ours, theirs in zip(two["metrics"], one["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        for metric in ("loss", "grad_norm", "entropy", "mismatch_mean", "tis_weight"):
            assert ours[metric] == pytest.approx(theirs[metric], rel=1e-2, abs=tolerance), metric
    moments = {
        name: tensor for name, tensor in saved(root / "2" / name).items() if name.endswith((".exp_avg", ".state1"))
    }
    assert len(moments) == len(two["parameters"]) and all(moment.any() for moment in moments.values())


@pytest.mark.parametrize("kind", ["nf4", "bf16"])
def test_a_checkpoint_of_two_ranks_is_one_of_one_and_the_other_way_round(root: Path, kind: str) -> None:
    """Saved, loaded and saved again, all is the same to the last bit."""
    assert difference(root / "2" / f"{kind} to 2", root / "1" / f"{kind} read") == 0.0
    assert difference(root / "1" / f"{kind} read", root / "2" / f"{kind} read") == 0.0


@pytest.mark.parametrize("kind", ["nf4", "bf16"])
def test_two_ranks_that_were_stopped_go_on_as_if_they_were_not(root: Path, kind: str) -> None:
    assert difference(root / "2" / kind, root / "2" / f"{kind} from 2") == 0.0
    assert difference(root / "2" / kind, root / "2" / f"{kind} to 2") > 0.0


@pytest.mark.parametrize("name", ["nf4", "own", "8 bits", "groups", "all", "out of memory"])
def test_both_ranks_end_with_the_same_weights_to_the_last_bit(root: Path, name: str) -> None:
    weights = [(root / "2" / name / f"weights-{rank}").read_text() for rank in range(2)]
    assert weights[0] == weights[1]


def test_memory_that_ends_on_one_rank_halves_both_and_the_step_is_repeated(root: Path) -> None:
    assert found(root / "2" / "out of memory")["retries"] == 1  # on rank 0, where nothing had failed
    assert difference(root / "1" / "nf4", root / "2" / "out of memory") < 1e-5
