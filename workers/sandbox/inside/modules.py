"""The modules that a program may import, preloaded in the zygote with everything they import lazily.

A sealed process cannot open files, so a module that is not loaded here cannot be imported later.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

_PURE = """
    __future__ math cmath re collections collections.abc itertools functools operator heapq bisect string typing
    dataclasses enum abc json copy statistics fractions decimal numbers textwrap unicodedata array struct base64
    types contextlib warnings graphlib
"""
PURE = tuple(_PURE.split())
"""Always importable. No clock, no randomness, no files."""

_SCRIPT = "sys io os time datetime random traceback atexit builtins hashlib _strptime"
SCRIPT = tuple(_SCRIPT.split())
"""Importable too if scripts are enabled. `os` cannot reach any file in a sealed process. `hashlib` has Python's own
hashes, without OpenSSL. `_strptime` parses dates; the interpreter imports it through the program's own `__import__`."""

_LATE = """
    traceback linecache tokenize token codecs stringprep json.scanner json.decoder json.encoder copyreg reprlib keyword
"""
LATE = tuple(_LATE.split())
"""Lazy imports of the pure modules; programs cannot import them."""

INTERPRETER = ("_pylong",)
"""Arithmetic on large integers, since Python 3.12. The interpreter imports it through the program's own `__import__`;
if that refused it, division above some 2,700 digits would fail."""

_CODECS = """
    ascii latin_1 utf_8 utf_8_sig utf_7 utf_16 utf_16_be utf_16_le utf_32 utf_32_be utf_32_le unicode_escape
    raw_unicode_escape charmap undefined idna punycode rot_13 hex_codec base64_codec
    cp437 cp1251 cp1252 iso8859_1 iso8859_15 koi8_r shift_jis euc_jp
"""
CODECS = tuple(_CODECS.split())
"""Codecs that `str.encode` would import on first use. The other hundred would make up a fifth of the zygote's memory
mappings, whose page tables each fork copies: 0.15 ms of CPU per program."""


def load(extra: Sequence[str]) -> dict[str, str]:
    """Import everything; returns the modules of `extra` that failed, with the reason."""
    failed: dict[str, str] = {}
    for name in PURE:
        importlib.import_module(name)
    for name in [*LATE, *INTERPRETER, "encodings.aliases", *(f"encodings.{codec}" for codec in CODECS)]:
        # Private helper modules differ between Python versions.
        with suppress(ImportError):
            importlib.import_module(name)
    if "hashlib" in extra:
        _load_own_hashes()
    for name in extra:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    _use_late_parts()
    return failed


def _load_own_hashes() -> None:
    """Import `hashlib` without OpenSSL: megabytes that each fork copies, and native code that no program needs."""
    sys.modules["_hashlib"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        importlib.import_module("hashlib")
    finally:
        del sys.modules["_hashlib"]


def _use_late_parts() -> None:
    """Call functions that import modules or build tables on first use, so that children need not."""
    import decimal
    import re
    import statistics
    import unicodedata

    unicodedata.lookup("LATIN SMALL LETTER A")
    decimal.getcontext()
    re.compile(r"(?i)\w+\b[a-z]")
    statistics.NormalDist(0, 1).inv_cdf(0.3)
    statistics.quantiles([1, 2, 3])
    for codec in ("ascii", "latin-1", "utf-16", "utf-32", "idna", "unicode_escape", "cp1252", "shift_jis"):
        "a".encode(codec)


def gatekeeper(extra: Sequence[str]) -> Callable[..., ModuleType]:
    """An `__import__` for programs: allows only the listed modules and raises a clear error for others."""
    allowed = frozenset([*PURE, *INTERPRETER, *extra])
    roots = frozenset(name.split(".")[0] for name in allowed)
    real = builtins.__import__
    loaded = sys.modules

    def guarded(name: str, scope: Any = None, local: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
        if level == 0 and type(name) is str and (name in allowed or (name.split(".")[0] in roots and name in loaded)):
            return real(name, scope, local, fromlist, 0)
        raise ImportError(f"module {str(name)[:100]!r} is not available to programs")

    return guarded
