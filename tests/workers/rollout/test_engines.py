"""What every engine promises, against a direct forward pass on a tiny random model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from tests.workers.rollout.models import LETTERS, PROMPTS, REQUESTS, decode, direct_log_probs, tiny_model
from workers.rollout import continuous
from workers.rollout.continuous import ContinuousEngine
from workers.rollout.engine import Request, RolloutEngine, Sampling, cumulated_sum, doubled_sum
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.hf import HfEngine
from workers.rollout.hf_graphs import HfGraphEngine
from workers.rollout.native import NativeEngine

Make = Callable[..., RolloutEngine]
MODEL = tiny_model()


@pytest.fixture(
    params=[NativeEngine, GraphEngine, HfEngine, HfGraphEngine, ContinuousEngine],
    ids=["native", "graph", "hf", "hf graphs", "continuous"],
)
def engine(request: pytest.FixtureRequest) -> RolloutEngine:
    made: Any = request.param
    return made(MODEL, decode)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probs_are_those_of_a_direct_forward_pass(engine: RolloutEngine, temperature: float) -> None:
    rollouts = engine.generate(REQUESTS, Sampling(temperature=temperature, max_new_tokens=24))
    assert [rollout.prompt_ids for rollout in rollouts] == PROMPTS
    for rollout in rollouts:
        expected = direct_log_probs(MODEL, rollout, temperature)
        torch.testing.assert_close(torch.tensor(rollout.log_probs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=24), Sampling(greedy=True, max_new_tokens=24)])
def test_seeds_decide_the_tokens_in_every_engine(engine: RolloutEngine, sampling: Sampling) -> None:
    expected = NativeEngine(MODEL).generate(REQUESTS, sampling)
    found = engine.generate(REQUESTS, sampling)
    assert [one.completion_ids for one in found] == [one.completion_ids for one in expected]
    assert [one.finish_reason for one in found] == [one.finish_reason for one in expected]


def test_a_rollout_does_not_depend_on_its_batch(engine: RolloutEngine) -> None:
    sampling = Sampling(max_new_tokens=16)
    together = engine.generate(REQUESTS, sampling)
    alone = [engine.generate([request], sampling)[0] for request in REQUESTS]
    assert [one.completion_ids for one in together] == [one.completion_ids for one in alone]


def test_a_stop_text_ends_the_completion_and_belongs_to_it(engine: RolloutEngine) -> None:
    requests = [Request((5, 6), seed) for seed in range(40)]
    free = engine.generate(requests, Sampling(max_new_tokens=24))
    text = decode(free[3].completion_ids)
    stop = (text[1:3], "Q.")
    stopped = engine.generate(requests, Sampling(max_new_tokens=24, stop=stop))
    for before, after in zip(free, stopped, strict=True):
        ends = [
            decode(before.completion_ids).find(one) + len(one) for one in stop if one in decode(before.completion_ids)
        ]
        length = min(ends, default=len(before.completion_ids))
        assert after.completion_ids == before.completion_ids[:length]
        assert after.log_probs == pytest.approx(before.log_probs[:length], abs=1e-4)
        assert after.finish_reason == ("stop_text" if ends else before.finish_reason)
    assert stopped[3].finish_reason == "stop_text"


def test_stop_tokens_end_completions_and_the_limit_the_others(engine: RolloutEngine) -> None:
    rollouts = engine.generate([Request((5, 6), seed) for seed in range(64)], Sampling(max_new_tokens=12))
    for rollout in rollouts:
        assert LETTERS.index("$") not in rollout.completion_ids[:-1]
        assert (rollout.finish_reason == "stop") == (decode(rollout.completion_ids)[-1] == "$")
        assert rollout.finish_reason == "stop" or len(rollout.completion_ids) == 12
    assert {rollout.finish_reason for rollout in rollouts} == {"stop", "length"}


def test_nothing_ends_a_completion_that_ignores_its_stops(engine: RolloutEngine) -> None:
    requests = [Request((5, 6), seed) for seed in range(64)]
    rollouts = engine.generate(requests, Sampling(max_new_tokens=12, ignore_stop=True, stop=("Q",)))
    assert {(len(rollout.completion_ids), rollout.finish_reason) for rollout in rollouts} == {(12, "length")}
    assert any(LETTERS.index("$") in rollout.completion_ids[:-1] for rollout in rollouts)


def test_entropies_are_those_of_the_distributions_drawn_from() -> None:
    for made in (NativeEngine(MODEL), GraphEngine(MODEL), HfEngine(MODEL), HfGraphEngine(MODEL)):
        for rollout in made.generate(REQUESTS, Sampling(temperature=0.7, max_new_tokens=9, entropies=True)):
            ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
            with torch.inference_mode():
                logits = MODEL(ids).logits[0, len(rollout.prompt_ids) - 1 : -1] / 0.7
            expected = torch.distributions.Categorical(logits=logits).entropy()
            torch.testing.assert_close(torch.tensor(rollout.entropies), expected, atol=1e-4, rtol=0)


def test_entropies_are_told_only_where_asked_for(engine: RolloutEngine) -> None:
    assert engine.generate(REQUESTS[:1], Sampling(max_new_tokens=3))[0].entropies == ()


def test_row_44_no_engine_answers_with_stale_weights(engine: RolloutEngine) -> None:
    before = engine.generate(REQUESTS[:1], Sampling(greedy=True, max_new_tokens=4))[0]
    engine.rest()
    weight = MODEL.model.layers[0].mlp.down_proj.weight
    with torch.no_grad():
        weight.mul_(-3.0)
        after = engine.generate(REQUESTS[:1], Sampling(greedy=True, max_new_tokens=4))[0]
        weight.div_(-3.0)
    assert before.log_probs != after.log_probs


def test_prompts_that_are_read_in_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(max_new_tokens=16)
    whole = NativeEngine(MODEL).generate(REQUESTS, sampling)
    monkeypatch.setattr(continuous, "MAX_BATCH_TOKENS", 1)  # the longest prompt's 11 tokens a pass, of 23
    for expected, found in zip(whole, ContinuousEngine(MODEL, decode).generate(REQUESTS, sampling), strict=True):
        assert found.completion_ids == expected.completion_ids
        assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-4)


def test_the_model_is_left_as_it_was(engine: RolloutEngine) -> None:
    before = MODEL.config._attn_implementation, MODEL.training, torch.is_grad_enabled()
    engine.generate(REQUESTS, Sampling(max_new_tokens=4))
    assert (MODEL.config._attn_implementation, MODEL.training, torch.is_grad_enabled()) == before
    loss = MODEL(torch.tensor([[3, 4, 5]]), labels=torch.tensor([[3, 4, 5]])).loss
    loss.backward()
    MODEL.zero_grad(set_to_none=True)


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1000])
def test_a_sum_that_doubles_its_reach_is_the_cumulated_one(size: int) -> None:
    values = torch.rand(3, size, dtype=torch.float64)
    torch.testing.assert_close(doubled_sum(values), values.cumsum(-1), rtol=1e-12, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_a_cumulated_sum_has_one_order() -> None:
    values = torch.rand(4, 150_000, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(cumulated_sum(values), cumulated_sum(values))
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_a_checkpoint_says_of_generation_does_not_bend_the_policy(engine: RolloutEngine) -> None:
    sampling = Sampling(max_new_tokens=24)
    expected = engine.generate(REQUESTS, sampling)
    kept = MODEL.generation_config
    bent = GenerationConfig(repetition_penalty=1.3, no_repeat_ngram_size=2, temperature=0.3, top_k=2)
    bent.eos_token_id = kept.eos_token_id
    MODEL.generation_config = bent
    try:
        found = engine.generate(REQUESTS, sampling)
        assert MODEL.generation_config is bent
    finally:
        MODEL.generation_config = kept
    assert [one.completion_ids for one in found] == [one.completion_ids for one in expected]
    assert [one.log_probs for one in found] == [one.log_probs for one in expected]
