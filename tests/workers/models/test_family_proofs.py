"""What our own code makes of each family beyond log-probs: gradients, draws, conversations, exports, resumes.

The judge is plain transformers in float32, in its own attention over single sequences. Bounds on log-probs are derived
in `test_families.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.schema import Adapter, Model, Optimizer
from tests.workers.families import FAMILIES, bounds_of, model_of, write
from tests.workers.grpo.test_grpo_worker import checkpoint_of as head_of
from tests.workers.grpo.test_grpo_worker import problems as problems  # a fixture
from tests.workers.grpo.test_grpo_worker import profile_of as grpo_profile
from tests.workers.grpo.test_grpo_worker import trained
from tests.workers.models.test_families import BOUND, OWN, REQUESTS, UNSAMPLED, WINDOW, gradient_of, opened, profile_of
from tests.workers.torch_settings import torch_as_it_was
from workers.export.job import export
from workers.line_contract import ExportSpec
from workers.models import packing, plain
from workers.models.adapters import adapter_of
from workers.models.log_probs import score
from workers.models.policy import open_policy
from workers.rollout.continuous import ContinuousEngine
from workers.rollout.engine import EngineUnavailable, Request, Rollout
from workers.rollout.engine import Sampling as Asked
from workers.rollout.native import NativeEngine
from workers.rollout.probe import plainly, single_log_probs

PROVEN = sorted(OWN - UNSAMPLED)
ODD = {
    "apertus", "gemma2", "gemma3_text, two ropes, cap", "gemma4_text", "glm4", "granite, one key head, biases, tied",
    "ministral3, window, beyond the original context", "olmo3, two ropes", "phi3, longrope",
    "qwen3, one key head, biases, tied, window", "smollm3, biases, window",
}  # fmt: skip
"""Of each part at least one; the others repeat them."""


def some(*chosen: str) -> list[Any]:
    """All that our own code computes; those not chosen only on request."""
    return [pytest.param(name, marks=() if name in chosen else pytest.mark.exhaustive) for name in PROVEN]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_as_it_was():
        torch.set_num_threads(1)
        yield


def adapted(name: str, directory: Path, rank: int = 4, **model: Any) -> tuple[Any, Any]:
    """The policy with an adapter that adds something, on all linear layers by their usual names; its profile."""
    knobs = Model(path=str(directory), dtype="float32", **model)
    policy, profile = opened(name, directory, model=knobs, adapter=Adapter(rank=rank, alpha=4.0))
    with torch.no_grad():
        for parameter in adapter_of(policy.model).values():
            parameter.add_(0.05)
    return policy, profile


@pytest.mark.parametrize("rank", [0, 4], ids=["all weights", "an adapter"])
@pytest.mark.parametrize("name", some(*ODD))
def test_gradients_of_packed_rows_are_those_of_lone_sequences(name: str, rank: int, tmp_path: Path) -> None:
    """Terms of either sign cancel, so rounding is a share of the largest gradient of all, and of each tensor."""
    policy, _ = adapted(name, tmp_path, rank, gradient_checkpointing=True)
    model = policy.model
    assert model.fast_runner.stack.learns_all is (rank == 0)
    rollouts = NativeEngine(model).generate(REQUESTS, Asked(max_new_tokens=WINDOW + 4, ignore_stop=True))
    weights = [torch.linspace(-1, 1, len(one.completion_ids)) for one in rollouts]
    row_tokens = plain.row_tokens_for(model, 512)
    units = packing.units_of([one.prompt_ids for one in rollouts], [one.completion_ids for one in rollouts], row_tokens)
    (batch,) = packing.micro_batches(units, len(rollouts), row_tokens)
    assert row_tokens and len(batch) == 1  # all in one row
    members = [member for row in batch for unit in row for member in unit.members]
    scored = score(model, packing.pack(batch), 1.3, max_logits=5 * 272)
    found = gradient_of((scored.log_probs * torch.cat([weights[member] for member in members])).sum(), model)
    total = torch.zeros(())
    with plainly(model):
        for rollout, weight in zip(rollouts, weights, strict=True):
            ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
            begin = len(rollout.prompt_ids)
            log_p = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, begin - 1 : -1] / 1.3, -1)
            total = total + (log_p.gather(1, ids[0, begin:, None]).squeeze(1) * weight).sum()
        expected = gradient_of(total, model)
    assert found.keys() == expected.keys() and len(found) > 4
    largest = max(float(truth.abs().max()) for truth in expected.values())
    for one, truth in expected.items():
        assert float((found[one] - truth).abs().max()) <= 2e-3 * float(truth.abs().max()) + 1e-5 * largest, one


DRAWS = 2000


PARTS, LEAST = 8, 20


def parts_of(probabilities: torch.Tensor, draws: float) -> torch.Tensor:
    """The part of each token, in order of probability. A part ends with an eighth of what is left when it begins.

    A tiny model may put nearly all on one token. That is a part then, and the others are still told apart.
    """
    part, number, left, held = torch.zeros(len(probabilities), dtype=torch.long), 0, 1.0, 0.0
    for token in probabilities.argsort(descending=True).tolist():
        if held >= left / PARTS and held * draws >= LEAST and (left - held) * draws >= LEAST:
            number, left, held = number + 1, left - held, 0.0
        part[token] = number
        held += float(probabilities[token])
    return part


def assert_drawn_from(counts: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Pearson's statistic over parts that each expect 20 draws; at most 5 sigma too large."""
    draws = float(counts.sum())
    part = parts_of(probabilities, draws)
    held, wanted = (
        torch.zeros(int(part.max()) + 1).double().index_add(0, part, one.double())
        for one in (counts, probabilities * draws)
    )
    freedom = len(wanted) - 1
    assert freedom >= 3 and float(wanted.min()) >= LEAST - 1
    assert float(((held - wanted) ** 2 / wanted).sum()) <= freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("name", some("gemma3_text, two ropes, cap", "gemma4_text", "phi3, longrope"))
def test_draws_follow_the_distribution_of_plain_transformers(name: str, tmp_path: Path) -> None:
    policy, _ = opened(name, tmp_path)
    prompt = REQUESTS[0].prompt_ids
    asked = [Request(prompt, seed) for seed in range(DRAWS)]
    found = NativeEngine(policy.model).generate(asked, Asked(temperature=0.7, max_new_tokens=2, ignore_stop=True))
    pairs = torch.tensor([one.completion_ids for one in found])
    first = pairs[:, 0].bincount(minlength=272)
    other = model_of(name)
    with torch.no_grad():
        now = (other(torch.tensor([prompt]), use_cache=False).logits[0, -1] / 0.7).softmax(-1)
        usual = first.argsort(descending=True)[:8]
        after = torch.stack([torch.tensor([*prompt, one]) for one in usual.tolist()])
        then = (other(after, use_cache=False).logits[:, -1] / 0.7).softmax(-1)
    assert_drawn_from(first, now)
    # Second tokens after any of the most frequent first ones, from the mixture of their distributions.
    counts = first[usual].double()
    second = pairs[torch.isin(pairs[:, 0], usual), 1].bincount(minlength=272)
    assert_drawn_from(second, (then.double() * counts[:, None]).sum(0) / counts.sum())


def said(number: int, so_far: Rollout) -> Future[Sequence[int]]:
    """Three turns, with replies of other lengths for each conversation."""
    found: Future[Sequence[int]] = Future()
    is_over = len(so_far.completion_ids) > 3 * WINDOW
    found.set_result(() if is_over else tuple((17 * place + number) % 256 for place in range(3 + 2 * number)))
    return found


@pytest.mark.parametrize("name", some("gemma2", "gemma4_text", "ministral3, window, beyond the original context"))
def test_a_conversation_reads_behind_its_cache_what_a_whole_pass_reads(name: str, tmp_path: Path) -> None:
    policy, _ = opened(name, tmp_path)
    engine = NativeEngine(policy.model, policy.tokenizer.decode, stop_ids=range(0, 272, 5))
    found = engine.converse(REQUESTS, Asked(max_new_tokens=5 * WINDOW), said)
    other = model_of(name)
    assert sum(False in one.is_own for one in found) >= 2
    for one, bound in zip(found, bounds_of(name, found), strict=True):
        own = torch.tensor(one.is_own or (True,) * len(one.completion_ids))
        truth = single_log_probs(other, one, 1.0)[own]
        assert ((torch.tensor(one.log_probs) - truth).abs() < bound[own]).all()


UNPAGED = {name for name in PROVEN if FAMILIES[name][0] in ("gemma2", "gemma4_text")}


@pytest.mark.parametrize("name", some("gemma2", "gemma4_text", "olmo3, two ropes", "phi3, longrope"))
def test_continuous_batching_has_the_log_probs_of_plain_transformers_or_refuses(name: str, tmp_path: Path) -> None:
    policy, _ = opened(name, tmp_path)
    if name in UNPAGED:
        with pytest.raises(EngineUnavailable, match="continuous batching does not compute this model"):
            ContinuousEngine(policy.model)
        return
    asked = Asked(max_new_tokens=WINDOW + 4, ignore_stop=True)
    other = model_of(name)
    rollouts = ContinuousEngine(policy.model).generate(REQUESTS, asked)
    for one, bound in zip(rollouts, bounds_of(name, rollouts), strict=True):
        assert ((torch.tensor(one.log_probs) - single_log_probs(other, one, 1.0)).abs() < bound).all()


@pytest.mark.parametrize("name", some("apertus", "gemma3_text, two ropes, cap", "gemma4_text", "phi3, longrope"))
def test_an_export_is_what_plain_transformers_and_peft_read(name: str, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, checkpoint = tmp_path / "base", tmp_path / "checkpoint"
    policy, profile = adapted(name, base)
    checkpoint.mkdir()
    for item in policy.items:
        item.save(checkpoint / item.filename)
    policy.static.write(checkpoint)
    read: Any = AutoModelForCausalLM.from_pretrained
    ids = torch.tensor([REQUESTS[0].prompt_ids])
    with torch.no_grad(), plainly(policy.model):
        truth = policy.model(ids, use_cache=False).logits
    for kind in ("merged", "adapter"):
        out = tmp_path / kind
        out.mkdir()
        export(
            ExportSpec(kind=kind, directory=str(checkpoint), step=1, out=str(out), profile=profile, dtype="auto",
                       source={"run": "x", "step": 1}),
            lambda _: None,
        )  # fmt: skip
        theirs: Any = read(out) if kind == "merged" else PeftModel.from_pretrained(read(base), str(out))
        with torch.no_grad():
            found = theirs.eval()(input_ids=ids, use_cache=False).logits
        assert (found - truth).abs().max() < BOUND
    with torch.no_grad():
        assert (read(base)(ids, use_cache=False).logits - truth).abs().max() > 0.01  # the adapter says something


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "rank"),
    [
        pytest.param("gemma3_text, two ropes, cap", 0, id="all weights"),
        pytest.param("phi3, longrope", 2, id="an adapter on fused layers"),
        *(pytest.param(name, 0, marks=pytest.mark.exhaustive) for name in sorted(ODD)),
    ],
)
def test_a_run_in_parts_ends_in_the_same_bytes(name: str, rank: int, tmp_path: Path, problems: Path) -> None:
    write(name, tmp_path / "model")
    profile = grpo_profile(
        problems,
        model=Model(prompt_style="verbatim", path=str(tmp_path / "model"), gradient_checkpointing=True),
        adapter=Adapter(rank=rank) if rank else Adapter(),
        optimizer=Optimizer(learning_rate=1e-3, warmup_steps=0, updates_per_step=2, micro_batch_size=4),
    )
    whole = head_of(trained(tmp_path / "whole", profile, 3))
    assert head_of(trained(tmp_path / "parts", profile, 1, 3)).digest == whole.digest


def test_seven_usual_targets_fit_a_family_with_fused_layers_and_one_without_a_gate(tmp_path: Path) -> None:
    for name, expected in (("phi3", 4), ("apertus", 6), ("gemma4_text", 7)):
        policy, _ = adapted(name, tmp_path / name)
        layer = policy.model.model.layers[0]
        wrapped = [path for path, module in layer.named_modules() if hasattr(module, "base_layer")]
        assert len(wrapped) == expected
    again = open_policy(profile_of(tmp_path / "phi3", adapter=Adapter(rank=2)), None, torch.device("cpu"))
    assert sorted(again.model.adapter_knobs.targets) == ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]
