"""On a card for which our kernels are not made, plain transformers computes the model, and the run says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen2ForCausalLM

from profiles.architecture import path_of
from profiles.schema import Profile
from tests.workers.families import config_of, model_of
from workers.models import plain
from workers.rollout import hf_graphs


class OnCard(Qwen2ForCausalLM):
    """A model of a family that our own code computes, on a GPU."""

    device = property(lambda self: torch.device("cuda", 0))  # type: ignore[assignment]


@pytest.fixture
def model() -> Any:
    make: Any = OnCard
    return make(config_of("qwen2"))


def test_an_amd_gpu_gets_plain_transformers_without_graphs(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    reason = plain.choose_path(model, Profile(name="test"))
    assert "AMD" in reason and "6.4.1" in reason
    assert hf_graphs.reason_against(model) == reason
    told = path_of(model.config.to_dict(), "native", reason)
    assert told.startswith(f"plain transformers ({reason}): rollouts by hf")


def test_an_nvidia_gpu_and_a_processor_get_our_own_code(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain.choose_path(model, Profile(name="test")) == ""
    monkeypatch.setattr(torch.version, "hip", "6.4.1")  # of a PyTorch for AMD, on a machine without such a GPU
    assert plain.choose_path(model_of("qwen2"), Profile(name="test")) == ""
