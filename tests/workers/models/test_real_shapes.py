"""What a GPU computes at the real shapes of the models that people train, with random weights; only where there is one.

The judge is plain transformers in float32 with the weights that the policy holds. Rounding to bfloat16 is large next to
any mistake in a formula's last term, so the yardstick is plain transformers in bfloat16: our own code may be as far
from the judge as that is, and little more.
"""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from profiles.schema import Adapter, Data, Grpo, Model, Optimizer, Profile, Run, Sampling
from tests.profiles.variants import with_variants
from tests.workers.grpo.small import sums, write_problems
from tests.workers.grpo.test_grpo_worker import checkpoint_of, trained
from tests.workers.models.test_families import gradient_of
from tests.workers.models.test_family_proofs import assert_drawn_from
from tests.workers.torch_settings import torch_as_it_was
from workers.export.job import export
from workers.line_contract import ExportSpec
from workers.models import fast_stack, packing, random_init
from workers.models.adapters import adapter_of
from workers.models.log_probs import score
from workers.models.lora import LoraLinear
from workers.models.policy import Policy, open_policy
from workers.rollout.engine import Request, Rollout
from workers.rollout.engine import Sampling as Asked
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.probe import plainly, single_log_probs, trained_log_probs
from workers.rollout.select import Portions, engine_of

SHAPES = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "llama-3.2-1b", "llama-3.2-3b", "gemma-3-1b", "smollm3-3b")
DEVICE, ROW_TOKENS, TOKENS = torch.device("cuda"), 2048, 32
LONG = 600
"""Tokens of the longest prompt: more than the window of Gemma 3."""
MORE = 1.5
"""Times the distance of plain transformers in bfloat16 from the judge. Two roundings of it are 1.4 apart."""
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"),
    pytest.mark.timeout(600),
]


@pytest.fixture(autouse=True)
def leave_torch_as_it_was() -> Iterator[None]:
    with torch_as_it_was():
        torch.set_float32_matmul_precision("highest")
        yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture(scope="module", params=SHAPES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose norms and biases are far from those that a model begins with."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    with DEVICE:
        random_init.write(request.param, 0, "bfloat16", folder)
    generator = torch.Generator().manual_seed(1)
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for one in (one for one in tensors.values() if one.ndim == 1):
            one += (0.3 * torch.randn(one.shape, generator=generator)).to(one.dtype)
        save_file(tensors, path, metadata={"format": "pt"})
    return folder


def opened(directory: Path, **changes: Any) -> tuple[Policy, Profile]:
    """The policy as a worker has it; its adapter, if it has one, adds something."""
    sections: dict[str, Any] = {
        "model": Model(path=str(directory), gradient_checkpointing=True, dtype="bfloat16", **changes.pop("model", {})),
        "sampling": Sampling(max_prompt_tokens=LONG, max_completion_tokens=TOKENS, temperature=1.0),
        "optimizer": Optimizer(row_tokens=ROW_TOKENS),
    }
    profile = Profile(name="test", **(sections | changes))
    policy = open_policy(profile, None, DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(2)
    with torch.no_grad():
        for parameter in adapter_of(policy.model).values() if profile.adapter.rank else ():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator, device=DEVICE))
    return policy, profile


HOW: dict[str, dict[str, Any]] = {
    "bfloat16, all weights": {},
    "nf4, adapter": {"model": {"quantization": "nf4"}, "adapter": Adapter(rank=16, alpha=32.0)},
}


def judge_of(model: Any, directory: Path) -> Any:
    """Plain transformers in float32, with adapters added to the weights below them."""
    from bitsandbytes.functional import dequantize_4bit

    make: Any = AutoModelForCausalLM.from_config
    with DEVICE:
        judge = make(AutoConfig.from_pretrained(directory), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in judge.named_parameters():
            path, _, kind = name.rpartition(".")
            module = model.get_submodule(path)
            value = getattr(getattr(module, "base_layer", module), kind)
            if (state := getattr(value, "quant_state", None)) is not None:
                value = dequantize_4bit(value.data, state)
            parameter.copy_(value)
            if kind == "weight" and isinstance(module, LoraLinear):
                a, b = module.matrices
                parameter.add_(b.double() @ a.double(), alpha=module.scale)
    return judge


def drawn(policy: Policy, profile: Profile) -> list[Rollout]:
    """Of prompts of three lengths, two of them shared, by captured steps."""
    engine = captured(policy, profile)
    vocabulary = policy.model.config.vocab_size
    prompts = [tuple((7919 * place + 13) % vocabulary for place in range(length)) for length in (LONG, 40, 2)]
    asked = [Request(prompt, seed) for seed, prompt in enumerate([prompts[0], prompts[0], *prompts[1:], prompts[1]])]
    found = engine.generate(asked, Asked(max_new_tokens=TOKENS, ignore_stop=True))
    engine.rest()
    return list(found)


def captured(policy: Policy, profile: Profile) -> Portions:
    engine = engine_of(policy.model, profile, policy.tokenizer)
    assert isinstance(engine.engine, GraphEngine)
    return engine


def off(found: Sequence[Any], truth: Sequence[torch.Tensor]) -> float:
    """Mean distance of log-probs, in nats."""
    pairs = zip(found, truth, strict=True)
    return float(torch.cat([(torch.as_tensor(one).double() - true.double()).abs() for one, true in pairs]).mean())


@pytest.mark.parametrize("how", HOW)
def test_log_probs_of_engine_and_trainer_are_as_near_float32_as_those_of_plain_transformers(
    how: str, directory: Path, record_property: Any
) -> None:
    policy, profile = opened(directory, **HOW[how])
    rollouts = drawn(policy, profile)
    trainer = trained_log_probs(policy.model, rollouts, profile, ROW_TOKENS)
    with plainly(policy.model):
        rounded = [single_log_probs(policy.model, one, 1.0) for one in rollouts]
    judge = judge_of(policy.model, directory)
    truth = [single_log_probs(judge, one, 1.0) for one in rollouts]
    allowed = MORE * off(rounded, truth)
    of_engine, of_trainer = off([one.log_probs for one in rollouts], truth), off(trainer, truth)
    record_property("nats off: engine, trainer, plain", (of_engine, of_trainer, allowed / MORE))
    assert of_engine <= allowed < 0.1 and of_trainer <= allowed


def loss_of(log_probs: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([(one * torch.linspace(-1, 1, len(one), device=DEVICE)).sum() for one in log_probs]).sum()


def packed_gradient(model: Any, rollouts: Sequence[Rollout]) -> dict[str, torch.Tensor]:
    """Of all rollouts in packed rows, as an update computes it."""
    units = packing.units_of([one.prompt_ids for one in rollouts], [one.completion_ids for one in rollouts], ROW_TOKENS)
    (batch,) = packing.micro_batches(units, len(rollouts), ROW_TOKENS)
    members = [member for row in batch for unit in row for member in unit.members]
    scored = score(model, packing.pack(batch).to(DEVICE), 1.0)
    parts = torch.split(scored.log_probs, [len(rollouts[member].completion_ids) for member in members])
    return gradient_of(loss_of([part for _, part in sorted(zip(members, parts, strict=True))]), model)


def plain_gradient(model: Any, rollouts: Sequence[Rollout]) -> dict[str, torch.Tensor]:
    """By the model's own passes over single sequences."""
    model.zero_grad()
    for one in rollouts:
        begin = len(one.prompt_ids)
        ids = torch.tensor([one.prompt_ids + one.completion_ids], device=DEVICE)
        logits = model(input_ids=ids, use_cache=False).logits[0, begin - 1 : -1].float()
        loss_of([torch.log_softmax(logits, -1).gather(1, ids[0, begin:, None])[:, 0]]).backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@torch.no_grad()
def of_adapter(gradient: Mapping[str, torch.Tensor], model: Any) -> dict[str, torch.Tensor]:
    """The gradients of A and B, given those of the weights that they were added to."""
    found = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for path, module in model.named_modules():
        if isinstance(module, LoraLinear):
            (a, b), whole = module.matrices, gradient[f"{path}.weight"].double()
            found[names[id(a)]] = module.scale * b.double().t() @ whole
            found[names[id(b)]] = module.scale * whole @ a.double().t()
    return found


def distances(found: Mapping[str, torch.Tensor], truth: Mapping[str, torch.Tensor]) -> tuple[float, float]:
    """Of the whole gradient, and the largest of any tensor: norm of the difference by the norm of the truth."""
    assert found.keys() == truth.keys()
    squares = [
        (float((found[name].double() - one.double()).square().sum()), float(one.double().square().sum()))
        for name, one in truth.items()
    ]
    whole = sum(error for error, _ in squares) / sum(size for _, size in squares)
    return float(whole**0.5), max((error / size) ** 0.5 for error, size in squares)


@pytest.mark.parametrize("how", HOW)
def test_gradients_of_packed_rows_are_as_near_float32_as_those_of_plain_transformers(
    how: str, directory: Path, record_property: Any
) -> None:
    policy, profile = opened(directory, **HOW[how])
    model = policy.model
    if profile.adapter.rank:
        assert fast_stack.has_stack(model)
    rollouts = drawn(policy, profile)
    found = packed_gradient(model, rollouts)
    with plainly(model):
        rounded = {name: one.clone() for name, one in plain_gradient(model, rollouts).items()}
    judge = judge_of(model, directory)
    truth = plain_gradient(judge, rollouts)
    if profile.adapter.rank:
        truth = of_adapter(truth, model)
    (whole, largest), (plain_whole, plain_largest) = distances(found, truth), distances(rounded, truth)
    record_property("gradient off: ours, plain", (whole, plain_whole, "in a tensor", largest, plain_largest))
    assert whole <= MORE * plain_whole < 0.5 and largest <= MORE * plain_largest


DRAWS = 2000


@pytest.mark.parametrize("how", HOW)
def test_draws_follow_the_distribution_of_plain_transformers(how: str, directory: Path) -> None:
    policy, profile = opened(directory, **HOW[how])
    prompt = tuple(range(5, 29))
    asked = [Request(prompt, seed) for seed in range(DRAWS)]
    found = captured(policy, profile).generate(asked, Asked(max_new_tokens=2, ignore_stop=True))
    pairs = torch.tensor([one.completion_ids for one in found])
    judge, vocabulary = judge_of(policy.model, directory), policy.model.config.vocab_size
    with torch.no_grad():
        start = torch.tensor([prompt], device=DEVICE)
        now = judge(start, use_cache=False, logits_to_keep=1).logits[0, -1].double().softmax(-1)
        then = torch.zeros_like(now)
        for first in pairs[:, 0].to(DEVICE).split(100):
            ids = torch.cat([start.expand(len(first), -1), first[:, None]], dim=1)
            then += judge(ids, use_cache=False, logits_to_keep=1).logits[:, -1].double().softmax(-1).sum(0)
    assert_drawn_from(pairs[:, 0].bincount(minlength=vocabulary), now.cpu())
    assert_drawn_from(pairs[:, 1].bincount(minlength=vocabulary), (then / DRAWS).cpu())


def test_an_export_is_what_plain_transformers_and_peft_read(directory: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    policy, profile = opened(directory, adapter=Adapter(rank=16, alpha=32.0))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for item in policy.items:
        item.save(checkpoint / item.filename)
    policy.static.write(checkpoint)
    ids = torch.tensor([range(5, 69)], device=DEVICE)
    read: Any = AutoModelForCausalLM.from_pretrained
    with torch.no_grad():
        truth = judge_of(policy.model, directory)(ids, use_cache=False).logits
        base = read(directory, dtype=torch.float32).to(DEVICE)
        says = float((base(ids, use_cache=False).logits - truth).abs().mean())
    for kind in ("merged", "adapter"):
        (out := tmp_path / kind).mkdir()
        spec = ExportSpec(kind=kind, directory=str(checkpoint), step=1, out=str(out), profile=profile, dtype="auto",
                          source={"run": "x", "step": 1})  # fmt: skip
        export(spec, lambda _: None)
        theirs: Any = read(out, dtype=torch.float32) if kind == "merged" else PeftModel.from_pretrained(base, str(out))
        with torch.no_grad():
            found = theirs.to(DEVICE).eval()(input_ids=ids, use_cache=False).logits
        # Merged weights are rounded to bfloat16, an adapter is float32.
        assert float((found - truth).abs().mean()) <= (0.2 if kind == "merged" else 1e-3) * says


@pytest.mark.parametrize("how", HOW)
def test_a_run_in_parts_ends_in_the_same_bytes(how: str, directory: Path, tmp_path: Path) -> None:
    knobs: dict[str, Any] = HOW[how].get("model", {})
    has_adapter = "adapter" in HOW[how]
    if not has_adapter and not directory.name.startswith(SHAPES[0]):
        pytest.skip("its five checkpoints would be of 8 bytes a weight")
    profile = Profile(
        name="test",
        run=Run(worker="grpo", checkpoint_every=100),
        model=Model(
            prompt_style="verbatim", path=str(directory), gradient_checkpointing=True, dtype="bfloat16", **knobs
        ),
        adapter=HOW[how].get("adapter", Adapter()),
        sampling=Sampling(max_prompt_tokens=16, max_completion_tokens=48),
        grpo=with_variants(Grpo, groups_per_step=2, group_size=4, random_rewards=True, truncated="keep"),
        optimizer=Optimizer(
            kind="adamw" if has_adapter else "adamw8bit",
            learning_rate=1e-4,
            warmup_steps=0,
            micro_batch_size=2,
            row_tokens=256,
        ),
        data=Data(tasks=str(write_problems(tmp_path / "sums.jsonl", sums(12)))),
    )
    whole = checkpoint_of(trained(tmp_path / "whole", profile, 3))
    assert checkpoint_of(trained(tmp_path / "parts", profile, 1, 3)).digest == whole.digest
