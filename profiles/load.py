"""Loads a Profile from TOML, its base profiles and overrides, with the origin of each value.

Reports all problems at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.finding import Finding
from profiles.knobs import Knob, base_type, choices, knobs, knobs_of, sections, value_of, with_values
from profiles.refusal import OVERRIDE, Refused, input_error, line_of, nearest, place, refusal, toml_text
from profiles.renamed import RENAMED
from profiles.rules import check
from profiles.schema import Profile

SHIPPED = Path(__file__).parent
STORED = "the stored profile"
NOT_INHERITED = ("name", "description")
"""A profile that extends another is named after its own file."""


class Loaded(Struct, frozen=True):
    """origins: knob -> `file:line`, `--set` or `default`. sources: the files read, starting with the requested one."""

    profile: Profile
    origins: Mapping[str, str]
    sources: tuple[str, ...]


class _Value(Struct, frozen=True):
    value: Any
    origin: str


class _File(Struct, frozen=True):
    """One file of the chain."""

    label: str
    """Its path as shown to the user."""
    stem: str
    table: dict[str, Any]
    text: str


def load_profile(name_or_path: str, overrides: Sequence[str] = ()) -> Loaded:
    """Read a profile: the shipped one of that name, or a path to a .toml.

    overrides: `section.key=value` in TOML syntax; a bare word counts as text. Raises LonghaulError: INPUT with every
    problem, PERMISSION if a file may not be read.
    """
    chain = _read_chain(name_or_path)
    problems: list[Refused] = []
    values: dict[str, _Value] = {}
    for file in reversed(chain):
        _collect(file, values, problems, is_leaf=file is chain[0])
    for override in overrides:
        _override(override, values, problems)
    values.setdefault("name", _Value(chain[0].stem, chain[0].label))
    profile = _built(values, problems, chain[0].stem, chain[0].label)
    origins = {name: values[name].origin if name in values else "default" for name in knobs()}
    return Loaded(profile, origins, tuple(file.label for file in chain))


def override_profile(profile: Profile, overrides: Sequence[str]) -> Profile:
    """A stored profile with `section.key=value` overrides. Raises LonghaulError(INPUT) with every problem."""
    problems: list[Refused] = []
    values = {name: _Value(value_of(profile, name), STORED) for name in knobs()}
    for override in overrides:
        _override(override, values, problems)
    return _built(values, problems, profile.name, STORED)


def _built(values: Mapping[str, _Value], problems: list[Refused], name: str, label: str) -> Profile:
    """The profile that the values make; raises with `problems` and all that are found here."""
    good, bad = _convert(values, problems)
    profile = _build(good)
    for problem in check(profile):
        # Skip rules that read a refused knob: they would complain about its default.
        if not bad & set(problem.knobs):
            problems.append(_refused(problem, good, values, label))
    if problems:
        raise refusal(name, problems)
    return profile


def shipped_profiles() -> list[str]:
    """Names of the profiles that ship with the program."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def resolved_json(profile: Profile) -> bytes:
    """The profile with every value, in the canonical form that a run stores and hashes."""
    return msgspec.json.encode(profile, order="sorted")


def profile_sha256(profile: Profile) -> str:
    """Identity of a resolved profile, in hex."""
    import hashlib  # like tomllib below, slow to import, and not needed by `status`

    return hashlib.sha256(resolved_json(profile)).hexdigest()


def from_json(stored: bytes | str) -> Profile:
    """Decode a profile written by `resolved_json`. Raises LonghaulError(VERSION) if this program has other knobs."""
    try:
        return msgspec.json.decode(stored, type=Profile)
    except msgspec.DecodeError as error:
        raise LonghaulError(
            f"the stored profile does not fit this version of Longhaul: {error}",
            kept="the run, unchanged",
            next_command="python -m orchestrator run --run NEW-NAME, or install the version that made this run",
            exit_code=ExitCode.VERSION,
        ) from error


# -- files ---------------------------------------------------------------------------------------------------------


def _read_chain(name_or_path: str) -> list[_File]:
    """The requested file, then the file it extends, and so on to the root."""
    chain: list[_File] = []
    seen: list[Path] = []
    wanted, extended_by = name_or_path, ""
    folder = Path()
    while True:
        path = _locate(wanted, folder, extended_by)
        file = _read(path, extended_by)
        if path.resolve() in seen:
            circle = " -> ".join(link.label for link in [*chain, file])
            raise input_error(
                f"profiles extend each other in a circle: {circle}", f"remove one extends line from {chain[-1].label}"
            )
        seen.append(path.resolve())
        chain.append(file)
        base = file.table.pop("extends", None)
        if base is None:
            return chain
        if not isinstance(base, str) or not base:
            raise input_error(
                f"{file.label}: extends must be the name of a profile or a path to a .toml, not {toml_text(base)}",
                f"correct extends in {file.label}",
            )
        wanted, extended_by, folder = base, file.label, path.parent


def _locate(wanted: str, folder: Path, extended_by: str) -> Path:
    """Path of a profile by name or path; a path is relative to the file that extends it."""
    if wanted.endswith(".toml"):
        return folder / wanted
    if wanted in shipped_profiles():
        return SHIPPED / f"{wanted}.toml"
    near = nearest(wanted, shipped_profiles())
    guess = f"; did you mean {near}?" if near else ""
    raise input_error(
        f"{_extended_by(extended_by)}no profile is named {wanted!r}{guess}\n"
        f"  shipped: {', '.join(shipped_profiles())}; or give a path that ends in .toml",
        f"python -m orchestrator run --profile {near or 'pocket'}",
    )


def _read(path: Path, extended_by: str) -> _File:
    import tomllib

    label = _label(path)
    try:
        text = path.read_bytes().decode("utf-8")
        return _File(label, path.stem, tomllib.loads(text), text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The message ends with "(at line 3, column 5)" or "(at end of document)".
        raise input_error(f"{label} is not valid TOML: {error}", f"correct {label}") from error
    except UnicodeDecodeError as error:
        raise input_error(f"{label} is not a text file in UTF-8 (byte {error.start})", f"correct {label}") from error
    except FileNotFoundError as error:
        known = path.stem in shipped_profiles()
        hint = f"python -m orchestrator run --profile {path.stem}" if known else "ls *.toml profiles/*.toml"
        raise input_error(f"{_extended_by(extended_by)}there is no file {label}", hint) from error
    except PermissionError as error:
        raise LonghaulError(
            f"{label} may not be read: {error.strerror}",
            kept="nothing was started",
            next_command=f"chmod u+r {label}",
            exit_code=ExitCode.PERMISSION,
        ) from error
    except OSError as error:
        raise input_error(f"{label} cannot be read: {error.strerror}", f"ls -l {label}") from error


def _extended_by(extended_by: str) -> str:
    return f"{extended_by} extends another profile: " if extended_by else ""


def _label(path: Path) -> str:
    return f"profiles/{path.name}" if path.parent == SHIPPED else str(path)


# -- values --------------------------------------------------------------------------------------------------------


def _collect(file: _File, values: dict[str, _Value], problems: list[Refused], *, is_leaf: bool) -> None:
    """Add a file's values over those of its base."""
    table = file.table if is_leaf else {key: value for key, value in file.table.items() if key not in NOT_INHERITED}
    _collect_section(file, "", table, values, problems)


def _collect_section(
    file: _File, section: str, table: Mapping[str, Any], values: dict[str, _Value], problems: list[Refused]
) -> None:
    for key, value in table.items():
        name, where = f"{section}.{key}".lstrip("."), _origin(file, section, key)
        if name in sections():
            if isinstance(value, dict):
                _collect_section(file, name, value, values, problems)
            else:
                problems.append(_not_a_knob(name, where))
        elif isinstance(value, dict) and key not in knobs_of(section):
            near = nearest(name, sections())
            problems.append(
                Refused(f"[{name}]", "unknown section" + (f"; did you mean [{near}]?" if near else ""), where)
            )
        else:
            _put(section, key, _Value(value, where), values, problems)


def _not_a_knob(section: str, where: str) -> Refused:
    if new := RENAMED.get(section):
        return Refused(section, f"is now {new}", where)
    how = f"write --set {section}.KEY=VALUE" if where == OVERRIDE else f"write its knobs under a line [{section}]"
    return Refused(f"[{section}]", f"is a section: {how}", where)


def _put(section: str, key: str, value: _Value, values: dict[str, _Value], problems: list[Refused]) -> None:
    known = knobs_of(section)
    if key in known:
        values[known[key].name] = value
        return
    elsewhere = [knob.section for knob in knobs().values() if knob.key == key and knob.section]
    elsewhere.sort(key=lambda other: not other.startswith(f"{section}."))  # its own subsections first
    near = nearest(key, known)
    if new := RENAMED.get(f"{section}.{key}"):
        text = f"is now {new}"
    elif elsewhere:
        text = f"unknown key; it belongs under [{elsewhere[0]}]"
    else:
        text = "unknown key" + (f"; did you mean {near}?" if near else "")
    problems.append(Refused(place(section, key), text, value.origin))


def _override(override: str, values: dict[str, _Value], problems: list[Refused]) -> None:
    name, equals, text = override.partition("=")
    section, _, key = name.strip().rpartition(".")
    if not equals or not key:
        problems.append(Refused(override, "must have the form section.key=value", OVERRIDE))
    elif section not in sections() and section:
        near = nearest(section, sections())
        problems.append(
            Refused(f"[{section}]", "unknown section" + (f"; did you mean {near}.{key}?" if near else ""), OVERRIDE)
        )
    elif name.strip() in sections():
        problems.append(_not_a_knob(name.strip(), OVERRIDE))
    else:
        knob = knobs_of(section).get(key)
        is_text = knob is not None and base_type(knob.annotation) is str
        _put(section, key, _Value(_parse_override(text.strip(), is_text=is_text), OVERRIDE), values, problems)


def _parse_override(text: str, *, is_text: bool) -> Any:
    """A TOML value, or else the text itself, so that text needs no quotes in the shell."""
    import tomllib

    if is_text and text[:1] not in ("'", '"'):
        return text
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _convert(values: Mapping[str, _Value], problems: list[Refused]) -> tuple[dict[str, Any], set[str]]:
    """(values converted to their types, names of those that do not fit)."""
    good: dict[str, Any] = {}
    bad: set[str] = set()
    for name, knob in knobs().items():
        if name not in values:
            continue
        value = values[name].value
        try:
            good[name] = _plain_zero(msgspec.convert(value, knob.annotation))
            fits = _is_finite(good[name])
        except msgspec.ValidationError:
            fits = False
        if not fits:
            bad.add(name)
            good.pop(name, None)
            problems.append(
                Refused(f"{place(knob.section, knob.key)} = {toml_text(value)}", _why(knob, value), values[name].origin)
            )
    return good, bad


def _why(knob: Knob, value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    text = f"must be {knob.rule}"
    allowed = choices(knob.annotation)
    for word in value if isinstance(value, list) else [value]:
        if allowed and word not in allowed and (near := nearest(str(word), allowed)):
            return f"{text}; did you mean {near}?"
    return text


def _plain_zero(value: Any) -> Any:
    """Replace -0.0 by 0.0, which is equal but would be hashed differently."""
    return value + 0.0 if isinstance(value, float) else value


def _is_finite(value: Any) -> bool:
    items = value if isinstance(value, tuple) else (value,)
    return all(math.isfinite(item) for item in items if isinstance(item, float))


def _build(good: Mapping[str, Any]) -> Profile:
    """A Profile from checked values, with defaults for the rest."""
    return with_values(Profile(name="unnamed"), good)


def _refused(problem: Finding, good: Mapping[str, Any], values: Mapping[str, _Value], label: str) -> Refused:
    name = problem.knobs[0]
    knob = knobs()[name]
    value = good.get(name, knob.default)
    # If the first knob has its default, point to the line of another.
    origin = next((values[name].origin for name in problem.knobs if name in values), label)
    return Refused(f"{place(knob.section, knob.key)} = {toml_text(value)}", problem.text, origin)


def _origin(file: _File, section: str, key: str) -> str:
    line = line_of(file.text, section, key)
    return f"{file.label}:{line}" if line else file.label
