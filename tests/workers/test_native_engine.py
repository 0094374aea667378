"""The native engine against the model itself and against transformers' generate, on random weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM

from workers.rollout import decoder
from workers.rollout.decoder import parts
from workers.rollout.engine import Request, Rollout, Sampling
from workers.rollout.hf import HfEngine
from workers.rollout.native import NativeEngine, share_out
from workers.rollout.select import Portions

PROMPTS = [(3, 4, 5, 6, 7, 8, 9), (5,), (9, 8, 7), (5,), (3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3)]
REQUESTS = [Request(prompt, seed) for seed, prompt in enumerate(PROMPTS, start=11)]


@pytest.fixture(scope="module", params=[4, 2], ids=["as many key heads", "half the key heads"])
def model(request: pytest.FixtureRequest) -> Qwen2ForCausalLM:
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=29, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=request.param, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0, bos_token_id=None,
        initializer_range=0.3,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def direct_log_probs(model: Qwen2ForCausalLM, rollout: Rollout, temperature: float) -> torch.Tensor:
    ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
    with torch.inference_mode():
        log_probs = torch.log_softmax(model(ids).logits[0].float() / temperature, dim=-1)
    begin = len(rollout.prompt_ids)
    return log_probs[begin - 1 : -1].gather(1, ids[0, begin:, None])[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probs_are_those_of_a_direct_forward_pass(model: Qwen2ForCausalLM, temperature: float) -> None:
    for rollout in NativeEngine(model).generate(REQUESTS, Sampling(temperature=temperature, max_new_tokens=24)):
        expected = direct_log_probs(model, rollout, temperature)
        torch.testing.assert_close(torch.tensor(rollout.log_probs), expected, atol=1e-4, rtol=0)


def test_a_rollout_does_not_depend_on_its_batch(model: Qwen2ForCausalLM) -> None:
    sampling = Sampling(max_new_tokens=24)
    together = NativeEngine(model).generate(REQUESTS, sampling)
    alone = [NativeEngine(model).generate([request], sampling)[0] for request in REQUESTS]
    in_turns = Portions(NativeEngine(model), max_rows=2).generate(REQUESTS[::-1], sampling)[::-1]
    assert [r.completion_ids for r in together] == [r.completion_ids for r in alone]
    assert [r.completion_ids for r in together] == [r.completion_ids for r in in_turns]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_rollout_does_not_depend_on_the_threads(model: Qwen2ForCausalLM, threads: int) -> None:
    sampling = Sampling(max_new_tokens=24)
    before = torch.get_num_threads()
    expected = [NativeEngine(model).generate([request], sampling)[0].completion_ids for request in REQUESTS]
    try:
        torch.set_num_threads(threads)
        rollouts = NativeEngine(model).generate(REQUESTS, sampling)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert [rollout.completion_ids for rollout in rollouts] == expected


@given(st.lists(st.integers(1, 5), max_size=30), st.integers(1, 4))
def test_shares_hold_every_request_once_and_equal_prompts_together(lengths: list[int], count: int) -> None:
    requests = [Request(tuple(range(length)), seed) for seed, length in enumerate(lengths)]
    shares = share_out(requests, count)
    assert sorted(number for share in shares for number in share) == list(range(len(requests)))
    assert len(shares) <= count
    homes = [{number for number, share in enumerate(shares) for i in share if lengths[i] == n} for n in set(lengths)]
    assert all(len(home) == 1 for home in homes)


@pytest.mark.parametrize("sampling", [Sampling(greedy=True, max_new_tokens=20), Sampling(max_new_tokens=20)])
def test_it_agrees_with_transformers_generate(model: Qwen2ForCausalLM, sampling: Sampling) -> None:
    for ours, theirs in zip(
        NativeEngine(model).generate(REQUESTS, sampling), HfEngine(model).generate(REQUESTS, sampling), strict=True
    ):
        assert (ours.completion_ids, ours.finish_reason) == (theirs.completion_ids, theirs.finish_reason)
        assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-4)


def test_equal_prompts_with_other_seeds_give_other_completions(model: Qwen2ForCausalLM) -> None:
    rollouts = NativeEngine(model).generate([Request((5, 6), seed) for seed in range(8)], Sampling(max_new_tokens=16))
    assert len({rollout.completion_ids for rollout in rollouts}) > 4


def test_a_stop_token_ends_the_completion_and_is_its_last_id(model: Qwen2ForCausalLM) -> None:
    rollouts = NativeEngine(model).generate([Request((5, 6), s) for s in range(64)], Sampling(max_new_tokens=12))
    for rollout in rollouts:
        assert 1 not in rollout.completion_ids[:-1]
        assert (rollout.finish_reason == "stop") == (rollout.completion_ids[-1] == 1)
        assert rollout.finish_reason == "stop" or len(rollout.completion_ids) == 12
    assert {rollout.finish_reason for rollout in rollouts} == {"stop", "length"}


def test_a_changed_weight_is_seen_without_a_new_engine(model: Qwen2ForCausalLM) -> None:
    engine = NativeEngine(model)
    before = engine.generate(REQUESTS[:1], Sampling(greedy=True, max_new_tokens=4))[0]
    weight = model.model.layers[0].mlp.down_proj.weight
    with torch.no_grad():
        weight.mul_(-3.0)
        after = engine.generate(REQUESTS[:1], Sampling(greedy=True, max_new_tokens=4))[0]
        weight.div_(-3.0)
    assert before.log_probs != after.log_probs


def test_prompts_read_in_parts_give_the_same_rollouts(model: Qwen2ForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [Request(tuple(range(3, 4 + length)), seed) for seed, length in enumerate((9, 2, 5, 9, 12, 1, 5, 7))]
    whole = NativeEngine(model).generate(requests, Sampling(max_new_tokens=8))
    monkeypatch.setattr(decoder, "READ_BYTES", 1)
    apart = NativeEngine(model).generate(requests, Sampling(max_new_tokens=8))
    assert [one.completion_ids for one in apart] == [one.completion_ids for one in whole]


def test_a_part_counts_its_padding() -> None:
    lengths = [[len(prompt) for prompt in part] for part in parts([(0,) * n for n in (5, 1, 9, 2, 2, 30)], 10)]
    assert lengths == [[1, 2, 2], [5], [9], [30]]
