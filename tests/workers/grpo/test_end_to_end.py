"""Rows 1 to 3 and 46: numbers that padding cannot change, and a policy that learns what is rewarded."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from profiles.schema import Adapter, Data, Grpo, Model, Optimizer, Sampling
from tests.workers.grpo.small import sums, tiny_model, write_problems
from tests.workers.grpo.test_grpo_worker import metrics_of, profile_of, trained
from workers.grpo.collecting import Asker
from workers.models import packing, random_init
from workers.models.log_probs import score
from workers.rewards.reward import Case
from workers.verifiers.verify import Verdict

SEQUENCES = [((5, 6, 7), (8, 9, 1)), ((11, 12, 13, 14, 15, 16), (17, 1)), ((20, 21), (22, 23, 24, 25, 1))]


def alone(model: Any, prompt: tuple[int, ...], completion: tuple[int, ...]) -> torch.Tensor:
    log_p = torch.log_softmax(model(torch.tensor([[*prompt, *completion]])).logits[0], -1)
    return torch.stack([log_p[len(prompt) - 1 + place, token] for place, token in enumerate(completion)])


def padded(model: Any, *, left: bool, pad: int = 0, has_positions: bool = True) -> list[torch.Tensor]:
    """All in one batch; on the left with the positions that the mask gives, or with those of the columns."""
    width = max(len(prompt) + len(completion) for prompt, completion in SEQUENCES)
    ids, mask = torch.full((len(SEQUENCES), width), pad), torch.zeros(len(SEQUENCES), width, dtype=torch.long)
    starts = []
    for row, (prompt, completion) in enumerate(SEQUENCES):
        whole = [*prompt, *completion]
        start = width - len(whole) if left else 0
        ids[row, start : start + len(whole)] = torch.tensor(whole)
        mask[row, start : start + len(whole)] = 1
        starts.append(start)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    given = {"attention_mask": mask, "position_ids": positions} if has_positions else {}
    log_p = torch.log_softmax(model(ids, **given).logits, -1)
    return [
        torch.stack([log_p[row, starts[row] + len(prompt) - 1 + k, token] for k, token in enumerate(completion)])
        for row, (prompt, completion) in enumerate(SEQUENCES)
    ]


def packed(model: Any, row_tokens: int) -> list[torch.Tensor]:
    units = packing.units_of(*map(list, zip(*SEQUENCES, strict=True)), row_tokens)
    (batch,) = packing.micro_batches(units, len(SEQUENCES), row_tokens)
    pack = packing.pack(batch)
    log_probs = score(model, pack, 1.0).log_probs
    return [log_probs[pack.owners == number] for number in range(len(SEQUENCES))]


@torch.no_grad()
def test_row_1_alone_padded_on_either_side_and_packed_give_the_same_log_probs() -> None:
    model = tiny_model()
    expected = [alone(model, *one) for one in SEQUENCES]
    ways = [padded(model, left=False), padded(model, left=True), packed(model, 64), packed(model, 8)]
    for found in ways:
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@torch.no_grad()
def test_row_2_padding_on_the_left_without_positions_and_mask_is_seen() -> None:
    model = tiny_model()
    wrong = padded(model, left=True, has_positions=False)
    differences = [(one - alone(model, *two)).abs().max() for one, two in zip(wrong, SEQUENCES, strict=True)]
    assert max(differences) > 1e-3


@torch.no_grad()
def test_row_3_what_stands_in_the_padding_changes_no_bit() -> None:
    model = tiny_model()
    for left in (False, True):
        for one, other in zip(padded(model, left=left), padded(model, left=left, pad=42), strict=True):
            assert torch.equal(one, other)


def write_model(directory: Path) -> Path:
    """A head of its own that can say something: at its usual scale no adapter could make it prefer half the tokens."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    directory.mkdir()
    random_init.write("qwen2-tiny", 0, "float32", directory)
    config = Qwen2Config.from_pretrained(directory, tie_word_embeddings=False)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight *= 8
    model.save_pretrained(directory)
    return directory


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_row_46_a_policy_that_is_paid_for_even_first_tokens_learns_to_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = Asker.case

    def paid(self: Asker, problem: int, rollout: Any) -> Case:
        is_even = rollout.completion_ids[0] % 2 == 0
        verdict = Verdict(is_even, "even" if is_even else "odd", "")
        return replace(judged(self, problem, rollout), verdict=verdict)

    monkeypatch.setattr(Asker, "case", paid)
    problems = write_problems(tmp_path / "p.jsonl", Random(0).sample(sums(40), 40))
    profile = profile_of(
        problems,
        model=Model(path=str(write_model(tmp_path / "model")), prompt_style="verbatim"),
        adapter=Adapter(rank=4, alpha=8.0),
        data=Data(tasks=str(problems)),
        sampling=Sampling(max_prompt_tokens=16, max_completion_tokens=4),
        grpo=Grpo(groups_per_step=4, group_size=8, truncated="keep"),
        optimizer=Optimizer(learning_rate=5e-3, warmup_steps=0, row_tokens=64),
    )
    trained(tmp_path / "run", profile, 200)
    steps = metrics_of(tmp_path / "run")
    rewards = [step["reward"] for step in steps]
    parts = [sum(rewards[at : at + 50]) / 50 for at in range(0, 200, 50)]
    assert sum(rewards[:2]) / 2 < 0.7
    assert parts[-1] >= 0.9
    assert all(later >= earlier - 0.1 for earlier, later in pairwise(parts))
    assert len(steps) == 200
    assert all(math.isfinite(value) for step in steps for value in step.values() if isinstance(value, float))
