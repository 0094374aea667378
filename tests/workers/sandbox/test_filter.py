"""The filter as people use it: a process with pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests import REPOSITORY

COMMAND = [sys.executable, "-m", "workers.sandbox", "--jobs", "2", "--cpu", "0.5", "--allow-weak"]


def answers(text: str | bytes, *options: str) -> list[dict[str, Any]]:
    """What the filter answers to the text."""
    data = text.encode() if isinstance(text, str) else text
    done = subprocess.run([*COMMAND, *options], input=data, capture_output=True, cwd=REPOSITORY, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def line(case_id: Any, program: str, text: str, **more: str) -> str:
    return json.dumps({"id": case_id, "program": program, "input": text} | more) + "\n"


def test_answers_come_in_input_order_with_their_ids() -> None:
    lines = "".join(line(n, f"def f(x): return x * {n}", "2") for n in range(30))
    assert answers(lines) == [{"id": n, "status": "ok", "output": str(2 * n)} for n in range(30)]


def test_each_bad_line_is_answered_in_its_place_and_the_rest_go_on() -> None:
    good = line("good", "def f(x): return x", "1")
    bad = ["{", "[]", "\xff\xfe", '{"id": 5}', '{"id": 6, "program": 1, "input": "1"}', "", "[" * 100_000]
    found = answers(good + "".join(f"{text}\n" for text in bad) + good.rstrip("\n"))
    assert [answer["status"] for answer in found] == ["ok", *["rejected"] * len(bad), "ok"]
    for place, answer in enumerate(found[1:-1]):
        assert answer["message"].startswith(f"line {place + 2}: ")
    assert [answer["id"] for answer in found] == ["good", None, None, None, 5, 6, None, None, "good"]


def test_what_cannot_run_is_rejected_with_the_reason() -> None:
    big = "#" * 10_000_000
    lines = [
        line(1, "def g(x): return 1", "1"),
        line(2, "def f(x) return 1", "1"),
        line(3, "def f(x): return '\0'", "1"),
        line(4, big, "1"),
        line(5, "def f(x): return 1", "open('x')"),
    ]
    found = answers("".join(lines))
    assert [(answer["id"], answer["status"]) for answer in found] == [(n, "rejected") for n in range(1, 6)]
    messages = [answer["message"] for answer in found]
    for message, word in zip(messages, ["'f'", "syntax", "null byte", "65536", "literal"], strict=True):
        assert word in message


def test_another_entry_and_one_more_module_may_be_named() -> None:
    lines = line(1, "import graphlib\ndef g(x): return x", "1", entry="g") + line(
        2, "import calendar\ndef f(x): return calendar.isleap(x)", "2000"
    )
    assert [answer["output"] for answer in answers(lines, "--module", "calendar")] == ["1", "True"]


def test_stats_are_one_line_on_standard_error() -> None:
    data = line(1, "def f(x): return x", "1") + "bad\n"
    done = subprocess.run([*COMMAND, "--stats"], input=data.encode(), capture_output=True, cwd=REPOSITORY, check=True)
    assert done.stderr.decode().count("\n") == 1
    assert "2 cases" in done.stderr.decode()
    assert "1 rejected" in done.stderr.decode()


def test_no_input_gives_no_output() -> None:
    assert answers("") == []


def test_an_answer_comes_before_the_next_line_is_written() -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for n in range(3):
            process.stdin.write(line(n, "def f(x): return x", "7").encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == n
        process.stdin.close()
        assert process.wait() == 0


def test_a_closed_output_ends_every_process_while_a_program_still_runs() -> None:
    # The write end of this pipe is inherited by nobody but the filter's own processes: its end of file is their end.
    alive_r, alive_w = os.pipe()
    endless = line(1, "def f(x):\n    while True: pass", "1")
    process = subprocess.Popen(
        [*COMMAND, "--cpu", "100", "--wall", "100"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        pass_fds=[alive_w],
    )
    os.close(alive_w)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line(0, "def f(x): return x", "1").encode())
    process.stdin.flush()
    assert process.stdout.readline()
    process.stdin.write(endless.encode())
    process.stdin.flush()
    process.stdout.close()
    assert process.wait() != 0
    assert os.read(alive_r, 1) == b""
    os.close(alive_r)
    process.stdin.close()


def test_a_missing_required_layer_refuses_with_its_own_exit_code() -> None:
    script = (
        "import workers.sandbox.__main__ as m, workers.sandbox.limits as l, sys\n"
        "from functools import partial\n"
        "m.Limits = partial(l.Limits, without=('landlock',))\n"
        "sys.exit(m.main(['--jobs', '1']))"
    )
    done = subprocess.run([sys.executable, "-c", script], input=b"", capture_output=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 77
    assert b"landlock" in done.stderr
    assert done.stderr.decode().splitlines()[1] == "kept:  no program was run"
