"""Prompt lookup decoding draws the same tokens in fewer steps, and stops guessing where that does not pay."""

from __future__ import annotations

import importlib.util
import math
import random
from dataclasses import replace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from profiles.capture import LOOKUP_ROWS
from tests.workers.families import WINDOW, model_of
from tests.workers.interpreter import interpreted
from tests.workers.models.test_families import BOUND, OWN, UNSAMPLED
from tests.workers.rollout.models import LETTERS, decode, direct_log_probs, tiny_model
from tests.workers.rollout.test_conversations import at_once
from workers.rollout.engine import Request, Sampling
from workers.rollout.graph.engine import CHECK_EVERY, GraphEngine
from workers.rollout.graph.lookup import LEAST_TOKENS, PAUSE, Guessing, found_before
from workers.rollout.native import NativeEngine

MODEL = tiny_model(initializer_range=0.1)
COLD = Sampling(max_new_tokens=200, temperature=0.3, ignore_stop=True)
"""At this temperature the tiny model repeats itself."""


def requests_of(count: int, lengths: tuple[int, ...] = (1, 2, 7, 70, 130)) -> list[Request]:
    draws = random.Random(count)
    return [Request(tuple(draws.randrange(2, 28) for _ in range(draws.choice(lengths))), n) for n in range(count)]


@pytest.mark.parametrize("guesses", [1, 3, 7])
@pytest.mark.parametrize("sampling", [COLD, replace(COLD, greedy=True), replace(COLD, ignore_stop=False)])
def test_the_tokens_and_their_log_probs_are_those_without_guesses(guesses: int, sampling: Sampling) -> None:
    requests = requests_of(6)
    engine = GraphEngine(MODEL, decode, guesses=guesses)
    asked = replace(sampling, entropies=True)
    for one, other in zip(engine.generate(requests, asked), NativeEngine(MODEL).generate(requests, asked), strict=True):
        assert one.completion_ids == other.completion_ids and one.finish_reason == other.finish_reason
        torch.testing.assert_close(torch.tensor(one.log_probs), torch.tensor(other.log_probs), atol=1e-4, rtol=0)
        torch.testing.assert_close(torch.tensor(one.entropies), torch.tensor(other.entropies), atol=1e-4, rtol=0)
    if sampling.ignore_stop:
        assert engine.guessed_tokens > LEAST_TOKENS * engine.guessed_steps > 0


@pytest.mark.parametrize("name", sorted(OWN - UNSAMPLED))
def test_of_every_family_the_log_probs_stay_those_of_plain_transformers(name: str) -> None:
    model = model_of(name)
    prompts = [tuple((7919 * place + 13) % 256 for place in range(size)) for size in (3 * WINDOW, WINDOW + 3, 2)]
    requests = [Request(prompt, seed) for seed, prompt in enumerate((*prompts, prompts[0]))]
    sampling = Sampling(max_new_tokens=2 * WINDOW, ignore_stop=True)
    engine = GraphEngine(model, guesses=3)
    for rollout in engine.generate(requests, sampling):
        assert len(rollout.completion_ids) == 2 * WINDOW
        expected = direct_log_probs(model, rollout, 1.0)
        assert ((torch.tensor(rollout.log_probs) - expected).abs() < 10 * BOUND).all()
    assert engine.guessed_steps > 0


def test_rows_that_wait_and_are_set_back_keep_their_tokens() -> None:
    requests = requests_of(12, (70,))
    engine = GraphEngine(MODEL, decode, max_rows=2, overcommit=6.0, guesses=3)
    found = engine.generate(requests, COLD)
    assert engine.set_back_rows > 2 and engine.guessed_tokens > engine.guessed_steps > 0
    expected = NativeEngine(MODEL).generate(requests, COLD)
    assert [one.completion_ids for one in found] == [one.completion_ids for one in expected]


def test_a_stop_text_among_guesses_ends_the_row_there() -> None:
    free = GraphEngine(MODEL, decode).generate([Request((5, 6, 7), 0)], replace(COLD, greedy=True))[0].completion_ids
    stop = decode(free[-3:-2])
    end = decode(free).index(stop) + 1
    sampling = replace(COLD, greedy=True, stop=(stop,), ignore_stop=False)
    for guesses in (0, 3, 7):
        (one,) = GraphEngine(MODEL, decode, guesses=guesses).generate([Request((5, 6, 7), 0)], sampling)
        assert one.completion_ids == free[:end] and one.finish_reason == "stop_text"


@pytest.mark.parametrize("limit", [1, 2, CHECK_EVERY, CHECK_EVERY + 1, 65])
def test_no_row_draws_more_than_its_limit(limit: int) -> None:
    found = GraphEngine(MODEL, decode, guesses=7).generate(requests_of(5), replace(COLD, max_new_tokens=limit))
    assert {len(one.completion_ids) for one in found} == {limit}


def test_tokens_come_as_often_as_their_probability_says_also_behind_right_guesses() -> None:
    """The third token after `A A`: the lanes guess A, and are right as often as A comes."""
    model = tiny_model()
    prompt = (LETTERS.index("A"),) * 4
    draws = 4000
    engine = GraphEngine(model, max_rows=LOOKUP_ROWS, guesses=3)
    seconds = []
    expected = torch.zeros(len(LETTERS), dtype=torch.float64)
    with torch.inference_mode():
        first = torch.softmax(model(torch.tensor([prompt])).logits[0, -1].double(), -1)
        for token, share in enumerate(first):
            expected += share * torch.softmax(model(torch.tensor([(*prompt, token)])).logits[0, -1].double(), -1)
    for begin in range(0, draws, LOOKUP_ROWS):
        requests = [Request(prompt, seed) for seed in range(begin, begin + LOOKUP_ROWS)]
        found = engine.generate(requests, Sampling(max_new_tokens=2, ignore_stop=True))
        seconds += [one.completion_ids[1] for one in found]
    counts = torch.bincount(torch.tensor(seconds), minlength=len(expected))
    likely = expected * len(seconds) > 5
    statistic = ((counts - expected * len(seconds)) ** 2 / (expected * len(seconds)))[likely].sum().item()
    freedom = int(likely.sum()) - 1
    assert engine.guessed_steps > 0
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom)  # beyond it once in 1e5 for a right sampler


def test_where_guesses_do_not_pay_steps_go_on_without_them() -> None:
    hot = Sampling(max_new_tokens=(PAUSE + 3) * CHECK_EVERY, temperature=2.0, ignore_stop=True)
    engine = GraphEngine(MODEL, guesses=3)
    engine.generate(requests_of(1, (3,)), hot)
    assert engine.guessed_tokens < LEAST_TOKENS * engine.guessed_steps
    assert engine.guessed_steps in (CHECK_EVERY, 2 * CHECK_EVERY)  # tried at first, and again after the pause


def test_a_step_of_many_rows_reads_no_guesses() -> None:
    engine = GraphEngine(MODEL, guesses=3)
    engine.generate(requests_of(LOOKUP_ROWS + 1, (5,)), Sampling(max_new_tokens=CHECK_EVERY, ignore_stop=True))
    assert engine.guessed_steps == 0


def test_conversations_are_drawn_without_guesses() -> None:
    requests = requests_of(4, (5, 9))
    respond = lambda number, so_far: at_once(number, so_far)  # noqa: E731
    plain = GraphEngine(MODEL, decode).converse(requests, Sampling(max_new_tokens=60), respond)
    assert GraphEngine(MODEL, decode, guesses=3).converse(requests, Sampling(max_new_tokens=60), respond) == plain


@pytest.mark.parametrize(
    ("context", "position", "found"),
    [
        ([5, 6, 7, 5, 6], 4, 1),
        ([5, 6, 5, 6, 5, 6], 5, 3),  # the newest
        ([5, 6, 7, 8], 3, 2),  # nowhere: the token itself comes again
        ([6, 6, 6], 2, 1),
        ([6], 0, -1),
        ([6, 5, 6], 2, 1),  # one token alone is no pair
        ([5, 6, 9, 5, 6, 7, 5, 6], 4, 1),  # what lies behind the row is old
    ],
)
def test_the_place_of_the_last_two_tokens_is_the_newest_one_before(
    context: list[int], position: int, found: int
) -> None:
    assert found_before(torch.tensor([context]), torch.tensor([position])).tolist() == [found]


def test_guesses_are_tried_again_after_a_pause() -> None:
    one = Guessing(is_wanted=True)
    assert one.is_on(LOOKUP_ROWS) and not one.is_on(LOOKUP_ROWS + 1) and not Guessing(is_wanted=False).is_on(1)
    one.note(tokens=130, steps=100)
    assert one.is_on(1)
    one.note(tokens=129, steps=100)
    for _ in range(PAUSE):
        assert not one.is_on(1)
        one.wait()
    assert one.is_on(1)
    one.note(tokens=0, steps=0)  # no row went on
    assert one.is_on(1)


CASES = """
import sys
from tests.workers.rollout.lookup_cases import are_alike
print([seed for seed in range(40) if not are_alike(seed, 1 + seed % 5, sys.argv[1])])
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
def test_the_kernels_do_what_pytorch_does(device: str) -> None:
    done = interpreted("-c", CASES, device, timeout=600, with_gpu=device == "cuda")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_steps_with_guesses_have_the_log_probs_of_the_model_on_a_gpu() -> None:
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=272, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=256, pad_token_id=256, bos_token_id=None,
        initializer_range=0.05,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16).eval()
    requests = [Request(tuple(range(5, 5 + length)), seed) for seed, length in enumerate((3, 40, 17, 100, 1))]
    engine = GraphEngine(model, guesses=3)
    for _ in range(2):
        for rollout in engine.generate(requests, replace(COLD, temperature=0.1)):
            expected = direct_log_probs(model, rollout, 0.1)
            assert float((torch.tensor(rollout.log_probs) - expected).abs().mean()) < 0.1
    assert engine.guessed_tokens > LEAST_TOKENS * engine.guessed_steps > 0
