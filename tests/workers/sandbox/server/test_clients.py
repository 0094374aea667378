"""Both engines' clients: verl's own source where it is installed, and what each sends, word for word, where not."""

from __future__ import annotations

import base64
import importlib.util
import json
import pickle
import zlib
from importlib.metadata import PackageNotFoundError, files
from types import ModuleType
from typing import Any

import pytest

from tests.workers.sandbox.server.served import Served

CLIENT = "verl/utils/reward_score/sandbox_fusion/utils.py"


@pytest.fixture(scope="module")
def verl() -> ModuleType:
    """verl's client as published. Loaded by itself: the package around it would import Ray and torch."""
    pytest.importorskip("requests")
    try:
        (path,) = (path.locate() for path in files("verl") or () if str(path) == CLIENT)
    except (PackageNotFoundError, ValueError):
        pytest.skip("verl is not installed; what it sends is tested all the same")
    spec = importlib.util.spec_from_file_location("sandbox_fusion_client", str(path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SUM = "a, b = map(int, input().split())\nprint(a + b)"


def test_verls_client_gets_every_kind_of_verdict(server: Served, verl: ModuleType) -> None:
    inputs = ["1 2", "1 2", "x", "1"]
    tests = {"inputs": inputs, "outputs": ["3", "4", "1", "1"]}
    results, _ = verl.check_correctness(f"{server.url}/run_code", tests, SUM, timeout=5)
    assert results == [True, False, -2, -2]
    looping = "while True: pass"
    assert verl.check_correctness(f"{server.url}/run_code", tests, looping, timeout=0.3)[0] == [-3] * 4
    assert verl.check_correctness(f"{server.url}/run_code", tests, "def f(:", timeout=5)[0] == [-2] * 4


def test_verls_wrapper_for_functions_runs(server: Served, verl: ModuleType) -> None:
    tests = {"inputs": ["[3, 1, 2]\n2", "[]\n0"], "outputs": ["[1, 2]", "[1]"], "fn_name": "smallest"}
    program = "class Solution:\n    def smallest(self, numbers: List[int], n): return nsmallest(n, numbers)"
    assert verl.check_correctness(f"{server.url}/run_code", tests, program, timeout=5)[0] == [True, False]


def test_what_verls_client_sends_is_answered_as_it_reads_it(server: Served) -> None:
    recorded: dict[str, Any] = {
        "compile_timeout": 10,
        "run_timeout": 10,
        "code": SUM + "\n\n",
        "stdin": "1 2",
        "memory_limit_MB": 1024,
        "language": "python",
        "files": {},
        "fetch_files": [],
    }
    status, answer = server.ask("run_code", recorded)
    assert (status, answer["status"], answer["compile_result"]) == (200, "Success", None)
    run = answer["run_result"]
    assert (run["status"], run["return_code"], run["stdout"], run["stderr"]) == ("Finished", 0, "3\n", "")
    assert 0 < run["execution_time"] < 10
    status, answer = server.ask("run_code", recorded | {"stdin": None})
    assert (status, answer["status"], answer["run_result"]["return_code"]) == (200, "Failed", 1)
    assert answer["run_result"]["stderr"].endswith("EOFError: EOF when reading a line\n")


ADD = "def add(a, b): return a + b"
ASSERTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add(0, 0) == 1"]
PAIRS = [{"input": "5 3", "output": "8"}, {"input": "10 -2", "output": "8.0"}, {"input": "0 0", "output": "1"}]


@pytest.mark.parametrize("form", ["list", "JSON", "packed"])
@pytest.mark.parametrize(
    ("path", "program", "tests"), [("test_program", ADD, ASSERTS), ("test_program_stdio", SUM, PAIRS)]
)
def test_what_open_instructs_client_sends_is_answered_as_it_reads_it(
    server: Served, path: str, program: str, tests: list[Any], form: str
) -> None:
    packed = base64.b64encode(zlib.compress(pickle.dumps(tests))).decode()
    sent = {"list": tests, "JSON": json.dumps(tests), "packed": packed}[form]
    status, answer = server.ask(path, {"program": program, "tests": sent, "max_execution_time": 1.0})
    assert (status, answer["results"]) == (200, [1, 1, 0])
    assert [runtime >= 0 for runtime in answer["runtimes"]] == [True, True, False]
    assert answer["runtimes"][2] == -1


def test_open_instructs_url_for_input_and_output_is_found_by_its_own_replacement(server: Served) -> None:
    """It makes the second address from the first by replacing text: a secret must not get in its way."""
    first = f"{server.path}/test_program"
    status, answer = server.ask(first.replace("/test_program", "/test_program_stdio"), {"program": "", "tests": []})
    assert (status, answer) == (200, {"results": [], "runtimes": []})


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        pytest.param("import sys\nsys.exit(0)", 0, id="leaves before the test"),
        pytest.param("import os\nos._exit(0)", 0, id="leaves at once"),
        pytest.param("def add(a, b): raise SystemExit", 0, id="leaves within the test"),
        pytest.param("exec = print\ncompile = print\ndef add(a, b): return 0", 0, id="hides what runs the test"),
        pytest.param(
            "import builtins\nbuiltins.exec = builtins.compile = print\ndef add(a, b): return 0", 0, id="replaces it"
        ),
        pytest.param("while True: pass", 0, id="never ends"),
        pytest.param("#" * 2_000_000, 0, id="has two million characters"),
        pytest.param("def add(a, b):\0 return 3", 0, id="has a null byte"),
        pytest.param("import random, math, sys, io, datetime\ndef add(a, b): return a + b", 1, id="imports"),
    ],
)
def test_a_statement_passes_only_if_it_was_run(server: Served, program: str, passes: int) -> None:
    asked = {"program": program, "tests": ["assert add(1, 2) == 3"], "max_execution_time": 0.3}
    status, answer = server.ask("test_program", asked)
    assert (status, answer["results"]) == (200, [passes])


def test_input_and_output_run_with_common_names_and_a_process_for_each_test(server: Served) -> None:
    program = (
        "d = deque(map(int, input().split()))\nd.rotate(1)\nprint(*d)\n"
        "math.left = getattr(math, 'left', 0) + 1\nprint(math.left)"
    )
    tests = [{"input": "1 2 3", "output": "3 1 2\n1"}] * 3
    assert server.ask("test_program_stdio", {"program": program, "tests": tests})[1]["results"] == [1, 1, 1]
