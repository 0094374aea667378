"""Our verifiers as verl calls them, and the code server as our client asks it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.workers.sandbox.server.served import served
from workers.verl import reward, signals
from workers.verl.reward import CODE, NoVerdict, compute_score
from workers.verl.verdicts import ADDRESS, Verdicts


@pytest.mark.parametrize(
    ("text", "right"), [("so \\boxed{72}", 1.0), ("so \\boxed{72.0}", 1.0), ("so \\boxed{71}", 0.0), ("72 maybe", 0.0)]
)
def test_an_answer_is_judged_by_the_same_rules_as_everywhere(text: str, right: float) -> None:
    assert compute_score("problems", text, "72", {"index": 5}) == {"score": right, "acc": right, "index": 5.0}


def test_lenient_answers_are_as_the_profile_says() -> None:
    assert compute_score("problems", "it is 72", "72", None, lenient=True)["acc"] == 1.0


PROGRAM = "```python\ndef f(): return 1\n```"
ASSERTS = json.dumps(["assert f() == 1", "assert f() > 0"])
ECHO = "```python\nprint(int(input()) + 1)\n```"
PAIRS = json.dumps([{"input": "1", "output": "2"}, {"input": "41", "output": "42"}])


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job's signals, as verl's processes find it."""
    monkeypatch.setenv(signals.CONTROL, str(tmp_path))
    monkeypatch.setattr(reward, "TRY_AGAIN_S", 0.0)
    return tmp_path


def score(text: str, tests: str) -> float:
    return compute_score(CODE, text, tests, {"index": 5}, program_s=2.0)["acc"]


def lost(control: Path) -> dict[str, int]:
    found = Verdicts(control)
    found.read()
    return found.take_lost()


def test_the_code_server_judges_programs_by_statements_and_by_input_and_output(control: Path) -> None:
    pytest.importorskip("starlette", reason="the extra is not installed")
    with served("--jobs", "1") as server:
        (control / ADDRESS).write_text(server.url)
        assert [score(PROGRAM, ASSERTS), score(ECHO, PAIRS)] == [1.0, 1.0]
        assert score(PROGRAM, json.dumps(["assert f() == 1", "assert f() == 2"])) == 0.0
        assert score(ECHO, json.dumps([{"input": "1", "output": "1"}])) == 0.0
        assert score("```python\nwhile True: pass\n```", ASSERTS) == 0.0
        assert server.stats()["verdicts"] == 5
    assert lost(control) == {}


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (
            "```python\nx = 1\n``` or ```text\nno\n``` or ```python\ndef f():\n    return 2\n``` done",
            "def f():\n    return 2",
        ),
        ("```py\nx = 3\n```", "x = 3"),
        ("```python\r\nx = 4\r\n```\r\n", "x = 4"),
    ],
    ids=["the last block of Python", "py", "CRLF"],
)
def test_the_program_is_the_one_that_our_own_worker_judges(
    control: Path, monkeypatch: pytest.MonkeyPatch, text: str, program: str
) -> None:
    asked: list[str] = []
    (control / ADDRESS).write_text("http://127.0.0.1:9/secret")
    monkeypatch.setattr(reward, "_results", lambda _, call: [asked.append(call.program), 1])
    score(text, ASSERTS)
    assert asked == [program]


@pytest.mark.parametrize(
    "text",
    [
        "I cannot",
        "so:\n```python\nx = 1\n",
        "<think>\n```python\nx = 1\n```\n</think>\nI give up.",
        "<think>\n```python\nx = 1\n```",
    ],
    ids=["no block", "a block that does not end", "a block in a thought", "a thought that does not end"],
)
def test_no_program_is_wrong_without_asking(control: Path, text: str) -> None:
    assert score(text, ASSERTS) == 0.0


@pytest.fixture
def answering(control: Path) -> Iterator[Callable[[Callable[[int], int]], list[int]]]:
    """Starts a server whose answer to the n-th request has the status `status(n)`; returns the statuses given."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: Callable[[int], int]) -> list[int]:
        given: list[int] = []
        guard = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                tests = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["tests"]
                with guard:
                    given.append(status(len(given)))
                    code = given[-1]
                self.send_response(code)
                self.end_headers()
                self.wfile.write(json.dumps({"results": [1] * len(tests), "runtimes": []}).encode())

            def log_message(self, *_: object) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (control / ADDRESS).write_text(f"http://127.0.0.1:{server.server_port}/secret")
        return given

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_busy_server_is_asked_again_and_what_it_says_then_is_no_loss(control: Path, answering: Any) -> None:
    given = answering(lambda number: 200 if number % 4 == 3 else 504)
    assert [score(PROGRAM, ASSERTS) for _ in range(20)] == [1.0] * 20
    assert given.count(504) == 60 and lost(control) == {}


@pytest.mark.parametrize(("status", "asked"), [(504, 4), (500, 4), (404, 1), (413, 1)])
def test_no_verdict_is_an_error_that_the_worker_hears_of_and_never_a_reward_of_0(
    control: Path, answering: Any, status: int, asked: int
) -> None:
    given = answering(lambda _: status)
    with pytest.raises(NoVerdict, match=f"HTTP {status}"):
        score(PROGRAM, ASSERTS)
    assert len(given) == asked and lost(control) == {f"HTTP {status}": 1}


def test_a_server_that_is_gone_is_a_lost_answer(control: Path) -> None:
    (control / ADDRESS).write_text("http://127.0.0.1:9/secret")
    with pytest.raises(NoVerdict):
        score(PROGRAM, ASSERTS)
    assert lost(control) == {"ConnectionRefusedError": 1}
