"""One word for one thing: docs/architecture.md has the glossary, and the phrases that it replaces are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import REPOSITORY

GLOSSARY = REPOSITORY / "docs/architecture.md"


def refused() -> list[str]:
    """The phrases in the last column of the glossary."""
    (table,) = re.findall(r"^\| term .*\n\| --- .*\n((?:\|.*\n)+)", GLOSSARY.read_text(), flags=re.MULTILINE)
    columns = [line.strip("|\n ").split("|") for line in table.splitlines()]
    return sorted({phrase.strip() for _, _, *last in columns for phrase in "".join(last).split(",") if phrase.strip()})


def texts() -> list[Path]:
    """Code and documents, but for the glossary and what was written before it."""
    folders = ("orchestrator", "workers", "profiles", "state", "benchmarks", "docs")
    found = [path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in (".py", ".md")]
    return [*found, REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]


def test_the_glossary_refuses_something() -> None:
    assert {"crew", "voice", "every so manieth"} <= set(refused())


@pytest.mark.parametrize("phrase", refused())
def test_nobody_writes_what_the_glossary_refuses(phrase: str) -> None:
    pattern = re.compile(rf"\b{re.escape(phrase)}(?!\w)", flags=re.IGNORECASE)
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in texts()
        if path != GLOSSARY
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert wrong == []
