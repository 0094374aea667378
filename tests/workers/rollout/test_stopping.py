"""Where completions end, on texts whose tokens cut across stop texts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.rollout.stopping import StopTexts, ending

PIECES = ["", "<eos>", "a", "b", "</", "ans", "wer", ">", "swer>x", "</ans", ">>", "é", " ", "wer></answer>"]
EOS = 1


def decode(ids: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in ids)


def ids_of(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("pieces", "length", "reason"),
    [
        pytest.param(("a", "b", "a"), 3, "length", id="nothing stops it"),
        pytest.param(("a", "<eos>", "b"), 2, "stop", id="a stop token is the last id"),
        pytest.param(("a", "</", "ans", "wer", ">", "b"), 5, "stop_text", id="a stop text in four tokens"),
        pytest.param(("</", "a", "swer>x", "b"), 4, "length", id="almost"),
        pytest.param(("</ans", "wer", ">>", "b"), 3, "stop_text", id="the token that completes it brings more"),
        pytest.param(("wer></answer>", "a"), 1, "stop_text", id="a stop text inside one token"),
        pytest.param((">", "wer", ">", "<eos>"), 4, "stop", id="its last token alone is nothing"),
        pytest.param(("</ans", "wer", "<eos>"), 3, "stop", id="a stop token before the text is whole"),
    ],
)
def test_a_completion_ends_where_the_text_or_the_token_says(pieces: tuple[str, ...], length: int, reason: str) -> None:
    assert ending(ids_of(*pieces), StopTexts(decode, ("</answer>",), [EOS]), limit=99) == (length, reason)


def test_the_limit_ends_a_completion_too() -> None:
    assert ending(ids_of("a", "a", "a"), StopTexts(decode, ("b",), [EOS]), limit=2) == (2, "length")


@given(st.lists(st.integers(2, len(PIECES) - 1), min_size=1, max_size=30), st.lists(st.sampled_from(
    ["</answer>", ">x", "ab", " ", "é", "a</"]), max_size=3))  # fmt: skip
def test_the_quick_search_finds_what_decoding_everything_finds(ids: list[int], texts: list[str]) -> None:
    expected = (len(ids), "length")
    for length in range(1, len(ids) + 1):
        if any(text in decode(ids[:length]) for text in texts):
            expected = (length, "stop_text")
            break
    assert ending(ids, StopTexts(decode, texts, [EOS]), limit=99) == expected


def test_a_text_that_a_stop_token_shows_as_needs_no_search() -> None:
    assert not StopTexts(decode, ("<eos>",), [EOS])
    assert StopTexts(decode, ("<eos>", "b"), [EOS]).texts == ("b",)


def test_stop_texts_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(ValueError, match="need a tokenizer"):
        StopTexts(None, ("b",))
