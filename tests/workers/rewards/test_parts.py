"""What each built-in part of the reward gives, as tables."""

from __future__ import annotations

from dataclasses import replace
from math import cos, pi
from typing import Any

import pytest

from tests.workers.rewards.cases import case_of, earned
from workers.rewards.registry import part_of

THOUGHT = "I wonder.</think>"


@pytest.mark.parametrize(("formed", "options", "expected"), [
    (True, {}, 1.0), (False, {}, 0.0), (True, {"kept": 0.0, "broken": -1.0}, 0.0), (False, {"broken": -1.0}, -1.0),
])  # fmt: skip
def test_the_format_earns_one_unless_told_otherwise(formed: bool, options: dict[str, Any], expected: float) -> None:
    assert earned("format", options, "", formed=formed) == expected


@pytest.mark.parametrize(("tokens", "right", "options", "expected"), [
    (0, True, {}, 0.0), (8, True, {}, -0.5), (16, True, {}, -1.0), (16, False, {}, 0.0),
])  # fmt: skip
def test_length_is_subtracted_from_right_answers_alone(
    tokens: int, right: bool, options: dict[str, Any], expected: float
) -> None:
    assert earned("length", options, "", tokens=tokens, right=right) == expected


def test_a_wrong_answer_may_cost_something() -> None:
    assert earned("correct", {"wrong": -0.5}, "", right=False) == -0.5
    assert earned("correct", {"needs_form": True}, "", formed=False) == 0.0


@pytest.mark.parametrize(("options", "text", "wanted", "expected"), [
    ({}, "Paris", "Paris", 1.0),
    ({}, "  Paris\n", "Paris", 1.0),
    ({}, "New \n York", "New York", 1.0),
    ({}, "Cafe\u0301", "Caf\u00e9", 1.0),
    ({}, "paris", "Paris", 0.0),
    ({"ignore_case": True}, "PARIS", "paris", 1.0),
    ({"ignore_case": True}, "STRASSE", "Straße", 1.0),
    ({}, "Paris.", "Paris", 0.0),
    ({"ignore_punctuation": True}, "»Paris«!", "Paris", 1.0),
    ({"ignore_articles": True}, "the Seine", "Seine", 1.0),
    ({"ignore_articles": True}, "theSeine", "Seine", 0.0),
    ({}, "It is Paris", "Paris", 0.0),
    ({}, THOUGHT + "Paris", "Paris", 1.0),
    ({"where": "all"}, THOUGHT + "Paris", "Paris", 0.0),
    ({}, "<think>Paris", "Paris", 0.0),
    ({"where": "marked"}, THOUGHT + r"so \boxed{Paris}", "Paris", 1.0),
    ({"where": "marked"}, r"\boxed{Rome} no, \boxed{Paris}.", "Paris", 1.0),
    ({"where": "marked"}, "<answer> Paris </answer>", "Paris", 1.0),
    ({"where": "marked"}, "so\n#### Paris\n", "Paris", 1.0),
    ({"where": "marked"}, "The answer is Rome. No.\nAnswer: Paris\n", "Paris", 1.0),
    ({"where": "marked"}, r"\boxed{Paris", "Paris", 0.0),
    ({"where": "marked"}, "Paris", "Paris", 0.0),
    ({}, "", "Paris", 0.0),
])  # fmt: skip
def test_an_exact_text_equals_the_column(options: dict[str, Any], text: str, wanted: str, expected: float) -> None:
    assert earned("exact", options, text, wanted) == expected


@pytest.mark.parametrize(("value", "text", "expected"), [
    (["Rome", "Paris"], "Paris", 1.0), (["Rome", "Oslo"], "Paris", 0.0), (7, "7", 1.0), (1e20, "1" + "0" * 20, 1.0),
])  # fmt: skip
def test_a_column_may_hold_several_texts_or_a_number(value: Any, text: str, expected: float) -> None:
    assert earned("exact", {"column": "reply"}, text, columns={"reply": value}) == expected


@pytest.mark.parametrize(("options", "text", "wanted", "expected"), [
    ({}, "abcd", "abcd", 1.0),
    ({}, "abcd", "bcde", 0.75),
    ({}, "", "abcd", 0.0),
    ({"threshold": 0.8}, "abcd", "bcde", 0.0),
    ({"threshold": 0.75}, "abcd", "bcde", 0.75),
    ({"unit": "word"}, "the big cat", "the small cat", 2 / 3),
    ({"ignore_case": True}, "ABCD", "abcd", 1.0),
    ({}, "a" * 301, "a" * 300, 0.0),
    ({"unit": "word"}, "word " * 300, "word " * 300, 1.0),
])  # fmt: skip
def test_a_fuzzy_match_is_the_share_in_common(options: dict[str, Any], text: str, wanted: str, expected: float) -> None:
    assert earned("fuzzy", options, text, wanted) == pytest.approx(expected)


RIGHT_XML = "<think>so</think><answer>7</answer>"


@pytest.mark.parametrize(("options", "text", "expected"), [
    ({}, RIGHT_XML, 1.0),
    ({}, f"Well. {RIGHT_XML} Bye.", 1.0),
    ({"alone": True}, f"\n{RIGHT_XML}\n", 1.0),
    ({"alone": True}, f"{RIGHT_XML} Bye.", 0.0),
    ({"alone": True}, f"Well. {RIGHT_XML}", 0.0),
    ({"alone": True}, "<think>so</think> and <answer>7</answer>", 0.0),
    ({}, "<answer>7</answer><think>so</think>", 0.0),
    ({}, "<think>so<answer>7</think></answer>", 0.0),
    ({}, "<think>so<answer>7</answer></think>", 0.0),
    ({}, "</think>so<think><answer>7</answer>", 0.0),
    ({}, "<think> \n</think><answer>7</answer>", 0.0),
    ({}, f"{RIGHT_XML}<answer>8</answer>", 0.0),
    ({}, "<THINK>so</THINK><answer>7</answer>", 0.0),
    ({}, "", 0.0),
    ({"partial": True}, RIGHT_XML, 1.0),
    ({"partial": True}, "<answer>7</answer><think>so</think>", 0.5),
    ({"partial": True}, "<think>so</think>7", 0.25),
    ({"partial": True}, "so</think>7", 0.125),
    ({"partial": True}, f"{RIGHT_XML}</answer>", 0.375),
    ({"partial": True}, "", 0.0),
    ({"is_open": True}, "so</think><answer>7</answer>", 1.0),
    ({"is_open": True}, RIGHT_XML, 0.0),
    ({"is_open": True, "partial": True}, "", 0.0),
    ({"is_open": True, "partial": True}, "so</think>", 1 / 6),
    ({"tags": ["a"]}, "<a>1</a>", 1.0),
    ({"tags": ["a", "ab"]}, "<a>1</a><ab>2</ab>", 1.0),
])  # fmt: skip
def test_tags_stand_once_each_and_in_order(options: dict[str, Any], text: str, expected: float) -> None:
    assert earned("xml", options, text) == pytest.approx(expected)


@pytest.mark.parametrize(("tokens", "expected"), [
    (0, 0.0), (96, 0.0), (97, -0.25), (98, -0.5), (100, -1.0), (101, -1.0), (500, -1.0),
])  # fmt: skip
def test_what_is_nearly_too_long_costs_in_proportion(tokens: int, expected: float) -> None:
    assert earned("overlong", {"target": 100, "buffer": 4}, "", tokens=tokens) == expected


@pytest.mark.parametrize(("tokens", "right", "expected"), [
    (0, True, 1.0), (8, True, 0.75), (16, True, 0.5), (0, False, -1.0), (8, False, -0.75), (16, False, -0.5),
    (20, True, 0.5),
    (4, True, 0.5 + 0.25 * (1 + cos(pi / 4))),
])  # fmt: skip
def test_length_scales_a_reward_along_a_cosine(tokens: int, right: bool, expected: float) -> None:
    assert earned("cosine", {}, "", tokens=tokens, right=right) == pytest.approx(expected)


def test_the_cosine_gives_what_was_cut_its_own_reward() -> None:
    assert earned("cosine", {"cut": -10.0}, "", cut=True) == -10.0


@pytest.mark.parametrize(("options", "text", "expected"), [
    ({}, "one two three four", 0.0),
    ({}, "one two", 0.0),
    ({}, "", 0.0),
    ({}, "no " * 12, -0.9),
    ({}, "No no NO no", -0.5),
    ({"size": 1}, "a b a b", -0.5),
    ({"unit": "character", "size": 2}, "嗯嗯嗯嗯嗯", -0.75),
    ({"unit": "token", "size": 2}, "no no no", 0.0),
])  # fmt: skip
def test_repetition_is_the_share_of_n_grams_that_stood_before(
    options: dict[str, Any], text: str, expected: float
) -> None:
    assert earned("repetition", options, text) == pytest.approx(expected)


@pytest.mark.parametrize(("ids", "said", "expected"), [
    ((1, 2, 9, 9, 9, 9, 3, 4), "..xxxx..", 0.0),
    ((1, 2, 9, 9, 1, 2), "..xx..", -0.5),
    ((1, 2, 9, 2, 1), "..x..", 0.0),
    ((1, 9, 1), ".x.", 0.0),
])  # fmt: skip
def test_what_an_environment_says_is_no_repetition_of_the_model_and_joins_no_replies(
    ids: tuple[int, ...], said: str, expected: float
) -> None:
    case = case_of("")
    rollout = replace(case.rollout, completion_ids=ids, is_own=tuple(one == "." for one in said))
    part = part_of("repetition", {"unit": "token", "size": 2})
    assert part(replace(case, rollout=rollout)) == pytest.approx(expected)


ENGLISH = "The cat sat on the mat and looked at the rain."
GERMAN = "Die Katze saß auf der Matte und sah in den Regen hinaus."


@pytest.mark.parametrize(("options", "text", "low", "high"), [
    ({"wanted": "en"}, ENGLISH, 1.0, 1.0),
    ({"wanted": "de"}, GERMAN, 1.0, 1.0),
    ({"wanted": "en"}, GERMAN, 0.0, 0.0),
    ({"wanted": "zh"}, "我们先把这两个数加起来，然后再除以二，最后得到这个问题的正确答案。", 1.0, 1.0),
    ({"wanted": "en"}, f"{ENGLISH} {GERMAN}", 0.4, 0.6),
    ({"wanted": "en", "where": "final"}, f"{GERMAN}</think>{ENGLISH}", 1.0, 1.0),
    ({"wanted": "en"}, f"{ENGLISH}\n```python\nfor wert in liste: zeige(wert, ausgabe, laenge)\n```\n", 1.0, 1.0),
    ({"wanted": "en"}, r"\boxed{7}", 0.0, 0.0),
    ({"wanted": "en"}, "", 0.0, 0.0),
    ({"wanted": "en"}, "\ud800" + ENGLISH, 1.0, 1.0),
])  # fmt: skip
def test_language_is_the_share_of_letters_in_it(options: dict[str, Any], text: str, low: float, high: float) -> None:
    assert low <= earned("language", options, text) <= high


SCHEMA = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer", "minimum": 0}}}


@pytest.mark.parametrize(("options", "text", "expected"), [
    ({}, '{"a": 1}', 1.0),
    ({}, 'Here: {"a": 1}. Done.', 1.0),
    ({}, "nothing", 0.0),
    ({}, "{}", 1.0),
    ({}, "{'a': 1}", 0.0),
    ({}, '{"a": {"b": 1}, oops}', 0.0),
    ({}, '{"a": 1', 0.0),
    ({}, '{"a": NaN}', 0.0),
    ({}, '{"a": 1e999}', 0.0),
    ({}, r"\frac{1}{2} {x}", 0.0),
    ({}, "```json\n[1, 2]\n```", 1.0),
    ({}, "```\n{}\n```\n```json\n{broken}\n```", 0.0),
    ({}, "```json\n{broken}\n```\n```\n{}\n```", 1.0),
    ({}, '<think>{"a": 1}', 0.0),
    ({"schema": SCHEMA}, '{"age": 7}', 1.0),
    ({"schema": SCHEMA}, '{"age": 7.0}', 1.0),
    ({"schema": SCHEMA}, '{"age": -1}', 0.0),
    ({"schema": SCHEMA}, '{"age": "7"}', 0.0),
    ({"schema": SCHEMA}, '{"age": 7} or {"age": -1}', 0.0),
    ({"schema": SCHEMA}, '{"age": -1} no {"age": 7}', 1.0),
    ({"schema": SCHEMA}, '{"child": {"age": 7}}', 0.0),
    ({"schema": SCHEMA, "parsed": 0.2}, '{"age": -1}', 0.2),
    ({"schema": SCHEMA, "parsed": 0.2}, "{age}", 0.0),
    ({"schema": {"pattern": "^a+$"}}, '```\n"aab"\n```', 0.0),
    ({"schema": {"patternProperties": {"^n_": {"type": "number"}}}}, '{"n_a": 1, "b": "c"}', 1.0),
    ({"schema": {"patternProperties": {"^n_": {"type": "number"}}}}, '{"n_a": "1"}', 0.0),
    ({"schema": {"patternProperties": {"^n_": {}}, "properties": {"a": {}}, "additionalProperties": False}},
     '{"n_a": 1, "a": 2}', 1.0),
    ({"schema": {"patternProperties": {"^n_": {}}, "additionalProperties": False}}, '{"m": 1}', 0.0),
    ({"schema": {"additionalProperties": {"type": "string"}}}, '{"m": 1}', 0.0),
    ({"schema": {"additionalProperties": {"type": "string"}}}, '{"m": "1"}', 1.0),
    ({"schema": {"uniqueItems": True}}, "```\n[1, 1.0]\n```", 0.0),
    ({"schema": {"uniqueItems": True}}, '```\n[1, true, "1", [1]]\n```', 1.0),
    ({"schema": {"$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": {"$ref": "#"},
                 "type": "object"}}, '{"a": {"b": {}}}', 1.0),
])  # fmt: skip
def test_json_is_found_and_fits_its_schema(options: dict[str, Any], text: str, expected: float) -> None:
    assert earned("json", options, text) == expected


@pytest.mark.parametrize("schema", [SCHEMA, '{"type": "object", "required": ["age"]}'])
def test_a_row_may_bring_its_own_schema(schema: Any) -> None:
    assert earned("json", {"column": "shape"}, '{"age": 7}', columns={"shape": schema}) == 1.0
    assert earned("json", {"column": "shape"}, '{"name": 7}', columns={"shape": schema}) == 0.0


@pytest.mark.parametrize(("options", "text", "expected"), [
    ({"pattern": r"\d+"}, "so 12 it is", 1.0),
    ({"pattern": r"\d+", "whole": True}, "so 12 it is", 0.0),
    ({"pattern": r"\d+", "whole": True}, "\n12\n", 1.0),
    ({"pattern": "paris"}, "Paris", 0.0),
    ({"pattern": "paris", "ignore_case": True}, "Paris", 1.0),
    ({"pattern": r"^\d+$"}, f"{THOUGHT}12", 1.0),
    ({"pattern": r"^\d+$", "where": "all"}, f"{THOUGHT}12", 0.0),
    ({"pattern": r"^\d+$", "where": "marked"}, r"So \boxed{12}.", 1.0),
    ({"pattern": r"(\w)\1"}, "Anna", 1.0),
    ({"pattern": "a"}, "a" * 100_001, 0.0),
])  # fmt: skip
def test_a_regular_expression_matches_or_not(options: dict[str, Any], text: str, expected: float) -> None:
    assert earned("regex", options, text) == expected


def test_a_row_may_bring_its_own_expressions() -> None:
    assert earned("regex", {"column": "p"}, "12", columns={"p": r"^\d+$"}) == 1.0
    assert earned("regex", {"column": "p"}, "12", columns={"p": ["x", r"^\d+$"]}) == 1.0
    assert earned("regex", {"column": "p"}, "12", columns={"p": ["x", "y"]}) == 0.0
