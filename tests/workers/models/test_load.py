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


@pytest.mark.parametrize(
    "name", [name for name, config in random_init.ARCHITECTURES.items() if shape_of(config).is_counted]
)
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


def with_first_token(directory: Path, special: str) -> Path:
    """A tokenizer that puts `special` before each text and one more after it, as Gemma's and Llama's do with <bos>."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    directory.mkdir()
    tokenizer = random_init.byte_tokenizer()
    ids = [(text, tokenizer.token_to_id(text)) for text in (special, random_init.EOS)]
    tokenizer.post_processor = TemplateProcessing(single=f"{special} $A {random_init.EOS}", special_tokens=ids)
    tokenizer.save(str(directory / "tokenizer.json"))
    assert Tokenizer.from_file(str(directory / "tokenizer.json")).encode("a").tokens == [special, "a", random_init.EOS]
    return directory


def test_a_prompt_begins_once_with_what_the_tokenizer_puts_first(tmp_path: Path) -> None:
    first = "<|im_start|>"
    tokenizer = load.Tokenizer(with_first_token(tmp_path / "one", first))
    (begin,) = tokenizer.encode(first)
    plain = tokenizer.encode("2 + 2")
    assert begin not in plain
    assert tokenizer.encode_prompt("2 + 2") == (begin, *plain)
    assert tokenizer.encode_prompt(f"{first}2 + 2") == (begin, *plain)


def test_what_a_template_leaves_out_on_purpose_stays_out(tmp_path: Path) -> None:
    tokenizer = load.Tokenizer(with_first_token(tmp_path / "one", "<|im_start|>"))
    text = "<|im_end|>user: hi"
    assert tokenizer.encode_prompt(text) == tokenizer.encode(text)


def test_most_tokenizers_put_nothing_first(good: Path) -> None:
    tokenizer = load.Tokenizer(good)
    assert tokenizer.encode_prompt("2 + 2") == tokenizer.encode("2 + 2")


@pytest.mark.parametrize("ends", [[256, 258], 256])
def test_every_end_token_of_the_generation_config_ends_a_completion(
    ends: int | list[int], good: Path, tmp_path: Path
) -> None:
    from workers.rollout.engine import stop_ids_of

    directory = tmp_path / "model"
    shutil.copytree(good, directory)
    with_json("generation_config.json", eos_token_id=ends)(directory)
    model = open_policy(Profile(name="x", model=Model(path=str(directory))), None, CPU).model
    assert stop_ids_of(model) == set(ends if isinstance(ends, list) else [ends])


def test_an_end_token_that_the_model_does_not_know_is_refused(good: Path, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(good, directory)
    with_json("generation_config.json", eos_token_id=[256, 300])(directory)
    with pytest.raises(LonghaulError, match="ends answers with token 300, but the model knows 272 tokens"):
        load.check(directory)


def test_shards_with_an_index_are_the_model_of_one_file(good: Path, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(good, directory)
    whole = load.load_model(good, Model(path=str(good)), CPU)
    (directory / "model.safetensors").unlink()
    whole.save_pretrained(directory, max_shard_size="40KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    parts = load.load_model(directory, Model(path=str(directory)), CPU)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, parts.state_dict()[name])


def test_an_adapter_in_the_place_of_a_model_is_refused_with_its_base(tmp_path: Path) -> None:
    with_json("adapter_config.json", base_model_name_or_path="Qwen/Qwen3-0.6B")(tmp_path)
    with pytest.raises(LonghaulError, match=r"holds an adapter of Qwen/Qwen3-0.6B, not a model") as caught:
        load.check(tmp_path)
    assert caught.value.exit_code == ExitCode.INPUT and "merge" in caught.value.next_command


def test_weights_in_another_format_are_named(good: Path, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(good, directory)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(LonghaulError, match=r"pytorch_model.bin is not read: only safetensors is"):
        load.check(directory)


CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own_kind"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_code_of_a_model_s_own_runs_only_if_the_profile_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.workers.families import write

    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    directory = tmp_path / "model"
    write("llama", directory)
    names = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    with_json("config.json", model_type="own_kind", auto_map=names, architectures=["OwnForCausalLM"])(directory)
    (directory / "modeling_own.py").write_text(CODE)
    with pytest.raises(LonghaulError, match=r"brings code of its own \(modeling_own.py\)") as caught:
        open_policy(Profile(name="x", model=Model(path=str(directory))), None, CPU)
    assert caught.value.exit_code == ExitCode.INPUT
    assert "model.trust_remote_code=true" in caught.value.next_command
    trusting = Profile(name="x", model=Model(path=str(directory), trust_remote_code=True))
    policy = open_policy(trusting, None, CPU)
    assert type(policy.model).__name__ == "OwnForCausalLM"
    head = tmp_path / "head"
    head.mkdir()
    policy.static.write(head)
    for item in policy.items:
        item.save(head / item.filename)
    assert type(open_policy(trusting, head, CPU).model).__name__ == "OwnForCausalLM"
