"""vLLM for real: on a machine with an NVIDIA GPU and the extra `vllm`; elsewhere these are skipped.

Only one engine may live in a process at a time, so tests that can share one do.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from profiles.schema import Vllm
from tests.workers.rollout.gpu import HOW, KNOBS, NEEDS_VLLM, REQUESTS, apart, make_model, make_tokenizer, scramble
from tests.workers.rollout.models import direct_log_probs
from workers.models.load import Tokenizer
from workers.rollout.engine import EngineUnavailable, Request, Sampling
from workers.rollout.native import NativeEngine
from workers.rollout.select import Fallback, Portions
from workers.rollout.vllm import VllmEngine

pytestmark = NEEDS_VLLM


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Iterator[VllmEngine]:
    made = VllmEngine(make_model(), KNOBS, max_tokens=128, tokenizer=tokenizer)
    yield made
    made.close()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_those_of_the_sampling_policy(engine: VllmEngine, temperature: float) -> None:
    rollouts = engine.generate(REQUESTS, Sampling(temperature=temperature, max_new_tokens=48))
    mean, largest = apart(engine.model, rollouts, temperature)
    assert mean < 0.06 and largest < 0.6
    if temperature != 1.0:  # the test can fail: raw log_probs would be far off
        assert apart(engine.model, rollouts, 1.0)[0] > 0.1


def test_the_same_request_in_the_same_batch_draws_the_same(engine: VllmEngine) -> None:
    first, second = engine.generate(REQUESTS, HOW), engine.generate(REQUESTS, HOW)
    assert sum(a.completion_ids == b.completion_ids for a, b in zip(first, second, strict=True)) >= len(REQUESTS) - 2
    assert len({one.completion_ids for one in first}) == len(REQUESTS)


def test_completions_end_where_they_end_in_every_engine(engine: VllmEngine, tokenizer: Tokenizer) -> None:
    free = engine.generate(REQUESTS, HOW)
    for one in free:
        assert 256 not in one.completion_ids[:-1]
        assert (one.finish_reason == "stop") == (one.completion_ids[-1] == 256)
    stop = tokenizer.decode(free[0].completion_ids[5:7])
    for one in engine.generate(REQUESTS, Sampling(max_new_tokens=48, stop=(stop,))):
        text = tokenizer.decode(one.completion_ids)
        assert (one.finish_reason == "stop_text") == (stop in text)
        assert stop not in tokenizer.decode(one.completion_ids[:-1])


def test_asleep_it_holds_no_memory_and_awake_it_has_the_trainer_s_new_weights(engine: VllmEngine) -> None:
    before = engine.generate(REQUESTS, HOW)
    used = torch.cuda.mem_get_info()[0]
    engine.rest()
    total = torch.cuda.mem_get_info()[1]
    assert torch.cuda.mem_get_info()[0] - used > 0.8 * KNOBS.gpu_memory_utilization * total
    scramble(engine.model.parameters(), 0.03)
    after = engine.generate(REQUESTS, HOW)
    assert apart(engine.model, after)[0] < 0.06
    assert apart(engine.model, before)[0] > 0.2  # the test can fail: the old weights would be far off


def test_greedy_takes_the_most_likely_token_and_tells_its_log_prob_at_temperature_1(engine: VllmEngine) -> None:
    for one in engine.generate(REQUESTS[:5], Sampling(greedy=True, temperature=0.5, max_new_tokens=16)):
        ids = torch.tensor([one.prompt_ids + one.completion_ids], device="cuda")
        with torch.inference_mode():
            best = (
                torch.log_softmax(engine.model(ids).logits[0].float(), -1).max(-1).values[len(one.prompt_ids) - 1 : -1]
            )
        # In bfloat16 two tokens may be as good as equal.
        assert float((best.cpu() - direct_log_probs(engine.model, one, 1.0)).max()) < 0.5
        assert apart(engine.model, [one])[0] < 0.1


def test_a_prompt_that_is_too_long_is_told(engine: VllmEngine) -> None:
    with pytest.raises(EngineUnavailable, match="max_prompt_tokens"):
        engine.generate([Request((5,) * 128, 1)], HOW)


def test_too_little_memory_is_told_before_anything_starts() -> None:
    with pytest.raises(EngineUnavailable, match=r"gpu_memory_utilization to 0\.01 at least"):
        VllmEngine(make_model(), Vllm(gpu_memory_utilization=1e-6), max_tokens=128)


def test_last_one_that_does_not_wake_is_replaced(engine: VllmEngine) -> None:
    told: list[str] = []
    fallback = Fallback({"vllm": lambda: engine, "native": lambda: NativeEngine(engine.model)}, told.append)
    portions = Portions(fallback)
    portions.rest()
    taken = torch.empty(torch.cuda.mem_get_info()[0] - 3 * 2**30, dtype=torch.uint8, device="cuda")
    assert len(portions.generate(REQUESTS, HOW)) == len(REQUESTS)
    assert isinstance(fallback.engine, NativeEngine)
    assert "did not wake" in told[0]
    del taken
    torch.cuda.empty_cache()
