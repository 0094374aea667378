"""vLLM with LoRA adapters, for real; skipped without a GPU and the extra `vllm`."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path

import torch

from profiles.schema import Adapter
from tests.workers.rollout.gpu import HOW, KNOBS, NEEDS_VLLM, REQUESTS, apart, make_model, make_tokenizer, scramble
from workers.models.adapters import adapter_of, inject
from workers.rollout.vllm import VllmEngine

pytestmark = NEEDS_VLLM


def test_adapters_are_handed_over_each_time_and_generators_stay(tmp_path: Path) -> None:
    # In a process of its own: one can start vLLM once.
    child = multiprocessing.get_context("spawn").Process(target=hand_over, args=(tmp_path,))
    child.start()
    child.join(240)
    assert child.exitcode == 0


def hand_over(tmp_path: Path) -> None:
    model = make_model()
    inject(model, Adapter(rank=12, alpha=24), 0)
    scramble((p for name, p in adapter_of(model).items() if ".lora_B." in name), 0.05)
    state = torch.get_rng_state(), torch.cuda.get_rng_state(), random.getstate()
    engine = VllmEngine(model, KNOBS, max_tokens=128, tokenizer=make_tokenizer(tmp_path))
    assert torch.equal(state[0], torch.get_rng_state()) and torch.equal(state[1], torch.cuda.get_rng_state())
    assert state[2] == random.getstate()
    try:
        for _ in range(2):
            rollouts = engine.generate(REQUESTS, HOW)
            assert apart(model, rollouts)[0] < 0.06
            engine.rest()
            scramble(iter(adapter_of(model).values()), 0.05)
            assert apart(model, rollouts)[0] > 0.2  # the test can fail: the adapter matters
    finally:
        engine.close()
