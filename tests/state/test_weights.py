"""A model directory is complete where every shard that its index names is as long as its own header says."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from profiles.built_in import BUILT_IN
from state.weights import INDEX, WEIGHTS, fault_of, model_fault, shards

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two shards and their index."""
    source = BUILT_IN["pocket"].directory
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(source / name, tmp_path / name)
    for name in SHARDS:
        shutil.copy(source / WEIGHTS, tmp_path / name)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))
    return tmp_path


def test_a_complete_model_has_no_fault(model: Path) -> None:
    assert [path.name for path in shards(model)] == list(SHARDS)
    assert model_fault(model) == ("", "")


@pytest.mark.parametrize(
    ("harm", "name", "said"),
    [
        (lambda d: (d / SHARDS[1]).unlink(), SHARDS[1], "is missing"),
        (lambda d: os.truncate(d / SHARDS[0], (d / SHARDS[0]).stat().st_size - 1), SHARDS[0], "its header says"),
        (lambda d: os.truncate(d / SHARDS[0], 5), SHARDS[0], "is torn"),
        (lambda d: (d / SHARDS[0]).write_bytes(b"\x02" + bytes(7) + b"[]"), SHARDS[0], "no safetensors file"),
        (lambda d: (d / INDEX).write_text("{"), INDEX, "weight_map"),
        (lambda d: (d / "config.json").unlink(), "config.json", "is missing"),
        (lambda d: (d / "tokenizer.json").write_text("half"), "tokenizer.json", "not valid JSON"),
        (lambda d: shutil.rmtree(d), "", "is no directory"),
    ],
)
def test_the_first_file_that_cannot_be_used_is_named(
    harm: Callable[[Path], object], name: str, said: str, model: Path
) -> None:
    harm(model)
    path, why = model_fault(model)
    assert path == str(model / name if name else model)
    assert said in why


def test_a_shard_that_is_too_long_is_torn_too(model: Path) -> None:
    with (model / SHARDS[0]).open("ab") as file:
        file.write(b"x")
    assert "is torn" in fault_of(model / SHARDS[0])
