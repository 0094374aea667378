"""Built-in parts by name: what a profile may say of them, and what is refused before anything starts."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.rewards import BUILT_IN, ON_ANSWERS, ON_COMPLETIONS, is_slow
from tests import REPOSITORY
from tests.workers.rewards.cases import case_of, earned
from workers.rewards.registry import PARTS, options_of, part_of


def test_the_profile_s_names_are_those_of_the_parts_that_there_are() -> None:
    assert tuple(PARTS) == BUILT_IN and ON_ANSWERS.issubset(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_part_is_a_frozen_record_in_a_file_of_its_own(name: str) -> None:
    kind = PARTS[name]
    module = import_module(kind.__module__)
    assert kind.__module__ == f"workers.rewards.{'verifier' if name == 'correct' else name}"
    assert is_dataclass(kind) and kind.__dataclass_params__.frozen and kind.name == name
    assert [one for one in vars(module).values() if one in PARTS.values()] == [kind]


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("exakt", {}, "no built-in part 'exakt'"),
        ("overlong", {"target": 8}, "`buffer` is missing"),
        ("overlong", {"targt": 8, "buffer": 4}, "did you mean target?"),
        ("overlong", {"target": "8", "buffer": 4}, "Expected `int`, got `str`"),
        ("overlong", {"target": 8, "buffer": 9}, "`buffer` (9) must be from 1 to `target` (8)"),
        ("overlong", {"target": 8, "buffer": 0}, "`buffer` (0)"),
        ("correct", {"wrong": 1.0}, "must be less than 1"),
        ("format", {"kept": 0.0, "broken": 1.0}, "must be at least `broken`"),
        ("length", {"weight": 1.0}, "it has no option 'weight'"),
        ("fuzzy", {"threshold": float("nan")}, "must be finite"),
        ("cosine", {"right_long": float("inf")}, "must be finite"),
        ("exact", {"where": "thoughts"}, "where: 'all' or 'final' or 'marked'"),
        ("fuzzy", {"threshold": 1.5}, "from 0 to 1"),
        ("choice", {"letters": "A"}, "2 to 26 different letters"),
        ("choice", {"letters": "ABA"}, "2 to 26 different letters"),
        ("choice", {"letters": "A1"}, "2 to 26 different letters"),
        ("regex", {}, "either `pattern` or `column`"),
        ("regex", {"pattern": "a", "column": "b"}, "either `pattern` or `column`"),
        ("regex", {"pattern": "(a"}, "missing )"),
        ("regex", {"pattern": "(?R)"}, "cannot be used"),
        ("regex", {"pattern": "a" * 1001}, "1000 are allowed"),
        ("regex", {"pattern": "(?:(?:a{1000}){1000}){1000}"}, "1002002000 items long"),
        ("regex", {"pattern": "(?x) a # comment"}, "is not taken"),
        ("regex", {"pattern": "(" * 500 + ")" * 500}, "cannot be used"),
        ("json", {"schema": {"type": "objct"}}, "this is no JSON schema"),
        ("json", {"schema": {"$ref": "https://example.org/schema"}}, "nothing is fetched"),
        ("json", {"schema": {"pattern": "(?R)"}}, "cannot be used"),
        ("json", {"schema": {"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}}, "only at the top"),
        ("json", {"schema": {"type": "object"}, "column": "schema"}, "either `schema` or `column`"),
        ("json", {"parsed": 2.0}, "from 0 to 1"),
        ("xml", {"tags": []}, "at least one tag"),
        ("xml", {"tags": ["<answer>"]}, "without its brackets"),
        ("xml", {"tags": ["a", "a"]}, "names a tag twice"),
        ("cosine", {"right_long": -0.75}, "a right answer could earn -0.75, and one that is wrong or cut -0.5"),
        ("repetition", {"size": 0}, "from 1 to 100"),
        ("language", {}, "`wanted` is missing"),
        ("language", {"wanted": "english"}, "must be one of"),
        ("language", {"wanted": "en", "shortest": 0}, "at least 1"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_the_part_and_what_it_takes(
    name: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(LonghaulError) as refused:
        part_of(name, options)
    assert why in refused.value.what and repr(name) in refused.value.what
    assert refused.value.exit_code == ExitCode.INPUT
    assert all(option in refused.value.what for option in (options_of(name) if name in PARTS else ()))


@pytest.mark.parametrize(("name", "package"), [("language", "py3langid"), ("json", "jsonschema")])
def test_a_part_without_its_package_says_what_to_type(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"workers.rewards.{name}.find_spec", lambda asked: None if asked == package else object())
    with pytest.raises(LonghaulError, match=f"needs {package}") as refused:
        part_of(name, {"wanted": "en"} if name == "language" else {})
    assert refused.value.next_command == f'pip install "longhaul[{name}]"'


@pytest.mark.parametrize(
    ("name", "options"),
    [("exact", {"column": "reply"}), ("fuzzy", {"column": "reply"}), ("choice", {"column": "reply"}),
     ("regex", {"column": "reply"}), ("json", {"column": "reply"})],
)  # fmt: skip
@pytest.mark.parametrize("columns", [{"answer": "7"}, {"answer": "7", "reply": None}, {"answer": "7", "reply": ""}])
def test_a_column_that_is_not_there_is_named_with_its_line(
    name: str, options: dict[str, Any], columns: dict[str, Any]
) -> None:
    with pytest.raises(LonghaulError, match=r"'reply', which is not there, in line 3 of the data \(its columns: a"):
        part_of(name, options)(case_of("7", columns=columns))


@pytest.mark.parametrize(
    ("name", "options", "columns"),
    [
        ("exact", {"column": "reply"}, {"reply": {"a": 1}}),
        ("fuzzy", {"column": "reply"}, {"reply": [True]}),
        ("fuzzy", {"column": "reply"}, {"reply": "x" * 301}),
        ("choice", {"column": "reply"}, {"reply": "F"}),
        ("choice", {"column": "reply"}, {"reply": 5}),
        ("choice", {"column": "reply"}, {"reply": ["A", "B"]}),
        ("regex", {"column": "reply"}, {"reply": "(a"}),
        ("json", {"column": "reply"}, {"reply": "{"}),
        ("json", {"column": "reply"}, {"reply": [1]}),
        ("json", {"schema": {"$ref": "#/$defs/lost"}}, {}),
    ],
)
def test_a_value_of_a_row_that_a_part_cannot_use_is_refused_with_its_line(
    name: str, options: dict[str, Any], columns: dict[str, Any]
) -> None:
    with pytest.raises(LonghaulError, match="in line 3 of the data"):
        part_of(name, options)(case_of("{}", columns=columns))


DOCUMENT = (REPOSITORY / "docs/rewards.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_document_has_every_part_and_every_option_with_its_default(name: str) -> None:
    (section,) = re.findall(rf"^## `{name}`\n(.*?)(?=^## |\Z)", DOCUMENT, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", section, re.MULTILINE)
    expected = []
    for option, one in options_of(name).items():
        default = "required" if one.default is one.default_factory else f"`{_toml(one.default)}`"
        expected.append((option, "`{}`" if one.default_factory is dict else default))
    assert [(option, default) for option, default, _ in rows] == expected


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def examples() -> list[tuple[str, str, str]]:
    """Part, TOML, and the rows of its example."""
    return re.findall(r"^## `(\w+)`\n.*?```toml\n(.*?)```\n(.*?)(?=^## |\Z)", DOCUMENT, re.DOTALL | re.MULTILINE)


def test_the_document_has_an_example_of_every_part() -> None:
    assert [name for name, _, _ in examples()] == list(BUILT_IN)


@pytest.mark.parametrize(
    ("name", "text", "rows"), [one for one in examples() if one[0] in ON_COMPLETIONS and not is_slow(one[0])]
)
def test_the_examples_of_the_document_earn_what_it_says(name: str, text: str, rows: str) -> None:
    import tomllib

    options = tomllib.loads(text).get("grpo", {}).get("reward", {}).get("options", {}).get(name, {})
    table = re.findall(r"^\| (.+?) \| (-?[\d.]+) \|$", rows, re.MULTILINE)
    assert table
    for given, expected in table:
        completion, facts = _facts(given)
        assert earned(name, options, completion, **facts) == pytest.approx(float(expected), abs=0.005), given


def _facts(given: str) -> tuple[str, dict[str, Any]]:
    """A completion in backquotes, and what is said of it: `tokens`, `right`, `wrong`, `cut`, `answer`."""
    (completion, *answer) = re.findall(r"`([^`]*)`", given) or [""]
    facts: dict[str, Any] = {"right": "wrong" not in given, "cut": "cut" in given, "formed": "malformed" not in given}
    if tokens := re.search(r"(\d+) of (\d+) tokens", given):
        facts |= {"tokens": int(tokens[1]), "longest": int(tokens[2])}
    return completion.replace("\\n", "\n"), facts | ({"gold": answer[0]} if answer else {})
