"""Whole programs: what they may use, how their end is told, and that no attack gets further in this form."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.sandbox.attack import MODULES, Attack
from tests.workers.sandbox.attacks import ATTACKS
from tests.workers.sandbox.canaries import SECRET, Canaries, canaries
from tests.workers.sandbox.test_attacks import RESIDUE, WITHOUT_SECCOMP
from workers.sandbox import Budget, Case, Limits, Sandbox, Script, ScriptResult, Status
from workers.sandbox.inside.modules import SCRIPT
from workers.sandbox.inside.streams import MAX_STDERR, MAX_STDOUT
from workers.sandbox.job import MAX_SCRIPT
from workers.sandbox.limits import LAYERS, OK
from workers.sandbox.verdict import judge_script


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(scripts=True, cpu_s=1.0, wall_s=20.0, allow_weak=True), jobs=1) as box:
        yield box


def run(box: Sandbox, program: str, stdin: str = "", **more: object) -> ScriptResult:
    return box.run_scripts([Script(program, stdin.encode(), **more)])[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "stdin", "stdout"),
    [
        pytest.param("print(int(input()) + 1)", "41\n", "42\n", id="input"),
        pytest.param("import sys\nfor line in sys.stdin: print(line.strip(), end=';')", "a\nb\n", "a;b;", id="lines"),
        pytest.param("import sys\nsys.stdout.write(sys.stdin.read().upper())", "é\n", "É\n", id="whole"),
        pytest.param("import sys\nprint(sys.stdin.buffer.readline())", "a\n", "b'a\\n'\n", id="bytes"),
        pytest.param("print(open(0).read())", "x", "x\n", id="by descriptor"),
        pytest.param(
            "import os\nos.write(1, os.read(0, max(9, os.fstat(0).st_size)))", "fast", "fast", id="system calls"
        ),
        pytest.param("if __name__ == '__main__': print('main')", "", "main\n", id="is the main module"),
        pytest.param("import sys\nprint(sys.argv, len(sys.stdin.read()))", "", "[''] 0\n", id="nothing to read"),
        pytest.param("print(len(open(0).read()))", "x" * 3_000_000, "3000000\n", id="more than a pipe holds"),
        pytest.param("print('unread')", "x" * 3_000_000, "unread\n", id="input that nobody reads"),
        pytest.param("import io, sys\nsys.stdout = b = io.StringIO()\nimport atexit\n"
                     "atexit.register(lambda: sys.__stdout__.write(b.getvalue()))\nprint('last')", "", "last\n",
                     id="written at the end"),
        pytest.param("from datetime import datetime as d\nprint(d.strptime('2020-02-01', '%Y-%m-%d').month)", "", "2\n",
                     id="a date"),
        pytest.param("import os\nprint(os.environ, os.path.join('a', 'b'))", "", "environ({}) a/b\n", id="paths"),
    ],
)  # fmt: skip
def test_a_script_reads_and_writes_as_any_python_program(
    sandbox: Sandbox, program: str, stdin: str, stdout: str
) -> None:
    result = run(sandbox, program, stdin)
    assert (result.status, result.exit_code, result.stdout.decode(), result.stderr) == (Status.OK, 0, stdout, b"")


@pytest.mark.parametrize(
    ("program", "code", "told"),
    [
        ("exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("quit('no')", 1, "no\n"),
        ("import sys; sys.exit(True)", 1, ""),
        ("def f(:", 1, "SyntaxError: invalid syntax\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("x = [0]\nwhile True: x += x", 1, "MemoryError\n"),
        ("print('\\ud800')", 1, "surrogates not allowed\n"),
        ("import os; os._exit(7)", 7, ""),
        ("import os; os.fork()", -31, ""),
        ("import sys; sys.stdout.close()", 120, ""),
        ("import threading", 1, "ImportError: module 'threading' is not available to programs\n"),
        ("open('/etc/passwd')", 1, "Operation not permitted: '/etc/passwd'\n"),
    ],
)
def test_the_exit_code_is_that_of_python_and_errors_are_told_on_stderr(
    sandbox: Sandbox, program: str, code: int, told: str
) -> None:
    result = run(sandbox, program)
    if code == -31 and sandbox.layers["seccomp"] != OK:
        pytest.skip("without seccomp a limit refuses the fork")
    assert (result.exit_code, result.status) == (code, Status.ERROR if code else Status.OK)
    assert result.stderr.decode().endswith(told)
    assert told or not result.stderr


def test_a_traceback_begins_with_the_program(sandbox: Sandbox) -> None:
    lines = run(sandbox, "def f():\n    return [][0]\nf()").stderr.decode().splitlines()
    assert lines[:3] == ["Traceback (most recent call last):", '  File "<program>", line 3, in <module>',
                         '  File "<program>", line 2, in f']  # fmt: skip


def test_what_was_written_before_the_end_is_kept(sandbox: Sandbox) -> None:
    late = run(sandbox, "print('so far', flush=True)\nwhile True: pass", budget=Budget(0.2, 20.0))
    assert (late.status, late.exit_code, late.stdout, late.from_wall) == (Status.TIMEOUT, None, b"so far\n", False)


def test_the_wall_clock_ends_who_waits_for_nothing(sandbox: Sandbox) -> None:
    with Sandbox(Limits(scripts=True, without=("seccomp",), allow_weak=True), jobs=1) as box:
        result = run(box, "import time\ntime.sleep(1000)", budget=Budget(0.2, 0.5))
    assert (result.status, result.from_wall) == (Status.TIMEOUT, True)


LOCKED = "import dataclasses\nlock = dataclasses._thread.allocate_lock()\nlock.acquire()"


@pytest.mark.parametrize("waiting", ["lock.acquire()", "lock.acquire(timeout=9)"])
def test_a_program_that_waits_for_itself_is_wrong_and_not_without_a_verdict(sandbox: Sandbox, waiting: str) -> None:
    if sandbox.layers["seccomp"] != OK:
        pytest.skip("the filter ends it")
    whole = run(sandbox, f"{LOCKED}\n{waiting}", budget=Budget(0.2, 5.0))
    (called,) = sandbox.execute_many([Case(f"{LOCKED}\ndef f(x): {waiting}", ("1",))])[0]
    assert (whole.status, called.status) == (Status.ERROR, Status.KILLED)
    assert not whole.is_undecided and not called.is_undecided
    assert run(sandbox, f"{LOCKED}\nlock.release()\nprint(lock.acquire())").stdout == b"True\n"


def test_output_is_bounded(sandbox: Sandbox) -> None:
    flood = run(sandbox, f"print('x' * {MAX_STDOUT + 1})")
    assert (flood.status, len(flood.stdout)) == (Status.OUTPUT_TOO_LARGE, MAX_STDOUT)
    talk = run(sandbox, "import sys\nfor _ in range(9): sys.stderr.write('e' * 50_000)\nprint('done')")
    assert (talk.status, len(talk.stderr), talk.stdout) == (Status.OK, MAX_STDERR, b"done\n")
    assert run(sandbox, "print('after')").stdout == b"after\n"


def test_a_script_may_ask_for_less_memory_than_the_zygote_has(sandbox: Sandbox) -> None:
    program = "print(len(bytearray(200 << 20)))"
    assert run(sandbox, program).status is Status.OK
    assert run(sandbox, program, budget=Budget(1.0, 20.0, memory_mb=150)).stderr.endswith(b"MemoryError\n")


@pytest.mark.parametrize("program", ["#" * (MAX_SCRIPT + 1), "print('\0')"])
def test_what_cannot_be_sent_is_rejected(sandbox: Sandbox, program: str) -> None:
    result = run(sandbox, program)
    assert (result.status, bool(result.message)) == (Status.REJECTED, True)


@pytest.mark.parametrize("name", SCRIPT)
def test_each_module_for_scripts_can_be_imported(sandbox: Sandbox, name: str) -> None:
    assert run(sandbox, f"import {name}").status is Status.OK
    assert sandbox.execute(f"import {name}\ndef f(x): return x", "1").status is Status.OK


def test_common_names_are_there_where_a_script_asks_for_that(sandbox: Sandbox) -> None:
    program = "print(sqrt(4), deque([1]), Counter('a')['a'], abs(-1), math.pi > 3, List[int])"
    assert run(sandbox, program, is_ambient=True).stdout == b"2.0 deque([1]) 1 1 True typing.List[int]\n"
    assert b"NameError: name 'sqrt'" in run(sandbox, program).stderr
    deep = "def f(n): return n and f(n - 1)\nprint(f(20_000))"
    assert run(sandbox, deep, is_ambient=True).stdout == b"0\n"


def test_draws_are_the_same_for_every_script_and_every_zygote(sandbox: Sandbox) -> None:
    program = "import random\nprint(random.random())"
    first = run(sandbox, program).stdout
    with Sandbox(Limits(scripts=True, allow_weak=True), jobs=1) as other:
        assert run(other, program).stdout == first == run(sandbox, program).stdout


def test_scripts_and_functions_share_a_zygote(sandbox: Sandbox) -> None:
    assert sandbox.execute("def f(x): return x + 1", "1").value == "2"
    assert run(sandbox, "print(1)").stdout == b"1\n"
    assert sandbox.execute("def f(x): return x + 1", "1").value == "2"


def test_a_sandbox_that_was_not_made_for_scripts_says_so() -> None:
    with Sandbox(Limits(allow_weak=True), jobs=1) as box, pytest.raises(ValueError, match=r"Limits\.scripts"):
        box.run_scripts([Script("")])


@pytest.mark.parametrize(
    ("ended", "cpu_s", "status", "code"),
    [
        ("exit 0", 0.1, Status.OK, 0),
        ("exit 0", 1.1, Status.TIMEOUT, None),
        ("exit 2", 0.1, Status.ERROR, 2),
        ("signal 11", 0.1, Status.ERROR, -11),
        ("signal 24", 0.1, Status.TIMEOUT, None),
        ("cpu", 0.1, Status.TIMEOUT, None),
        ("wall", 0.1, Status.TIMEOUT, None),
        ("flood", 0.1, Status.OUTPUT_TOO_LARGE, None),
    ],
)
def test_an_end_means(ended: str, cpu_s: float, status: Status, code: int | None) -> None:
    head = json.dumps({"number": 1, "ended": ended, "cpu_s": cpu_s, "stdout": 3})
    result = judge_script(f"{head}\nout\nerr".encode(), 1.0)
    assert (result.status, result.exit_code, result.stdout, result.stderr) == (status, code, b"out", b"\nerr")


LIMITS = {"cpu_s": 0.3, "wall_s": 2.0, "memory_mb": 256, "modules": MODULES, "scripts": True, "allow_weak": True}


def as_script(attack: Attack, out: Canaries) -> Script:
    """The attack as a whole program, which says what it got."""
    return Script(f"{attack.program}\nprint(repr(f({out.facts})))\n")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaries]:
    with canaries(tmp_path_factory.mktemp("canaries")) as found:
        yield found


@pytest.fixture(scope="module")
def sealed() -> Iterator[Sandbox]:
    with Sandbox(Limits(**LIMITS), jobs=1) as box:  # type: ignore[arg-type]
        if missing := [name for name in LAYERS if box.layers[name] != OK]:
            pytest.skip(f"this machine lacks {', '.join(missing)}")
        yield box


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.label)
def test_no_attack_reaches_anything_as_a_script(sealed: Sandbox, out: Canaries, attack: Attack) -> None:
    zygotes = [lane.process.pid for lane in sealed._lanes]
    (result,) = sealed.run_scripts([as_script(attack, out)])
    assert not result.stdout.startswith(b"'GOT"), result
    assert out.harm() == []
    assert SECRET.encode() not in result.stdout + result.stderr
    (after,) = sealed.run_scripts([Script("import math, os\nprint(math.sqrt(4), len('ab'), hasattr(os, 'left'))")])
    assert after.stdout == b"2.0 2 False\n"
    assert [lane.process.pid for lane in sealed._lanes] == zygotes


@pytest.mark.parametrize("layer", LAYERS)
def test_any_one_layer_may_be_missing_and_no_script_touches_the_host(
    sealed: Sandbox, tmp_path: Path, layer: str
) -> None:
    with canaries(tmp_path) as out, Sandbox(Limits(**LIMITS, without=(layer,))) as weakened:  # type: ignore[arg-type]
        results = weakened.run_scripts([as_script(attack, out) for attack in ATTACKS])
        assert out.harm() == []
    reached = {attack.label for attack, one in zip(ATTACKS, results, strict=True) if one.stdout.startswith(b"'GOT")}
    assert reached <= (WITHOUT_SECCOMP if layer == "seccomp" else set())


def test_a_script_holds_its_three_pipes_and_nothing_else(sealed: Sandbox) -> None:
    program = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n" + (
        "print([fd for fd in range(64) if libc.lseek(fd, 0, 1) >= 0 or ctypes.get_errno() != 9])"
    )
    assert sealed.run_scripts([Script(program)])[0].stdout == b"[0, 1, 2]\n"


def test_what_earlier_scripts_wrote_is_not_left_in_memory(sealed: Sandbox) -> None:
    """The child inherits the zygote's memory, freed blocks and all: none of it holds what another script printed."""
    word = secrets.token_hex(16)
    trail = "-".join(word[::-1])
    program = "import sys\nword = input()\nfor s in (sys.stdout, sys.stderr): print('-'.join(word[::-1]), file=s)"
    (told,) = sealed.run_scripts([Script(program, word.encode())])
    assert told.stdout == told.stderr == f"{trail}\n".encode()
    found = sealed.execute(RESIDUE, f"{trail[:20]!r}, {trail[20:40]!r}")
    assert (found.status, found.value) == (Status.OK, "[]")
    search = f"{RESIDUE}\nprint(f({trail[:20]!r}, {trail[20:40]!r}))"
    assert sealed.run_scripts([Script(search)])[0].stdout == b"[]\n"
    assert sealed.execute_many([Case("def f(x): return x", ("1",))])[0][0].value == "1"
