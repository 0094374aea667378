"""`python -m profiles > docs/profiles.md`: the reference of all knobs, made from the schema."""

from __future__ import annotations

import sys

from profiles.knobs import Knob, docstrings, knobs_of, sections
from profiles.load import load_profile, shipped_profiles
from profiles.refusal import shown

INTRODUCTION = """\
# Profiles: every knob

<!-- Made by `python -m profiles > docs/profiles.md` from profiles/schema.py; a test compares. Edit the schema. -->

A profile is a TOML file that describes a run. `--profile NAME` uses a shipped profile, `--profile path/to/mine.toml`
one of your own. A file usually begins with `extends = "pocket"` (or a path, relative to the file) and holds only the
differences. `--set section.key=value` changes single knobs on the command line. Later values win: base, file, `--set`.

Before anything starts, the program reports all unknown keys, values of a wrong type, values out of bounds and values
that contradict each other, with file and line (exit code 66).

The run stores the resolved profile. If you resume it with another one, the program shows the difference. **Fixed**
knobs cannot change in a run. **Free** knobs may change at any time. All others need `--accept-changes`. As long as the
run has no checkpoint, every knob may change.
"""


def reference() -> str:
    """docs/profiles.md, whole."""
    parts = [INTRODUCTION, _shipped()]
    said = docstrings()
    for section in ["", *sections()]:
        parts.append(f"## {f'[{section}]' if section else 'Above all sections'}\n\n{_about(section, said)}")
        parts.append(_table(list(knobs_of(section).values()), said))
    return "\n".join(parts)


def _shipped() -> str:
    rows = [f"| `{name}` | {load_profile(name).profile.description} |" for name in shipped_profiles()]
    return "\n".join(["## Profiles that ship", "", "| profile | what it is |", "| --- | --- |", *rows, ""])


def _about(section: str, said: dict[str, str]) -> str:
    if not section:
        return "`extends`: name or path of the profile that this one starts from. It is not a knob.\n"
    text = said[section].removeprefix(f"[{section}]: ")
    return text[0].upper() + text[1:] + "\n"


def _table(rows: list[Knob], said: dict[str, str]) -> str:
    lines = ["| knob | value | default | on resume | what it does |", "| --- | --- | --- | --- | --- |"]
    for knob in rows:
        default = "the file's name" if knob.name == "name" else f"`{shown(knob.default)}`"
        kind = knob.kind if knob.section else "free"
        lines.append(f"| `{knob.key}` | {knob.rule} | {default} | {kind} | {said[knob.name]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
