"""Every family is sampled and trained with the log-probs of plain transformers, by our own code or by transformers'.

Bounds: weights are float32 with unit roundoff u = 6e-8, logits spread by s = 1 to 2.4, models have 2 to 4 layers of
about ten roundings each on either side, so a log-prob is off by some s * u * sqrt(80) = 1e-6, and the largest of a few
hundred by some times that. Some tokens amplify roundings: `families.bounds_of` measures by how much.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from msgspec.structs import replace

from profiles.description import PRE, Architecture
from profiles.errors import ExitCode, LonghaulError
from profiles.families import LEFT_PADDED, compared
from profiles.schema import Adapter, Model, Profile, Sampling
from tests import REPOSITORY
from tests.workers.families import FAMILIES, WINDOW, bounds_of, model_of, with_table, write
from workers.models import attention, packing, plain
from workers.models.adapters import adapter_of, linear_names
from workers.models.log_probs import score
from workers.models.policy import Policy, open_policy
from workers.rollout.engine import EngineUnavailable, Request, Rollout
from workers.rollout.engine import Sampling as Asked
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.graph.step import TorchOperations
from workers.rollout.graph.step_weights import Projection
from workers.rollout.hf import HfEngine
from workers.rollout.native import NativeEngine
from workers.rollout.probe import BOUNDS, probe, single_log_probs, trained_log_probs
from workers.rollout.select import Portions, engine_of

BOUND = 5e-5
OWN = {name for name, (kind, _) in FAMILIES.items() if kind in compared()} - {
    "llama, dynamic rope", "llama, partial rope", "gemma4_text, embeddings of layers", "gemma4_text, shared caches",
}  # fmt: skip
UNSAMPLED = {"llama, dynamic rope", "phi3, longrope, beyond the original context"}
"""With a cache they give other numbers than a whole pass, in transformers itself."""
LOOSE = {"nemotron_h": 1e-3}
"""Its single steps and its whole pass differ by 7e-4 in transformers itself."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def profile_of(directory: Path, **changes: Any) -> Profile:
    sections: dict[str, Any] = {
        "model": Model(path=str(directory), dtype="float32"),
        "sampling": Sampling(engine="native", max_prompt_tokens=40, max_completion_tokens=24),
    }
    return Profile(name="test", **(sections | changes))


def opened(name: str, directory: Path, **changes: Any) -> tuple[Policy, Profile]:
    write(name, directory)
    profile = profile_of(directory, **changes)
    return open_policy(profile, None, torch.device("cpu")), profile


REQUESTS = [
    Request(tuple((7919 * place + 13) % 256 for place in range(3 * WINDOW)), 1),
    Request(tuple((7919 * place + 13) % 256 for place in range(3 * WINDOW)), 2),
    Request(tuple((31 * place + 7) % 256 for place in range(WINDOW + 3)), 3),
    Request((5, 6), 4),
]


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - UNSAMPLED))
def test_rollouts_and_trainer_have_the_log_probs_of_plain_transformers(name: str, tmp_path: Path) -> None:
    policy, profile = opened(name, tmp_path)
    engine = engine_of(policy.model, profile, policy.tokenizer)
    assert isinstance(engine.engine, NativeEngine if name in OWN else HfEngine)
    rollouts = engine.generate(REQUESTS, Asked(max_new_tokens=WINDOW + 4, ignore_stop=True))
    row_tokens = plain.row_tokens_for(policy.model, 512)
    trained = trained_log_probs(policy.model, rollouts, profile, row_tokens)
    other = model_of(name)  # nothing of ours has touched it
    for rollout, by_trainer, bound in zip(rollouts, trained, bounds_of(name, rollouts), strict=True):
        truth = single_log_probs(other, rollout, 1.0)
        assert ((torch.tensor(rollout.log_probs) - truth).abs() < LOOSE.get(name, bound)).all()
        assert ((by_trainer - truth).abs() < bound).all()


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_probe_lets_through_what_is_right_and_refuses_the_rest(name: str, tmp_path: Path) -> None:
    if name in UNSAMPLED:
        with pytest.raises(LonghaulError, match="changes beyond 16 tokens") as caught:
            opened(name, tmp_path)
        assert caught.value.exit_code is ExitCode.INPUT
        return
    policy, profile = opened(name, tmp_path)
    engine = engine_of(policy.model, profile, policy.tokenizer)
    row_tokens = plain.row_tokens_for(policy.model, 512)
    before = torch.get_rng_state()
    found = probe(policy.model, engine, profile, row_tokens=row_tokens)
    assert torch.equal(torch.get_rng_state(), before)
    assert found["engine_off"] < found["bound"] == BOUNDS[torch.float32] and found["trainer_off"] < BOUND
    assert found["text"].startswith("own code" if name in OWN else "plain transformers")


def gradient_of(loss: torch.Tensor, model: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


TRAINED = ["qwen3_moe", "gemma4_text, embeddings of layers", "lfm2", "qwen3_5_text", "mamba", "cohere2"]
"""Of those that plain transformers computes; `test_family_proofs.py` has our own."""


@pytest.mark.parametrize("adapter", ["none", "own", "peft"])
@pytest.mark.parametrize("name", TRAINED)
def test_gradients_are_those_of_lone_sequences_also_where_layers_are_computed_again(
    name: str, adapter: Literal["none", "own", "peft"], tmp_path: Path
) -> None:
    """Terms of either sign cancel, so rounding is a share of the largest gradient of all, and of each matrix: layers
    multiply it by their slopes. Most measured: 8e-4 and 2e-6. A mask that is forgotten changes all of them by half."""
    knobs = Model(path=str(tmp_path), dtype="float32", gradient_checkpointing=True)
    write(name, tmp_path)
    targets = ("in_proj",) if name == "mamba" else tuple(linear_names(model_of(name)))
    chosen = Adapter() if adapter == "none" else Adapter(rank=4, targets=targets, implementation=adapter)
    profile = profile_of(tmp_path, model=knobs, adapter=chosen)
    model = open_policy(profile, None, torch.device("cpu")).model
    with torch.no_grad():  # an adapter that adds nothing would have no gradient in A; a large one multiplies rounding
        for parameter in adapter_of(model).values():
            parameter.add_(0.02)
    rollouts = HfEngine(model).generate(REQUESTS, Asked(max_new_tokens=WINDOW + 4, ignore_stop=True))
    weights = [torch.linspace(-1, 1, len(one.completion_ids)) for one in rollouts]
    units = packing.units_of([one.prompt_ids for one in rollouts], [one.completion_ids for one in rollouts], 0)
    (batch,) = packing.micro_batches(units, len(rollouts), 0)
    members = [member for row in batch for unit in row for member in unit.members]
    scored = score(model, packing.pack(batch), 1.0)
    found = gradient_of((scored.log_probs * torch.cat([weights[member] for member in members])).sum(), model)
    total = torch.zeros(())
    for rollout, weight in zip(rollouts, weights, strict=True):
        ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
        begin = len(rollout.prompt_ids)
        log_p = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, begin - 1 : -1], -1)
        total = total + (log_p.gather(1, ids[0, begin:, None]).squeeze(1) * weight).sum()
    expected = gradient_of(total, model)
    assert found.keys() == expected.keys() and len(found) > 4
    largest = max(float(truth.abs().max()) for truth in expected.values())
    for one, truth in expected.items():
        assert float((found[one] - truth).abs().max()) <= 2e-3 * float(truth.abs().max()) + 1e-5 * largest, one


def without_windows(one: Architecture) -> Architecture:
    return dataclasses.replace(one, layers=tuple(dataclasses.replace(layer, window=None) for layer in one.layers))


def with_one_rope(one: Architecture) -> Architecture:
    first = one.layers[0]
    layers = (dataclasses.replace(layer, rope=first.rope, rope_name=first.rope_name) for layer in one.layers)
    return dataclasses.replace(one, layers=tuple(layers))


FORGETFUL: dict[str, Callable[[Architecture], Architecture]] = {
    "qwen3": lambda one: dataclasses.replace(one, qk_norm=""),
    "granite": lambda one: dataclasses.replace(one, attention_scale=None),
    "granite, one key head, biases, tied": lambda one: dataclasses.replace(one, residual_scale=1.0),
    "gemma2": lambda one: dataclasses.replace(one, logit_cap=None),
    "gemma3_text, two ropes, cap": with_one_rope,
    "smollm3": with_one_rope,
    "glm4": lambda one: dataclasses.replace(one, norm=dataclasses.replace(one.norm, names=PRE)),
    "gemma4_text": lambda one: dataclasses.replace(one, v_norm=False),
    "mistral, window": without_windows,
    "qwen2, window": without_windows,
}
"""Name -> a record that forgets one part of it."""


@pytest.mark.parametrize("name", sorted(FORGETFUL))
def test_a_record_that_forgets_a_part_is_caught_by_the_probe(name: str, tmp_path: Path) -> None:
    policy, profile = opened(name, tmp_path)
    policy.model.architecture = FORGETFUL[name](policy.model.architecture)
    attention.enable(policy.model)
    engine = engine_of(policy.model, profile, policy.tokenizer)
    assert isinstance(engine.engine, NativeEngine)
    with pytest.raises(LonghaulError, match="the engine native does not compute this model") as caught:
        probe(policy.model, engine, profile, row_tokens=512)
    assert caught.value.exit_code is ExitCode.INPUT and "sampling.engine=hf" in caught.value.next_command
    if "window" in name:
        hf = replace(profile, sampling=replace(profile.sampling, engine="hf"))
        right = engine_of(policy.model, hf, policy.tokenizer)
        with pytest.raises(LonghaulError, match="the trainer does not compute this model"):
            probe(policy.model, right, hf, row_tokens=512)


def test_an_engine_that_takes_the_place_of_another_is_probed_before_it_draws(tmp_path: Path) -> None:
    policy, profile = opened("qwen3", tmp_path)
    policy.model.architecture = FORGETFUL["qwen3"](policy.model.architecture)
    profile = replace(profile, sampling=replace(profile.sampling, engine="hf", fallback=("native",)))
    engine = engine_of(policy.model, profile, policy.tokenizer)
    probe(policy.model, engine, profile)

    def lost(*_: object) -> list[Rollout]:
        raise EngineUnavailable("gone")

    engine.engine.generate = lost  # type: ignore[method-assign]
    with pytest.raises(LonghaulError, match="the engine native does not compute this model"):
        engine.generate(REQUESTS, Asked(max_new_tokens=2))


@pytest.mark.parametrize("overcommit", [1.0, 2.0])
def test_captured_steps_that_are_wrong_only_for_many_rows_are_refused(
    overcommit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other kernels compute them."""
    policy, profile = opened("qwen3", tmp_path)
    engine = Portions(GraphEngine(policy.model, max_rows=9, overcommit=overcommit))
    assert probe(policy.model, engine, profile, row_tokens=512)["engine_off"] < BOUNDS[torch.float32]
    project = TorchOperations.project

    def wrong(self: TorchOperations, x: torch.Tensor, projection: Projection) -> torch.Tensor:
        found = project(self, x, projection)
        return found * 1.1 if len(x) > 8 else found

    monkeypatch.setattr(TorchOperations, "project", wrong)
    with pytest.raises(LonghaulError, match="the engine native does not compute this model"):
        probe(policy.model, engine, profile, row_tokens=512)


def test_a_model_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    """Padding on the right changes what such a model says of the tokens before it."""
    from transformers import BertConfig, BertLMHeadModel

    model = BertLMHeadModel(
        BertConfig(vocab_size=272, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                   initializer_range=0.2, is_decoder=False)
    ).eval()  # fmt: skip
    with pytest.raises(LonghaulError, match="does not compute this model") as caught:
        probe(model, Portions(HfEngine(model)), profile_of(tmp_path), row_tokens=0)
    assert caught.value.exit_code is ExitCode.INPUT


def test_prompts_of_unlike_lengths_share_a_batch_only_where_that_was_measured() -> None:
    measured = {FAMILIES[name][0] for name in FAMILIES} - {"recurrent_gemma", "nemotron_h"}
    assert measured == LEFT_PADDED


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "lfm2", "mamba"])
def test_a_checkpoint_of_all_weights_is_the_policy_again(name: str, tmp_path: Path) -> None:
    policy, profile = opened(name, tmp_path / "model")
    (tmp_path / "head").mkdir()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.01)
    policy.static.write(tmp_path / "head")
    for item in policy.items:
        item.save(tmp_path / "head" / item.filename)
    again = open_policy(profile, tmp_path / "head", torch.device("cpu"))
    for item in again.items:
        item.load(tmp_path / "head" / item.filename)
    ids = torch.tensor([REQUESTS[0].prompt_ids])
    with torch.no_grad():
        assert torch.equal(policy.model(ids, use_cache=False).logits, again.model(ids, use_cache=False).logits)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "phi3", "lfm2"])
def test_a_quantised_base_with_an_adapter_passes_the_probe_and_its_proof(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    targets = tuple(linear_names(model_of(name)))
    profile = profile_of(
        tmp_path, model=Model(path=str(tmp_path), dtype="bfloat16", quantization="nf4"),
        adapter=Adapter(rank=4, targets=targets, implementation="own"),
    )  # fmt: skip
    policy = open_policy(profile, None, torch.device("cpu"))
    engine = engine_of(policy.model, profile, policy.tokenizer)
    found = probe(policy.model, engine, profile, row_tokens=plain.row_tokens_for(policy.model, 512))
    assert found["text"].startswith("own code" if name in OWN else "plain transformers") and found["bound"] == 0.1
    for item in policy.items:
        item.save(tmp_path / item.filename)
        item.load(tmp_path / item.filename)


def test_targets_of_another_family_are_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError, match="down_proj, gate_up_proj, o_proj, qkv_proj") as caught:
        opened("phi3", tmp_path, adapter=Adapter(rank=4, targets=("q_proj",)))
    assert caught.value.exit_code is ExitCode.INPUT


@pytest.mark.parametrize("implementation", ["own", "peft"])
def test_a_layer_whose_weight_is_read_past_an_adapter_is_refused(
    implementation: Literal["own", "peft"], tmp_path: Path
) -> None:
    adapter = Adapter(rank=4, targets=("in_proj", "out_proj", "dt_proj"), implementation=implementation)
    with pytest.raises(LonghaulError, match="cannot have an adapter") as caught:
        opened("mamba", tmp_path, adapter=adapter)
    assert caught.value.exit_code is ExitCode.INPUT


def test_the_table_of_families_in_the_docs_is_what_the_tests_say() -> None:
    """Where it is not: python -m tests.workers.families"""
    text = (REPOSITORY / "docs/models.md").read_text()
    assert text == with_table(text)
