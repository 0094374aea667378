"""`python -m profiles docs`: generates the reference of all knobs from the schema."""

from __future__ import annotations

import sys
from pathlib import Path

from profiles.knobs import Knob, docstrings, knobs_of, sections
from profiles.load import load_profile, shipped_profiles
from profiles.refusal import toml_text

INTRODUCTION = """\
# Profiles: every knob

<!-- Made by `python -m profiles docs` from profiles/schema.py; a test compares. Edit the schema. -->

A profile is a TOML file that describes a run. `--profile NAME` uses a shipped profile, `--profile path/to/mine.toml`
one of your own. A file usually begins with `extends = "pocket"` (or a path, relative to the file) and holds only the
differences. `--set section.key=value` changes single knobs on the command line. Later values win: base, file, `--set`.

Before anything starts, the program reports all unknown keys, values of a wrong type, values out of bounds and values
that contradict each other, with file and line (exit code 66).

The run stores the resolved profile. If you resume it with another one, the program shows the difference. **Fixed**
knobs cannot change in a run. **Free** knobs may change at any time. All others need `--accept-changes`. As long as the
run has no checkpoint, every knob may change.
"""

SHIPPED = """\
Each name leads to what the profile needs, how to start it, and what to expect after 1, 10 and 100 hours."""

VARIANTS = ".variants"
VARIANTS_INTRODUCTION = """\
# Variants: ablations and published alternatives

<!-- Made by `python -m profiles docs` from profiles/azr.py and profiles/grpo.py; a test compares. Edit those. -->

No run needs these knobs. They reproduce a paper, or measure what a choice is worth.
The sources of [self-play](algorithm.md#sources) and [GRPO](grpo.md#sources) name the paper and the file of each rule.
[Profiles](profiles.md) has all other knobs.
"""


PROFILE_PAGES = {
    "profiles-pocket.md": ("pocket", "pocket-grpo"),
    "profiles-azr.md": (
        "azr-0.5b",
        "azr-3b-qlora",
        "azr-3b-qlora-8gb",
        "azr-qwen3-4b-12gb",
        "azr-7b-24gb",
        "azr-paper",
    ),
    "profiles-grpo.md": (
        "grpo-1.5b-8gb",
        "grpo-1.5b-12gb-long",
        "grpo-qwen3-1.7b-8gb",
        "grpo-llama3.2-3b-12gb",
        "grpo-qwen3-4b-12gb",
        "grpo-8b-24gb",
    ),
    "profiles-cluster.md": ("grpo-32b-math", "grpo-32b-code"),
    "profiles-machinery.md": ("fake", "verl-debug"),
}
"""Page -> the profiles that it describes, a section each. A `-debug` twin stands in the section of its profile."""


def main_page() -> str:
    """The content of docs/profiles.md."""
    texts = docstrings()
    parts = [INTRODUCTION, _shipped()]
    for section in ["", *sections()]:
        if not section.endswith(VARIANTS):
            parts.append(_section(section, texts))
        if f"{section}{VARIANTS}" in sections():
            parts.append(f"Ablations and published variants: [[{section}{VARIANTS}]](variants.md#{section}variants).\n")
    return "\n".join(parts)


def variants_page() -> str:
    """The content of docs/variants.md."""
    texts = docstrings()
    return "\n".join([VARIANTS_INTRODUCTION, *(_section(one, texts) for one in sections() if one.endswith(VARIANTS))])


PAGES = {"profiles.md": main_page, "variants.md": variants_page}


def _section(section: str, texts: dict[str, str]) -> str:
    title = f"[{section}]" if section else "Above all sections"
    return f"## {title}\n\n{_about(section, texts)}\n{_table(list(knobs_of(section).values()), texts)}"


def _shipped() -> str:
    rows = [f"| {_linked(name)} | {load_profile(name).profile.description} |" for name in shipped_profiles()]
    return "\n".join(["## Profiles that ship", "", SHIPPED, "", "| profile | what it is |", "| --- | --- |", *rows, ""])


def _linked(name: str) -> str:
    """The name as a link to its section."""
    described = name if any(name in names for names in PROFILE_PAGES.values()) else name.removesuffix("-debug")
    (page,) = (page for page, names in PROFILE_PAGES.items() if described in names)
    return f"[`{name}`]({page}#{described.replace('.', '')})"


def _about(section: str, texts: dict[str, str]) -> str:
    if not section:
        return "`extends`: name or path of the profile that this one starts from. It is not a knob.\n"
    text = texts[section].removeprefix(f"[{section}]: ")
    return text[0].upper() + text[1:] + "\n"


def _table(rows: list[Knob], texts: dict[str, str]) -> str:
    lines = ["| knob | value | default | on resume | what it does |", "| --- | --- | --- | --- | --- |"]
    for knob in rows:
        default = "the file's name" if knob.name == "name" else f"`{toml_text(knob.default)}`"
        kind = knob.kind if knob.section else "free"
        lines.append(f"| `{knob.key}` | {knob.rule} | {default} | {kind} | {texts[knob.name]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for page, text in PAGES.items():
        (Path(sys.argv[1]) / page).write_text(text(), encoding="utf-8")
