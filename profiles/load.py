"""TOML + base profile + overrides -> Profile, with the origin of each value. All problems are told at once."""

from __future__ import annotations

import hashlib
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from profiles.errors import ExitCode, LonghaulError
from profiles.knobs import Knob, base_type, choices, is_required, knobs, knobs_of, sections
from profiles.rules import Problem, check
from profiles.schema import Profile

SHIPPED = Path(__file__).parent
OVERRIDE = "--set"
NOT_INHERITED = ("name", "description")
"""A profile that extends another is another profile: it is named after its own file."""


@dataclass(frozen=True)
class Loaded:
    """origins: knob -> `file:line`, `--set` or `default`. sources: the files read, the one asked for first."""

    profile: Profile
    origins: Mapping[str, str]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class _Value:
    value: Any
    origin: str


@dataclass(frozen=True)
class _File:
    """One file of the chain."""

    label: str
    """As a person would type it."""
    stem: str
    table: dict[str, Any]
    text: str


def load_profile(name_or_path: str, overrides: Sequence[str] = ()) -> Loaded:
    """Read a profile: the shipped one of that name, or a path to a .toml.

    overrides: `section.key=value` in TOML syntax; a bare word is taken as text.
    Raises LonghaulError(INPUT) with every problem that was found, PERMISSION where a file may not be read.
    """
    chain = _read_chain(name_or_path)
    problems: list[_Told] = []
    values: dict[str, _Value] = {}
    for file in reversed(chain):
        _collect(file, values, problems, is_leaf=file is chain[0])
    for override in overrides:
        _override(override, values, problems)
    values.setdefault("name", _Value(chain[0].stem, chain[0].label))

    good, bad = _convert(values, problems)
    profile = _build(good)
    for problem in check(profile):
        # A rule that read a refused knob would complain about a default that nobody wrote.
        if not bad & set(problem.knobs):
            problems.append(_told(problem, good, values))
    if problems:
        raise _refusal(chain[0], problems)
    origins = {name: values[name].origin if name in values else "default" for name in knobs()}
    return Loaded(profile, origins, tuple(file.label for file in chain))


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the program."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def resolved_json(profile: Profile) -> bytes:
    """The profile with every value spelt out, in one canonical form: what a run stores and what is hashed."""
    return msgspec.json.encode(profile, order="sorted")


def profile_sha256(profile: Profile) -> str:
    """Identity of a resolved profile, in hex."""
    return hashlib.sha256(resolved_json(profile)).hexdigest()


def from_json(stored: bytes | str) -> Profile:
    """A profile as `resolved_json` wrote it. Raises LonghaulError(VERSION) where this program has other knobs."""
    try:
        return msgspec.json.decode(stored, type=Profile)
    except msgspec.DecodeError as error:
        raise LonghaulError(
            f"the stored profile does not fit this version of Longhaul: {error}",
            kept="the run as it is",
            next_command="python -m orchestrator run --run NEW-NAME, or install the version that made this run",
            exit_code=ExitCode.VERSION,
        ) from error


# -- files ---------------------------------------------------------------------------------------------------------


def _read_chain(name_or_path: str) -> list[_File]:
    """The file asked for, then what it extends, and so on to the root."""
    chain: list[_File] = []
    seen: list[Path] = []
    wanted, extended_by = name_or_path, ""
    folder = Path()
    while True:
        path = _locate(wanted, folder, extended_by)
        if path.resolve() in seen:
            circle = " -> ".join([*(file.label for file in chain), _label(path)])
            raise _input_error(
                f"profiles extend each other in a circle: {circle}", f"remove one extends line from {chain[-1].label}"
            )
        seen.append(path.resolve())
        chain.append(_read(path))
        base = chain[-1].table.pop("extends", None)
        if base is None:
            return chain
        if not isinstance(base, str) or not base:
            raise _input_error(
                f"{chain[-1].label}: extends must be the name of a profile or a path to a .toml, not {_shown(base)}",
                f"correct extends in {chain[-1].label}",
            )
        wanted, extended_by, folder = base, chain[-1].label, path.parent


def _locate(wanted: str, folder: Path, extended_by: str) -> Path:
    """Path of a profile by name or path; a path is relative to the file that extends it."""
    said = f"{extended_by} extends {wanted!r}: " if extended_by else ""
    if wanted.endswith(".toml"):
        path = folder / wanted
        if path.is_file():
            return path
        stem = Path(wanted).stem
        hint = f"python -m orchestrator run --profile {stem}" if stem in shipped_profiles() else "ls *.toml"
        what = "is a folder, not a profile" if path.is_dir() else "there is no such profile file"
        raise _input_error(f"{said}{path}: {what}", hint)
    path = SHIPPED / f"{wanted}.toml"
    if os.sep not in wanted and path.is_file():
        return path
    near = _nearest(wanted, shipped_profiles())
    shipped = ", ".join(shipped_profiles())
    guess = f"; did you mean {near}?" if near else ""
    raise _input_error(
        f"{said}no profile is named {wanted!r}{guess}\n  shipped: {shipped}; or give a path that ends in .toml",
        f"python -m orchestrator run --profile {near or 'pocket'}",
    )


def _read(path: Path) -> _File:
    label = _label(path)
    try:
        text = path.read_bytes().decode("utf-8")
        return _File(label, path.stem, tomllib.loads(text), text)
    except tomllib.TOMLDecodeError as error:
        # Its message ends in "(at line 3, column 5)" or "(at end of document)".
        raise _input_error(f"{label} is not valid TOML: {error}", f"correct {label}") from error
    except UnicodeDecodeError as error:
        raise _input_error(f"{label} is not a text file in UTF-8 (byte {error.start})", f"correct {label}") from error
    except PermissionError as error:
        raise LonghaulError(
            f"{label} may not be read: {error.strerror}",
            kept="nothing was started",
            next_command=f"chmod u+r {label}",
            exit_code=ExitCode.PERMISSION,
        ) from error
    except OSError as error:
        raise _input_error(f"{label} cannot be read: {error.strerror}", f"ls -l {label}") from error


def _label(path: Path) -> str:
    return f"profiles/{path.name}" if path.parent == SHIPPED else str(path)


# -- values --------------------------------------------------------------------------------------------------------


def _collect(file: _File, values: dict[str, _Value], problems: list[_Told], *, is_leaf: bool) -> None:
    """Add a file's values over those of its base."""
    for top, value in file.table.items():
        where = _origin(file, "", top)
        if top in sections():
            if not isinstance(value, dict):
                problems.append(_Told(f"[{top}]", f"is a section: write its knobs under a line [{top}]", where))
                continue
            for key, inner in value.items():
                _put(top, key, _Value(inner, _origin(file, top, key)), values, problems)
        elif isinstance(value, dict) and top not in knobs_of(""):
            near = _nearest(top, sections())
            problems.append(_Told(f"[{top}]", "unknown section" + (f"; did you mean [{near}]?" if near else ""), where))
        elif is_leaf or top not in NOT_INHERITED:
            _put("", top, _Value(value, where), values, problems)


def _put(section: str, key: str, value: _Value, values: dict[str, _Value], problems: list[_Told]) -> None:
    known = knobs_of(section)
    if key in known:
        values[known[key].name] = value
        return
    elsewhere = [knob.section for knob in knobs().values() if knob.key == key and knob.section]
    near = _nearest(key, known)
    if elsewhere:
        text = f"unknown key; it belongs under [{elsewhere[0]}]"
    else:
        text = "unknown key" + (f"; did you mean {near}?" if near else "")
    problems.append(_Told(_place(section, key), text, value.origin))


def _override(override: str, values: dict[str, _Value], problems: list[_Told]) -> None:
    name, equals, text = override.partition("=")
    section, _, key = name.strip().rpartition(".")
    if not equals or not key:
        problems.append(_Told(override, "must have the form section.key=value", OVERRIDE))
    elif section not in sections() and section:
        near = _nearest(section, sections())
        problems.append(
            _Told(f"[{section}]", "unknown section" + (f"; did you mean {near}.{key}?" if near else ""), OVERRIDE)
        )
    else:
        knob = knobs_of(section).get(key)
        is_text = knob is not None and base_type(knob.annotation) is str
        _put(section, key, _Value(_parse_override(text.strip(), is_text=is_text), OVERRIDE), values, problems)


def _parse_override(text: str, *, is_text: bool) -> Any:
    """A TOML value, or the text itself where it is none: nobody wants to quote quotes for the shell."""
    if is_text and text[:1] not in ("'", '"'):
        return text
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _convert(values: Mapping[str, _Value], problems: list[_Told]) -> tuple[dict[str, Any], set[str]]:
    """Values as their types want them, and the names of those that do not fit."""
    good: dict[str, Any] = {}
    bad: set[str] = set()
    for name, knob in knobs().items():
        if name not in values:
            if is_required(knob):
                problems.append(_Told(_place(knob.section, knob.key), f"is missing: {knob.rule}", ""))
                bad.add(name)
            continue
        value = values[name].value
        try:
            good[name] = msgspec.convert(value, knob.annotation)
            fits = _is_finite(good[name])
        except msgspec.ValidationError:
            fits = False
        if not fits:
            bad.add(name)
            good.pop(name, None)
            problems.append(
                _Told(f"{_place(knob.section, knob.key)} = {_shown(value)}", _why(knob, value), values[name].origin)
            )
    return good, bad


def _why(knob: Knob, value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    text = f"must be {knob.rule}"
    allowed = choices(knob.annotation)
    for word in value if isinstance(value, list) else [value]:
        if allowed and word not in allowed and (near := _nearest(str(word), allowed)):
            return f"{text}; did you mean {near}?"
    return text


def _is_finite(value: Any) -> bool:
    items = value if isinstance(value, tuple) else (value,)
    return all(math.isfinite(item) for item in items if isinstance(item, float))


def _build(good: Mapping[str, Any]) -> Profile:
    """A Profile from checked values; what is missing is at its default, and `name` at a harmless one."""
    built = {
        section: cls(**{knob.key: good[knob.name] for knob in knobs_of(section).values() if knob.name in good})
        for section, cls in sections().items()
    }
    top = {key: good[key] for key in knobs_of("") if key in good}
    return Profile(**{"name": "unnamed", **top, **built})


# -- words ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Told:
    """One line of a refusal: which knob, what about it, and where it stands."""

    place: str
    text: str
    origin: str


def _told(problem: Problem, good: Mapping[str, Any], values: Mapping[str, _Value]) -> _Told:
    name = problem.knobs[0]
    knob = knobs()[name]
    value = good.get(name, knob.default)
    # The first knob may be at its default: then the line to look at is that of another one.
    origin = next((values[name].origin for name in problem.knobs if name in values), "default")
    return _Told(f"{_place(knob.section, knob.key)} = {_shown(value)}", problem.text, origin)


def _refusal(leaf: _File, problems: Iterable[_Told]) -> LonghaulError:
    told = list(dict.fromkeys(problems))
    width = min(max(len(line.place) for line in told), 48)
    lines = [f"  {t.place:<{width}}  {t.text}" + (f"  ({t.origin})" if t.origin else "") for t in told]
    count = "1 problem" if len(told) == 1 else f"{len(told)} problems"
    wrong = sorted({t.origin.split(":")[0] for t in told if t.origin} or {leaf.label})
    return _input_error(
        "\n".join([f"profile {leaf.stem!r} has {count}", *lines]),
        f"correct {', '.join(wrong)} (docs/profiles.md lists every knob) and type the same command again",
    )


def _input_error(what: str, next_command: str) -> LonghaulError:
    return LonghaulError(what, kept="nothing was started", next_command=next_command, exit_code=ExitCode.INPUT)


def _place(section: str, key: str) -> str:
    return f"[{section}] {key}" if section else key


def _shown(value: Any) -> str:
    """A value in TOML's spelling, near enough, and never longer than a line."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = msgspec.json.encode(value).decode()
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(_shown(item) for item in value) + "]"
    else:
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _origin(file: _File, section: str, key: str) -> str:
    line = _line_of(file.text, section, key)
    return f"{file.label}:{line}" if line else file.label


def _line_of(text: str, section: str, key: str) -> int:
    """Line of a key, counted from 1; 0 where it is written in a way that this simple look does not see."""
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("["):
            current = stripped.strip("[] ").split("]")[0].strip()
            if not section and current == key:
                return number
        elif current == section and stripped.partition("=")[0].strip().strip("\"'") == key:
            return number
    return 0


def _nearest(word: str, known: Iterable[str]) -> str:
    import difflib  # only a refusal needs it

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), "")
