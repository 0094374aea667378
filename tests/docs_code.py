"""Code blocks of the documents: found with their markers, and the commands in them taken apart.

A marker is an HTML comment on the line before a block:

    <!-- not run: REASON -->    it cannot run here; its commands are still parsed, its Python compiled, its TOML read
    <!-- tested by FILE -->     that test runs it; the same holds
    <!-- exit code N -->        it runs, and its last command ends with N
    <!-- output -->             a `text` block: what the block before it prints; `...` stands for anything
    <!-- with NAME -->          a `toml` block that is a part of a profile: it extends that shipped one
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import REPOSITORY

LANGUAGES = frozenset({"bash", "python", "toml", "json", "text"})
MARKER = re.compile(r"<!-- (not run|tested by|exit code|output|with):? ?(.*?) ?-->")
OPENING = re.compile(r"(?P<indent> *)(?P<fence>`{3,})(?P<language>[^`]*)$")
HEREDOC = re.compile(r"<<'(\w+)'\n.*?^\1$", re.DOTALL | re.MULTILINE)
OPERATORS = frozenset({"&&", "||", "|", ";", "&", "(", ")"})


@dataclass(frozen=True)
class Block:
    """One code block. page: path of its document. line: number of the line with the fence, counted from 1. kind, why:
    what its marker says; empty without one."""

    page: str
    line: int
    language: str
    text: str
    kind: str = ""
    why: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.kind not in ("not run", "tested by")


def documents() -> list[Path]:
    return [*sorted((REPOSITORY / "docs").glob("*.md")), *sorted(REPOSITORY.glob("*.md"))]


def blocks_of(page: str, text: str) -> list[Block]:
    """All code blocks of a page. Raises ValueError for one that does not end. (pure)"""
    lines, found, at = text.split("\n"), [], 0
    while at < len(lines):
        opening = OPENING.match(lines[at])
        if opening is None:
            at += 1
            continue
        closing = re.compile(rf" *{opening['fence']}`* *$")
        end = next((number for number in range(at + 1, len(lines)) if closing.match(lines[number])), None)
        if end is None:
            raise ValueError(f"{page}:{at + 1}: the block does not end")
        marker = MARKER.fullmatch(lines[at - 1].strip()) if at else None
        kind, why = marker.groups() if marker else ("", "")
        body = textwrap.dedent("\n".join([*lines[at + 1 : end], ""]))
        found.append(Block(page, at + 1, opening["language"].strip(), body, kind, why))
        at = end + 1
    return found


def all_blocks() -> list[Block]:
    return [
        block
        for path in documents()
        for block in blocks_of(str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8"))
    ]


def commands_of(script: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, without redirections, assignments and here-documents. (pure)"""
    joined = HEREDOC.sub("", script).replace("\\\n", " ")
    for line in joined.splitlines():
        if not line.strip():
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        yield from _simple(list(lexer))


def _simple(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in OPERATORS:
            if command:
                yield command
            command = []
        elif word and set(word) <= set("<>&"):
            next(rest, None)
            if command and command[-1].isdigit():  # of the file, as in 2>&1
                command.pop()
        elif command or not re.match(r"[A-Z_]+=", word):
            command.append(word)
    if command:
        yield command
