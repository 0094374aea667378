"""Decoding token by token: the distribution drawn from, and that the cache does not change the result."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import LonghaulError
from profiles.schema import Azr, Model, Profile
from workers.generate.conversation import Words
from workers.generate.decode import pick, tokens_after
from workers.models import random_init
from workers.models.policy import open_policy

LOGITS = torch.tensor([0.0, 2.0, 1.0, -1.0, 2.0])


def draws(count: int = 2000, **knobs: Any) -> Counter[int]:
    generator = torch.Generator().manual_seed(0)
    return Counter(pick(LOGITS, generator, **knobs) for _ in range(count))


@pytest.mark.parametrize(
    ("knobs", "allowed"),
    [
        pytest.param({"temperature": 0}, {1}, id="greedy: the first of equals"),
        pytest.param({"temperature": 1.0}, {0, 1, 2, 3, 4}, id="all"),
        pytest.param({"temperature": 1.0, "top_k": 3}, {1, 4, 2}, id="the three likeliest"),
        pytest.param({"temperature": 1.0, "top_p": 0.7}, {1, 4}, id="0.39 + 0.39 reach 0.7"),
        pytest.param({"temperature": 1.0, "top_p": 0.8}, {1, 4, 2}, id="0.79 do not reach 0.8"),
        pytest.param({"temperature": 1.0, "top_p": 1e-9}, {1}, id="one always may come"),
    ],
)
def test_which_tokens_may_come(knobs: dict[str, Any], allowed: set[int]) -> None:
    assert set(draws(**knobs)) == allowed


def test_shares_are_those_of_the_softmax_at_the_temperature() -> None:
    found, expected = draws(5000, temperature=0.5), (LOGITS / 0.5).softmax(0)
    for token, probability in enumerate(expected.tolist()):
        assert found[token] / 5000 == pytest.approx(probability, abs=0.03)


@cache
def tiny() -> Any:
    return open_policy(Profile(name="x", model=Model(random_init="qwen2-tiny")), None, torch.device("cpu")).model


@given(st.lists(st.integers(0, 271), min_size=1, max_size=9), st.integers(1, 6))
@settings(max_examples=10, deadline=None)
def test_the_cache_changes_no_token(prompt: list[int], limit: int) -> None:
    model = tiny()
    choose = partial(pick, generator=torch.Generator(), temperature=0)
    found = list(tokens_after(model, prompt, limit, choose, lambda: False))
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(limit):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert found == ids[len(prompt) :]
    assert list(tokens_after(model, prompt, limit, choose, lambda: True)) == []


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with a chat template."""
    directory = tmp_path_factory.mktemp("chatty")
    random_init.write("qwen2-tiny", 0, "float32", directory)
    return directory


def profile_of(style: Any) -> Profile:
    return Profile(name="x", model=Model(prompt_style=style), azr=Azr())


def test_a_conversation_holds_what_was_said_before_until_it_is_forgotten(chatty: Path) -> None:
    words = Words("auto", profile_of("pocket"), chatty)
    assert words.name == "chat"
    first = words.prompt("hello")
    assert first == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    words.heard("hello", "yes?")
    assert words.prompt("2+2") == first + "yes?<|im_end|>\n" + first.replace("hello", "2+2")
    words.forget()
    assert words.prompt("hello") == first


@pytest.mark.parametrize(
    ("style", "prompt_style", "begins", "ends"),
    [
        ("raw", "azr-chat", "1+1", "1+1"),
        ("run", "pocket", "1+1", "1+1"),
        ("run", "verbatim", "1+1", "1+1\n"),
        ("run", "azr", "Below is a dialogue", "<think>"),
        ("run", "azr-chat", "<|im_start|>user", "<think>"),
    ],
)
def test_a_run_is_asked_in_the_words_that_it_is_trained_in(
    style: str, prompt_style: str, begins: str, ends: str, chatty: Path
) -> None:
    prompt = Words(style, profile_of(prompt_style), chatty).prompt("1+1")
    assert prompt.startswith(begins) and prompt.endswith(ends) and "1+1" in prompt


def test_a_template_that_is_missing_is_told(chatty: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((chatty / "tokenizer.json").read_bytes())
    assert Words("auto", profile_of("pocket"), tmp_path).name == "raw"
    with pytest.raises(LonghaulError, match="chat template"):
        Words("chat", profile_of("pocket"), tmp_path)
