"""Keeps what transformers finds out about its own files at each import: half a second of each worker's start.

transformers reads all of its models' files, some 3,000, twice in each process to learn which module defines which name.
For an installed release that never changes, so the result is kept in the cache and read from there. Nothing else of
transformers is touched: a file that is not there, not readable, or of another release means the search as before.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import msgspec

from state.cache import cache_root, keep

MODULE = "transformers.utils.import_utils"
FUNCTION = "define_import_structure"
INSTALLED = ("site-packages", "dist-packages")
"""A release under such a folder changes only as a whole."""

Structure = dict[frozenset[str], dict[str, set[str]]]
"""What a name needs to be installed -> module -> names that it defines."""
Define = Callable[..., Structure]


def install() -> None:
    """Call it before transformers is imported; later it does nothing."""
    if MODULE not in sys.modules and not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE or (spec := PathFinder.find_spec(fullname, path, target)) is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            if callable(define := getattr(module, FUNCTION, None)):
                setattr(module, FUNCTION, kept(define, Path(str(module.__file__))))

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def kept(define: Define, source: Path) -> Define:
    """`define` for transformers' own models from the cache, or once made and kept. source: the file that defines it."""
    models = source.parents[1] / "models"
    known: list[Structure] = []

    def structure(module_path: str | Path, prefix: str | None = None) -> Structure:
        folder = Path(module_path)
        if folder not in (models, models / "__init__.py") or not set(source.parts) & set(INSTALLED):
            return define(module_path, prefix)
        if not known:
            known.append(_read_or_make(lambda: define(str(models)), models, source))
        begin = f"{prefix}." if prefix else ""
        return {
            needed: {begin + module: set(names) for module, names in modules.items()}
            for needed, modules in known[0].items()
        }

    return structure


def _read_or_make(make: Callable[[], Structure], models: Path, source: Path) -> Structure:
    path = place_of(models, source)
    with suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode(path.read_bytes(), type=list[tuple[list[str], dict[str, list[str]]]])
        return {frozenset(needed): {one: set(names) for one, names in by.items()} for needed, by in found}
    structure = make()
    text = [(sorted(needed), {one: sorted(names) for one, names in by.items()}) for needed, by in structure.items()]
    keep(path, msgspec.json.encode(text))
    return structure


def place_of(models: Path, source: Path) -> Path:
    """The file for this installation: another release, Python or folder has another."""
    facts = [sys.version, str(models)]
    for one in (models, models / "__init__.py", source):
        found = one.stat()
        facts.append(f"{found.st_mtime_ns} {found.st_size}")
    return cache_root() / "transformers" / f"{hashlib.sha256('; '.join(facts).encode()).hexdigest()[:32]}.json"
