"""open-instruct's YAML as settings: names and kinds of values checked, every problem told at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from profiles.errors import LonghaulError
from profiles.harmless import harmless
from profiles.open_instruct.options import DEFAULTS, KNOWN, LEAST, Kind
from profiles.refusal import input_error, nearest

MOST_BYTES = 1 << 20
"""Of a file: a longer one is no list of settings."""
Settings = Mapping[str, Any]
"""Option -> value, as in the file."""


def value(settings: Settings, name: str) -> Any:
    """Of an option that the planner reads: the file's, else upstream's default."""
    return settings.get(name, DEFAULTS[name])


def read(path: Path) -> dict[str, Any]:
    """The settings of a file. Raises LonghaulError (INPUT) with every problem that was found."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise input_error(f"{path} cannot be read: {error.strerror}", f"ls -l {path}") from error
    if len(raw) > MOST_BYTES:
        raise input_error(f"{path} is larger than 1 MiB, so it is no list of settings", f"head {path}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise input_error(f"{path} is not a text file in UTF-8 (byte {error.start})", f"correct {path}") from error
    return settings_of(text, str(path))


def settings_of(text: str, label: str) -> dict[str, Any]:
    """The same of a text. (pure)"""
    import yaml  # only an import needs it

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = str(getattr(error, "problem_mark", "") or "").strip().replace('"<unicode string>", ', "")
        what = getattr(error, "problem", None) or str(error) or "it is nested too deeply"
        raise input_error(
            f"{label} is not valid YAML: {harmless(str(what))} {where}".rstrip(), f"correct {label}"
        ) from error
    if not isinstance(found, dict):
        raise input_error(f"{label} is not a list of settings, `name: value`", f"correct {label}")
    keys = [node.value for node, _ in root.value]
    problems = [f"{harmless(key)} is there twice" for key in dict.fromkeys(keys) if keys.count(key) > 1]
    problems += [problem for name, one in found.items() for problem in _problems(name, one)]
    if problems:
        raise _refused(label, problems)
    return found


def _refused(label: str, problems: list[str]) -> LonghaulError:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = "\n".join(f"  {problem}" for problem in problems)
    return input_error(f"{label} has {count}\n{lines}", f"correct {label} and type the same command again")


def _problems(name: Any, one: Any) -> Iterator[str]:
    """What is wrong with one line; nothing where it may be."""
    shown = harmless(str(name))
    if not isinstance(name, str) or name not in KNOWN:
        near = nearest(str(name), KNOWN)
        yield f"{shown}: neither upstream nor the fork knows it" + (f"; did you mean {near}?" if near else "")
    elif one is None:
        if name in DEFAULTS:
            yield f"{shown} has no value"
    elif not _fits(one, KNOWN[name]):
        yield f"{shown} = {harmless(str(one))[:60]} is not {_RULES[KNOWN[name]]}{_hint(one, KNOWN[name])}"
    elif name in LEAST and any(number < LEAST[name] for number in (one if isinstance(one, list) else [one])):
        yield f"{shown} = {one} is less than {LEAST[name]:g}"


_RULES: dict[Kind, str] = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "text": "a text",
    "ints": "a list of whole numbers",
    "texts": "a list of texts",
}


def _fits(one: Any, kind: Kind) -> bool:
    is_number = isinstance(one, int | float) and not isinstance(one, bool) and one == one and abs(one) < 1e15
    match kind:
        case "int":
            return is_number and isinstance(one, int)
        case "float":
            return is_number
        case "bool":
            return isinstance(one, bool)
        case "text":
            return isinstance(one, str | int | float)
        case "ints":
            return isinstance(one, list) and bool(one) and all(_fits(each, "int") for each in one)
    return isinstance(one, list) and all(isinstance(each, str | int | float) for each in one)


def _hint(one: Any, kind: Kind) -> str:
    """YAML 1.1 takes `1e-6` for a text."""
    if kind != "float" or not isinstance(one, str):
        return ""
    try:
        return f"; for YAML it is a text: write {float(one):.1e}"
    except ValueError:
        return ""
