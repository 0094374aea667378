"""What programs may import, though no file can be opened; and published programs as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.sandbox import Case, Limits, Sandbox, Status
from workers.sandbox.inside.modules import CODECS, PURE
from workers.sandbox.literal import Rejected, parse_arguments, same_value


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(allow_weak=True)) as box:
        yield box


@pytest.mark.parametrize("name", PURE)
def test_each_listed_module_can_be_imported(sandbox: Sandbox, name: str) -> None:
    result = sandbox.execute(f"import {name} as module\ndef f(x): return len(vars(module)) > x", "1")
    assert result.status is Status.OK, result


@pytest.mark.parametrize("name", ["os", "sys", "random", "subprocess", "socket", "ctypes", "time", "numpy", "nowhere"])
def test_any_other_import_is_a_clear_error(sandbox: Sandbox, name: str) -> None:
    result = sandbox.execute(f"def f(x):\n    import {name}", "1")
    assert (result.status, result.error_type) == (Status.ERROR, "ImportError")
    assert result.message == f"module {name!r} is not available to programs"


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("import decimal; return str(decimal.Decimal(1) / 3)[:6]", "'0.3333'"),
        ("import statistics; return statistics.NormalDist().inv_cdf(0.5)", "0.0"),
        ("import fractions; return str(fractions.Fraction('0.75'))", "'3/4'"),
        ("import unicodedata; return unicodedata.name('a')", "'LATIN SMALL LETTER A'"),
        ("return 'aü'.encode('idna'), 'é'.encode('cp1252')", "(b'xn--a-eha', b'\\xe9')"),
        ("return '漢'.encode('shift_jis')", "b'\\x8a\\xbf'"),
        ("return '€'.encode('iso8859-15'), b'\\x81'.decode('cp437')", "(b'\\xa4', 'ü')"),
        ("return 'abc'.encode('utf-16-le').decode('utf-16-le'), '\\N{BULLET}'", "('abc', '•')"),
        ("import base64; return base64.b85decode(base64.b85encode(b'abc'))", "b'abc'"),
        ("import re; return re.sub(r'(?P<a>\\w+)', lambda m: m['a'].title(), 'ab cd')", "'Ab Cd'"),
        ("import textwrap; return textwrap.shorten('a b c d', 5)", "'[...]'"),
        ("import json; return json.loads(json.dumps({'a': [1.5, None]}))", "{'a': [1.5, None]}"),
        ("import collections; return collections.Counter('aab').most_common(1)", "[('a', 2)]"),
        ("import functools; return functools.reduce(lambda a, b: a * b, [1, 2, 3])", "6"),
        ("import typing; return len(typing.get_type_hints(typing.NamedTuple('P', [('x', int)])))", "1"),
        ("import copy; return copy.deepcopy({'a': [1]})", "{'a': [1]}"),
        ("import string; return string.Template('$a').substitute(a=1)", "'1'"),
        ("return '{:>5,.1f}'.format(1234.5), f'{x:b}'", "('1,234.5', '101')"),
        ("import collections.abc as c; return isinstance([], c.Sequence)", "True"),
        ("return int('12', 5) + sum(map(ord, 'ab')), sorted('ba', key=str.lower)", "(202, ['a', 'b'])"),
        ("import warnings; warnings.warn('x'); return x", "5"),
        ("n = 10**3000 + 1; return (10**6000 - 1) // n == 10**3000 - 1", "True"),
    ],
)
def test_late_parts_of_modules_are_there(sandbox: Sandbox, body: str, value: str) -> None:
    result = sandbox.execute(f"def f(x):\n    {body}", "5")
    assert result.status is Status.OK, result
    assert result.value == value


@pytest.mark.parametrize("name", CODECS)
def test_each_listed_codec_is_there(sandbox: Sandbox, name: str) -> None:
    result = sandbox.execute(f"def f(x): return x.encode({name!r})", "''")
    if name in ("rot_13", "hex_codec", "base64_codec"):  # for those to whom the profile gives `codecs`
        assert result.message.startswith(f"{name!r} is not a text encoding"), result
    elif name == "undefined":
        assert result.error_type == "UnicodeError", result
    else:
        assert result.status is Status.OK, result


def test_any_other_codec_is_an_error_that_names_it(sandbox: Sandbox) -> None:
    result = sandbox.execute("def f(x): return 'a'.encode('big5')", "1")
    assert (result.error_type, result.message) == ("LookupError", "unknown encoding: big5")


def test_classes_of_programs_work_as_in_a_module(sandbox: Sandbox) -> None:
    program = """
from __future__ import annotations
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

class Kind(Enum):
    A = auto()

@dataclass(order=True)
class Point:
    x: int
    y: list[int] = field(default_factory=list)

class Pair(NamedTuple):
    a: int
    b: str = 'b'

class Shape(ABC):
    @abstractmethod
    def area(self): ...

class Square(Shape):
    def area(self): return 4

def f(x):
    return [Kind.A.name, repr(Point(x)), tuple(Pair(1)), Square().area(), Point(1) < Point(2)]
"""
    result = sandbox.execute(program, "3")
    assert result.value == "['A', 'Point(x=3, y=[])', (1, 'b'), 4, True]", result


def test_a_module_of_the_profile_can_be_imported() -> None:
    with Sandbox(Limits(modules=("calendar", "no_such_module"), allow_weak=True), jobs=1) as sandbox:
        assert sandbox.execute("import calendar\ndef f(x): return calendar.isleap(x)", "2024").value == "True"
        assert "no_such_module" in sandbox.modules_failed


def test_all_published_functions_give_their_published_outputs(sandbox: Sandbox) -> None:
    """CRUXEval, arXiv 2401.03065. Thirteen of its inputs are expressions: those are called by code, in the child."""
    path = Path(os.environ.get("LONGHAUL_DATA", "")) / "cruxeval.jsonl"
    if not path.is_file():
        pytest.skip("LONGHAUL_DATA names no folder with cruxeval.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    results = sandbox.execute_many([published_case(row["code"], row["input"]) for row in rows])
    wrong = [
        row["id"]
        for row, (result,) in zip(rows, results, strict=True)
        if not same_value(result.value or "", row["output"], strict_types=True)
    ]
    assert (len(rows), wrong) == (800, [])


def published_case(program: str, text: str) -> Case:
    """The case, with an input that is no literal moved into a second function of the program."""
    try:
        parse_arguments(text)
    except Rejected:
        return Case(f"{program}\ndef published(_):\n    return f({text})\n", ("0",), "published")
    return Case(program, (text,))
