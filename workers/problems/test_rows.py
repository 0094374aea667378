"""Reads tests as APPS, TACO, LiveCodeBench, HumanEval, MBPP and open-instruct publish them, into one form. (pure)

Nothing of a row is run or unpickled. Prompts are those of the row; where it has none under a usual name, they are put
together as the data set's authors ask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workers.sandbox.server.protocols import BadRequest, list_of
from workers.verifiers.unit_tests import BadTests, Tests, UnitTest, call_of, read_tests

Row = Mapping[str, Any]

OWN = "tests"
"""The column of tests in the form of `workers.verifiers.unit_tests`."""
PROMPTS = ("prompt", "question", "question_content", "text")
"""Columns that may hold the prompt; the first one that does."""
CODE_SOURCES = ("code", "code_stdio")
"""What the column `dataset` says of open-instruct's rows whose `ground_truth` is tests."""


def unit_tests_of(row: Row) -> Tests | None:
    """The tests of a row; None if no column holds any. Raises BadTests, which names the column and the test."""
    for column, read in _FORMS.items():
        if _is_there(row.get(column)) or (column == OWN and row.get(column) is not None):
            try:
                found = read(row)
            except BadTests as error:
                raise BadTests(f"{column}: {error}") from error
            if found is not None:
                return found
    return None


def prompt_of(row: Row) -> str | None:
    """The prompt of a row with tests; None if it has none. Names that the tests call are part of it."""
    prompt = next((row[name] for name in PROMPTS if _is_text(row, name)), None)
    if prompt is None:
        return None
    if _is_text(row, "starter_code"):
        return f"{prompt}\n\nBegin with this code:\n\n```python\n{row['starter_code']}\n```"
    if _is_there(row.get("test_list")):
        shown = "\n".join(_texts(row["test_list"]))
        return f"{prompt}\nThe program must pass these tests:\n\n```python\n{shown}\n```"
    return str(prompt)


def _is_there(value: Any) -> bool:
    return value is not None and value != "" and value != []


def _is_text(row: Row, name: str) -> bool:
    return isinstance(row.get(name), str) and bool(row[name].strip())


def _own(row: Row) -> Tests:
    return read_tests(row[OWN])


def _of_open_instruct(row: Row) -> Tests | None:
    """`ground_truth` of rows whose `dataset` says that it is tests: a list, or a list with its text."""
    source = row.get("dataset")
    sources = source if isinstance(source, list) else [source]
    if not set(map(str, sources)) & {*CODE_SOURCES}:
        return None
    truth = row["ground_truth"]
    if isinstance(truth, list) and len(truth) == 1 and isinstance(truth[0], str) and truth[0].lstrip()[:1] == "[":
        truth = truth[0]
    return read_tests(truth)


def _of_apps(row: Row) -> Tests:
    """APPS and TACO: `inputs` and `outputs`, of a function if there is `fn_name`."""
    found = _decoded(row["input_output"])
    if not isinstance(found, dict):
        raise BadTests("is not an object with inputs and outputs")
    inputs, outputs, name = found.get("inputs"), found.get("outputs"), found.get("fn_name")
    if not (isinstance(inputs, list) and isinstance(outputs, list)) or len(inputs) != len(outputs):
        raise BadTests("has no lists inputs and outputs of one length")
    if not inputs:
        raise BadTests("there are no tests")
    pairs = list(enumerate(zip(inputs, outputs, strict=True), start=1))
    if name is None:
        return read_tests([{"input": _lines(given), "output": _lines(wanted)} for _, (given, wanted) in pairs])
    return tuple(_call(number, name, given, wanted) for number, (given, wanted) in pairs)


def _call(number: int, name: Any, given: Any, wanted: Any) -> UnitTest:
    """A call as APPS writes it: arguments in a list, and most values in a list of one, but nothing says which."""
    if not isinstance(name, str):
        raise BadTests(f"fn_name is {name!r}, not a text")
    arguments = given if isinstance(given, list) else [given]
    is_wrapped = isinstance(wanted, list) and len(wanted) == 1
    values = [_with_numbers(one) for one in ([wanted[0], wanted] if is_wrapped else [wanted])]
    return call_of(number, name, [_with_numbers(one) for one in arguments], *values)


def _with_numbers(value: Any) -> Any:
    """JSON turns the numbers that are keys of a dict into text; this turns them back if all of them are."""
    if isinstance(value, list):
        return [_with_numbers(one) for one in value]
    if not isinstance(value, dict):
        return value
    is_numbered = bool(value) and all(isinstance(key, str) and key.removeprefix("-").isdecimal() for key in value)
    return {int(key) if is_numbered else key: _with_numbers(one) for key, one in value.items()}


def _lines(value: Any) -> Any:
    """Text, also where a row has a list of its lines."""
    if isinstance(value, list):
        return "\n".join(str(one) for one in value)
    return value


def _of_live_code_bench(row: Row) -> Tests:
    """Public and private tests. A private column may be packed; it is read by a grammar, never unpickled."""
    items: list[Any] = []
    for column in ("public_test_cases", "private_test_cases"):
        if _is_there(row.get(column)):
            items += _listed(row[column], column)
    if not items:
        raise BadTests("there are no tests")
    name = _function_name(row)
    return tuple(_live(number, one, name) for number, one in enumerate(items, start=1))


def _listed(value: Any, column: str) -> list[Any]:
    try:
        return list_of(value)
    except BadRequest as error:
        raise BadTests(f"{column}: {error}") from error


def _function_name(row: Row) -> str:
    found = _decoded(row.get("metadata") or "{}")
    name = found.get("func_name") if isinstance(found, dict) else None
    return name if isinstance(name, str) else ""


def _live(number: int, found: Any, name: str) -> UnitTest:
    given, wanted = (found.get("input"), found.get("output")) if isinstance(found, dict) else (None, None)
    if not (isinstance(given, str) and isinstance(wanted, str)):
        raise BadTests(f"test {number} has no texts input and output")
    if found.get("testtype") != "functional":
        return read_tests([{"input": given, "output": wanted}])[0]
    if not name:
        raise BadTests(f"test {number} calls a function, but metadata has no func_name")
    try:
        arguments = [json.loads(line) for line in given.split("\n") if line.strip()]
        return call_of(number, name, arguments, json.loads(wanted))
    except (ValueError, RecursionError) as error:
        raise BadTests(f"test {number} has an input or output that is not JSON: {error}") from error


def _of_human_eval(row: Row) -> Tests | None:
    """One statement: the published function `check`, called with the function that was asked for."""
    name = row.get("entry_point")
    if name is None:
        return None
    if not isinstance(row["test"], str) or not (isinstance(name, str) and name.isidentifier()):
        raise BadTests("is not a text beside the name entry_point")
    return (f"{row['test']}\ncheck({name})",)


def _of_mbpp(row: Row) -> Tests:
    """The published asserts, the harder ones too, each after the published set-up."""
    before = "\n".join([*_texts(row.get("test_imports") or []), row.get("test_setup_code") or ""]).strip()
    asserts = [*_texts(row["test_list"]), *_texts(row.get("challenge_test_list") or [])]
    return read_tests([f"{before}\n{one}" if before else one for one in asserts])


def _texts(found: Any) -> Sequence[str]:
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise BadTests("is not a list of statements")
    return found


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadTests(f"is not JSON: {error}"[:200]) from error


_FORMS: Mapping[str, Callable[[Row], Tests | None]] = {
    OWN: _own,
    "input_output": _of_apps,
    "public_test_cases": _of_live_code_bench,
    "private_test_cases": _of_live_code_bench,
    "test": _of_human_eval,
    "test_list": _of_mbpp,
    "ground_truth": _of_open_instruct,
}
"""Column -> reader. The first column that holds something decides; a reader that gives None leaves it to the next."""
