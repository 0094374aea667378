"""Each knob is declared once, explained, read by some code, and documented."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache

import pytest
from msgspec import NODEFAULT

from profiles.__main__ import PAGES
from profiles.errors import LonghaulError
from profiles.knobs import describe, docstrings, knobs, sections
from profiles.load import load_profile
from profiles.renamed import RENAMED
from profiles.schema import Profile
from tests import REPOSITORY

NOT_READ_YET: frozenset[str] = frozenset()
"""Knobs that no code reads yet. The test below keeps the list minimal: an entry that is read must go."""


@pytest.mark.parametrize("name", [*knobs(), *sections()])
def test_every_knob_and_section_says_what_it_does(name: str) -> None:
    assert docstrings()[name].endswith(".")


def test_every_knob_but_the_name_has_a_default() -> None:
    assert [name for name, knob in knobs().items() if knob.default is NODEFAULT] == ["name"]


def test_the_defaults_are_within_their_own_bounds() -> None:
    import msgspec

    for knob in knobs().values():
        if knob.default is not NODEFAULT:
            assert msgspec.convert(knob.default, knob.annotation) == knob.default


@pytest.mark.parametrize(
    ("knob", "said"),
    [
        ("run.seed", "an integer >= 0"),
        ("sampling.temperature", "a number > 0 and <= 2"),
        ("run.device", "one of auto, cpu, cuda"),
        ("azr.tasks", "a list, each one of abd, ded, ind or MODULE:NAME, not empty"),
        ("optimizer.betas", "a list of 2, each a number"),
        ("run.deterministic", "true or false"),
        ("model.path", "a text"),
    ],
)
def test_a_type_is_told_in_words(knob: str, said: str) -> None:
    assert describe(knobs()[knob].annotation) == said


def test_a_profile_cannot_be_changed_after_it_is_read() -> None:
    profile = Profile(name="x")
    with pytest.raises(AttributeError):
        profile.azr.group_size = 3  # type: ignore[misc]


@cache
def reads() -> set[str]:
    """Knobs that code outside `profiles` reads: `section.key`, or `.key` in a file that imports the section's class."""
    found: set[str] = set()
    for path in (
        path for folder in ("state", "orchestrator", "workers") for path in (REPOSITORY / folder).rglob("*.py")
    ):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        found |= {f"{_last(node.value)}.{node.attr}" for node in attributes}
        imported = {
            alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module == "profiles.schema"
            for alias in node.names
        }
        held = {section for section, cls in sections().items() if cls.__name__ in imported}
        found |= {f"{section}.{node.attr}" for section in held for node in attributes}
    return found


def test_every_knob_is_read_somewhere() -> None:
    """A knob that nothing reads is a promise that nothing keeps."""
    read = reads()
    never = {name for name, knob in knobs().items() if knob.section and not {name, _in_its_section(name)} & read}
    assert never == NOT_READ_YET


def _last(value: ast.expr) -> str:
    return ast.unparse(value).split(".")[-1].lstrip("_")


def _in_its_section(name: str) -> str:
    return ".".join(name.split(".")[-2:])


@pytest.mark.parametrize("page", PAGES)
def test_the_reference_of_all_knobs_is_the_one_made_from_the_schema(page: str) -> None:
    written = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    assert written == PAGES[page](), "run: .venv/bin/python -m profiles docs"


def test_every_section_is_on_one_page() -> None:
    found = [line for page in PAGES.values() for line in page().splitlines() if line.startswith("## [")]
    assert sorted(found) == sorted(f"## [{section}]" for section in sections())


@pytest.mark.parametrize("name", RENAMED)
def test_a_renamed_knob_is_refused_with_its_new_name(name: str) -> None:
    assert RENAMED[name] in knobs() and name not in knobs()
    with pytest.raises(LonghaulError) as caught:
        load_profile("pocket-grpo", [f"{name}=1"])
    assert f"is now {RENAMED[name]}" in caught.value.what


def test_reading_profiles_imports_nothing_heavy() -> None:
    code = "import profiles.load, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    heavy = {"torch", "numpy", "transformers", "dataclasses", "tomllib", "difflib"}
    assert heavy & set(loaded.stdout.split()) == set()
