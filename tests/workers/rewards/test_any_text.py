"""Built-in parts on any text that a model could write: bounded, the same twice, and in bounded time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.rewards import ON_COMPLETIONS, is_slow
from tests.workers.rewards.cases import case_of, earned
from workers.rewards import json_schema, patterns
from workers.rewards.fuzzy import LONGEST
from workers.rewards.registry import part_of

QUICK = tuple(name for name in ON_COMPLETIONS if not is_slow(name))

OPTIONS: dict[str, dict[str, Any]] = {
    "choice": {"column": "letter"},
    "json": {"schema": {"type": "object"}, "parsed": 0.5},
    "regex": {"pattern": r"(\w+)\s\1"},
    "xml": {"partial": True},
    "overlong": {"target": 12, "buffer": 4},
    "language": {"wanted": "en"},
}
BOUNDS = {"length": (-1, 0), "overlong": (-1, 0), "repetition": (-1, 0), "cosine": (-1, 1)}
PARTS = {name: part_of(name, OPTIONS.get(name, {})) for name in QUICK}

PIECES = st.sampled_from(
    ["<think>", "</think>", "<answer>", "</answer>", r"\boxed{", "}", '{"a": ', "[", "```json\n", "\n```", "####",
     "The answer is ", "Answer:", "B", "(C)", " or ", "7", "\ud800", "\udfff", "\x00", "\n", " ", "so so ", "嗯", "$"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(st.characters(exclude_categories=[]), max_size=5), max_size=30).map("".join)


@settings(max_examples=150, deadline=None)
@given(
    text=TEXTS, gold=st.sampled_from(["7", "B", "so so"]), tokens=st.integers(0, 16), right=st.booleans(),
    cut=st.booleans(),
)  # fmt: skip
def test_every_part_is_bounded_for_any_text(text: str, gold: str, tokens: int, right: bool, cut: bool) -> None:
    case = case_of(text, gold, columns={"letter": "B"}, tokens=tokens, right=right, cut=cut)
    for name, part in PARTS.items():
        low, high = BOUNDS.get(name, (0, 1))
        value = part(case)
        assert isinstance(value, float) and low <= value <= high, name
        assert part(case) == value, name


@settings(max_examples=60, deadline=None)
@given(lengths=st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted), right=st.booleans())
def test_more_tokens_never_earn_more_but_for_wrong_answers_of_the_cosine(lengths: list[int], right: bool) -> None:
    for name in ("length", "overlong", "cosine"):
        short, long = (PARTS[name](case_of("", tokens=tokens, longest=40, right=right)) for tokens in lengths)
        assert short <= long if name == "cosine" and not right else short >= long


@settings(max_examples=60, deadline=None)
@given(text=TEXTS, more=st.integers(1, 3))
def test_saying_it_all_again_never_lowers_the_penalty_for_repetition(text: str, more: int) -> None:
    whole = f"{text} "
    assert earned("repetition", {"size": 1}, whole * (1 + more)) <= earned("repetition", {"size": 1}, whole)


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=[]), min_size=1, max_size=40).filter(str.strip))
def test_a_text_is_exactly_and_wholly_like_itself(text: str) -> None:
    for name in ("exact", "fuzzy"):
        assert earned(name, {"where": "all"}, text, text) == 1.0


HOSTILE = {
    "a megabyte of a letter": "a" * 1_000_000,
    "a megabyte of words": "no " * 333_333,
    "half-open boxes": r"\boxed{" * 100_000,
    "half-open objects": '{"a":' * 100_000,
    "braces": "{" * 100_000,
    "quoted braces": '{"' * 50_000,
    "objects": '{"a":1}' * 100_000,
    "brackets": "```\n" + "[" * 99_000 + "\n```",
    "fences": "```\n" * 100_000,
    "dollars": "$a" * 100_000,
    "tags": "<answer>" * 100_000,
    "answers": "the answer is " * 70_000,
    "stars": "answer: " + "*" * 100_000,
    "lone surrogates": "\ud800" * 100_000,
    "letters in brackets": "(A) or " * 100_000,
    "blanks": " " * 1_000_000,
    "no line end": "\n" * 500_000 + "B",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_is_judged_in_bounded_time(text: str) -> None:
    for name, part in PARTS.items():
        low, high = BOUNDS.get(name, (0, 1))
        assert low <= part(case_of(text, "B", columns={"letter": "B"}, right=False)) <= high, name


def test_the_longest_fuzzy_match_ends() -> None:
    assert 0.0 < earned("fuzzy", {}, "ab" * (LONGEST // 2), "a" * LONGEST) < 1.0


NESTED = "```\n" + "[" * 60 + "1" + "]" * 60 + "\n```"
SLOW = "^(a|a)*$"
"""`re` needs 2^n steps for n letters and one that does not fit."""
TRAP = "a" * 60 + "b"


def test_a_pattern_that_backtracks_without_end_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "TIME_S", 0.05)
    with pytest.raises(patterns.TooLong, match=r"took more than 0\.05 s"):
        patterns.is_found(SLOW, TRAP)
    assert earned("regex", {"pattern": SLOW}, TRAP) == 0.0


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": {"not": {"pattern": SLOW}}}}, f'{{"a": "{TRAP}"}}'),
        ({"patternProperties": {SLOW: {}}}, f'{{"{TRAP}": 1}}'),
        ({"patternProperties": {SLOW: {}}, "additionalProperties": False}, f'{{"{TRAP}": 1}}'),
        ({"propertyNames": {"not": {"pattern": SLOW}}}, f'{{"{TRAP}": 1}}'),
        ({"anyOf": [{"items": {"$ref": "#"}, "type": "array"}] * 2}, NESTED),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
          "anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]}, NESTED),
    ],
)  # fmt: skip
def test_a_schema_that_takes_too_long_does_not_fit(
    schema: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_schema, "TIME_S", 0.05)
    assert earned("json", {"schema": schema, "parsed": 0.5}, text) == 0.5


def test_many_objects_are_compared_for_uniqueness_at_once() -> None:
    items = ",".join(f'{{"a":{number}}}' for number in range(8_000))
    assert earned("json", {"schema": {"uniqueItems": True}}, f"```\n[{items}]\n```") == 1.0


@pytest.mark.parametrize(("pattern", "items"), [
    ("abc", 3), ("a(bc){2,}d", 6), ("a{3}", 3), ("a{0,9}", 1), ("[a-z(]{5}", 5), (r"\(a\){4}", 6),
    ("((ab){10}){10}", 200), ("(a{1000}(?#()){2}", 2000), ("[]a]{7}", 7), (r"[\]a]{7}", 7), ("", 0), ("a{,5}", 5),
])  # fmt: skip
def test_the_size_of_a_pattern_is_known_before_it_is_prepared(pattern: str, items: int) -> None:
    assert patterns.written_out(pattern) == items
