"""A bad model directory is refused with the file's name and the reason, before any training."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Model, Profile
from profiles.shapes import shape_of
from workers.models import load, random_init
from workers.models.policy import open_policy

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    random_init.write("qwen2-tiny", 0, "float32", directory)
    return directory


def without(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def with_json(name: str, **changes: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(content | changes))

    return change


def with_tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})

    return apply


def one_more(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.extra.weight"] = torch.zeros(2)


def one_less(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        pytest.param(shutil.rmtree, "there is no model directory", id="no directory"),
        pytest.param(without("tokenizer.json"), "tokenizer.json is missing", id="no tokenizer"),
        pytest.param(with_json("tokenizer.json", model={}), "is missing or not a tokenizer", id="no model"),
        pytest.param(
            with_json("config.json", vocab_size=200), "makes ids up to 258, but the model knows 200", id="vocabulary"
        ),
        pytest.param(without("config.json"), "config.json is missing", id="no config"),
        pytest.param(with_json("config.json", model_type="none"), "config.json cannot be loaded", id="unknown kind"),
        pytest.param(without("model.safetensors"), "model.safetensors is missing", id="no weights"),
        pytest.param(
            with_json("model.safetensors.index.json", weight_map={"a": "model-2.safetensors"}),
            "model-2.safetensors is missing",
            id="a shard is missing",
        ),
        pytest.param(with_json("config.json", intermediate_size=96), "other shapes than its config.json", id="shapes"),
        pytest.param(with_tensors(one_less), "missing_keys model.layers.1.mlp.up_proj.weight", id="one less"),
        pytest.param(with_tensors(one_more), "unexpected_keys model.extra.weight", id="one more"),
    ],
)
def test_what_does_not_fit_is_named(damage: Callable[[Path], None], said: str, good: Path, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(good, directory)
    damage(directory)
    with pytest.raises(LonghaulError) as caught:
        open_policy(Profile(name="x", model=Model(path=str(directory))), None, CPU)
    assert said in caught.value.what
    assert caught.value.exit_code == ExitCode.INPUT


def test_a_gpu_that_is_not_there_is_told_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LonghaulError) as caught:
        open_policy(Profile(name="x", model=Model(path="no/such/model")), None, torch.device("cuda"))
    assert caught.value.exit_code == ExitCode.GPU and "no usable GPU" in caught.value.what


def test_a_model_of_padded_vocabulary_is_fine(good: Path, tmp_path: Path) -> None:
    """Published models have more rows than their tokenizer has tokens."""
    assert json.loads((good / "config.json").read_text())["vocab_size"] > load.Tokenizer(good).encode("a")[0]
    load.check(good)


@pytest.mark.parametrize("text", ["", "def f(a):\n    return a + 'ü€'", "<|im_start|>user\n\x00"])
def test_the_tokenizer_of_bytes_reads_any_text(good: Path, text: str) -> None:
    tokenizer = load.Tokenizer(good)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_random_weights_belong_to_the_seed(good: Path, tmp_path: Path) -> None:
    stored = []
    for seed in (0, 1):
        directory = tmp_path / str(seed)
        directory.mkdir()
        torch.manual_seed(99)
        random_init.write("qwen2-tiny", seed, "float32", directory)
        stored.append((directory / "model.safetensors").read_bytes())
    assert stored[0] == (good / "model.safetensors").read_bytes() != stored[1]


@pytest.mark.parametrize("name", random_init.ARCHITECTURES)
def test_parameters_that_are_counted_from_a_config_are_those_of_the_model(name: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {"tie_word_embeddings": True, "pad_token_id": 0} | copy.deepcopy(random_init.ARCHITECTURES[name])
    make: Any = AutoConfig.for_model
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(make(**config))
    assert sum(parameter.numel() for parameter in model.parameters()) == shape_of(config).parameters


def test_nothing_of_a_model_from_a_seed_is_left_on_the_disk() -> None:
    with load.opened_model(Model(random_init="qwen2-tiny"), 0) as directory:
        assert (directory / "config.json").exists()
    assert not directory.exists()
