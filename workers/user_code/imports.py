"""Imports the user's files, and says in a line why one cannot be imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from profiles.reward_files import is_file
from workers.user_code.errors import NotUsable


def imported(place: str, file: Path) -> ModuleType:
    """Import a FILE.py or MODULE. Raises NotUsable, with the reason."""
    try:
        return _module_of(file) if is_file(place) else importlib.import_module(place)
    except SyntaxError as error:
        where = f"{error.filename or file} line {error.lineno}"
        raise NotUsable(f"a syntax error in {where}: {error.msg}: {(error.text or '').strip()}") from error
    except SystemExit as error:
        raise NotUsable(f"{file} calls exit({error.code}) when it is imported") from error
    except BaseException as error:  # the user's code may raise anything
        raise NotUsable(f"importing {file} raises {brief(error)}{_where(error, file)}") from error


def _module_of(file: Path) -> ModuleType:
    # Last: a json.py beside the file must not hide Python's own from anybody.
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    is_free = file.stem not in sys.modules and file.stem not in sys.stdlib_module_names
    name = file.stem if is_free else f"own_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "file_of takes Python files only"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _where(error: BaseException, file: Path) -> str:
    """The last line of the user's file that took part."""
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(file)]
    return f" (line {lines[-1]})" if lines else ""


def brief(error: BaseException) -> str:
    """Type and message, in one line that a screen can hold."""
    try:
        text = str(error)
    except BaseException:  # its own __str__ may raise
        text = ""
    first = text.strip().split("\n")[0][:300]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
