"""Which calls vLLM gets and when, told by a stand-in for it; what vLLM does with them is tried on a card."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiles.schema import Grpo, Profile, Run, Vllm
from profiles.schema import Sampling as Knobs
from workers.grpo.old_source import old_source_of
from workers.rollout.engine import Request, Sampling
from workers.rollout.vllm import VllmEngine


class Recorder:
    """Stands for `vllm.LLM`: notes what it is told, and answers every prompt with one token."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: self.calls.append(name)

    def generate(self, prompts: list[Any], params: Any, **named: Any) -> list[Any]:
        self.calls.append("generate")
        told = SimpleNamespace(token_ids=[5], logprobs=[{5: SimpleNamespace(logprob=-0.5)}], finish_reason="length")
        return [SimpleNamespace(outputs=[told]) for _ in prompts]


def engine_with(recorder: Recorder) -> VllmEngine:
    engine = object.__new__(VllmEngine)  # what __init__ adds needs a card
    engine.model, engine.knobs, engine.decode, engine.stop_ids, engine.max_tokens = None, Vllm(), None, [1], 16
    engine._adapter, engine._lora, engine._adapter_number = None, None, 0
    engine._is_stale, engine._is_asleep = True, False
    engine._vllm, engine._llm = SimpleNamespace(SamplingParams=lambda **knobs: knobs), recorder
    return engine


def test_row_47_weights_are_handed_over_once_between_sleep_and_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    recorder = Recorder()
    engine = engine_with(recorder)
    hand_over = ["apply_model", "reset_prefix_cache"]
    engine.generate([Request((2, 3), 0)], Sampling(max_new_tokens=1))
    engine.generate([Request((2, 3), 1)], Sampling(max_new_tokens=1))  # a further draw of the same step
    assert recorder.calls == [*hand_over, "generate", "generate"]
    for _ in range(2):
        recorder.calls.clear()
        engine.rest()
        engine.generate([Request((2, 3), 2)], Sampling(max_new_tokens=1))
        assert recorder.calls == ["sleep", "wake_up", *hand_over, "generate"]


@pytest.mark.parametrize(("engine", "source"), [("continuous", "trainer"), ("vllm", "trainer"), ("native", "rollout")])
def test_row_47_numbers_of_engines_that_are_not_the_trainer_s_are_replaced(engine: Any, source: str) -> None:
    profile = Profile(name="x", run=Run(worker="grpo"), sampling=Knobs(engine=engine), grpo=Grpo(old_source="auto"))
    assert old_source_of(profile) == source


def test_operations_without_a_fixed_order_are_refused_everywhere_but_in_vllm() -> None:
    allowed = []
    recorder = Recorder()
    recorder.generate = lambda *given, **named: (  # type: ignore[method-assign]
        allowed.append(torch.is_deterministic_algorithms_warn_only_enabled()),
        Recorder.generate(recorder, *given, **named),
    )[1]
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        engine_with(recorder).generate([Request((2, 3), 0)], Sampling(max_new_tokens=1))
        assert allowed == [True] and not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(was)
