"""The tokenizer gives every text of the language back, and the saved one agrees with the fast way of the corpus."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from workers.pocket.model import WEIGHTS
from workers.pocket.tokenizer import PROGRAMS, decode, encode
from workers.pocket.vocabulary import EOS_ID, PAD_ID, UNKNOWN

pieces = st.lists(st.sampled_from([token for token in PROGRAMS.tokens if token != UNKNOWN]), max_size=40)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    directory = tmp_path_factory.mktemp("tokenizer")
    PROGRAMS.save(directory)
    return AutoTokenizer.from_pretrained(directory)


@given(pieces)
@settings(max_examples=200, deadline=None)
def test_text_of_the_language_comes_back_exactly(tokens: list[str]) -> None:
    text = "".join(tokens)
    assert decode(encode(text)) == text


@given(pieces)
@settings(max_examples=100, deadline=None)
def test_the_saved_tokenizer_reads_and_writes_the_same(saved: PreTrainedTokenizerFast, tokens: list[str]) -> None:
    text = "".join(tokens)
    assert saved(text).input_ids == encode(text)
    assert saved.decode(encode(text)) == text


def test_all_ids_fit_a_byte_and_the_stop_token_is_known(saved: PreTrainedTokenizerFast) -> None:
    assert len(PROGRAMS.tokens) == len(set(PROGRAMS.tokens)) <= 256
    assert (saved.eos_token_id, saved.pad_token_id) == (EOS_ID, PAD_ID)


def test_the_shipped_tokenizer_is_the_one_that_the_code_writes(tmp_path: Path) -> None:
    PROGRAMS.save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (WEIGHTS / name).read_text() == (tmp_path / name).read_text()


def test_foreign_letters_become_the_unknown_token() -> None:
    assert decode(encode("a=ß")) == "a=" + UNKNOWN
