"""The server as a process: what it refuses and with which words, what load does to it, how it ends."""

from __future__ import annotations

import json
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.workers.sandbox.server.served import COMMAND, Served, served
from workers.sandbox.limits import Limits
from workers.sandbox.server.app import MAX_BODY

ECHO = {"code": "print(input())", "language": "python", "stdin": "hello"}
LOOP = {"code": "while True: pass", "language": "python", "stdin": ""}


def test_health_is_told_with_and_without_the_secret(server: Served) -> None:
    for path in ("/health", f"{server.path}/health"):
        assert server.ask(path, method="GET") == (200, {"status": "healthy"})


@pytest.mark.parametrize("name", ["health", "stats", "run_code", "test_program", "test_program_stdio"])
def test_a_wrong_secret_opens_nothing_and_is_in_no_share(server: Served, name: str) -> None:
    before = server.stats()
    method = "GET" if name in ("health", "stats") else "POST"
    status, answer = server.ask(f"/{'x' * 22}/{name}", ECHO, method=method)
    assert status == 404
    assert answer["detail"].startswith("the secret in the path is wrong")
    after = server.stats()
    assert after["wrong_secret"] == before["wrong_secret"] + 1
    assert {**after, "wrong_secret": 0} == {**before, "wrong_secret": 0}


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b'{"code": "pri', 400, "truncated"),
        (json.dumps(ECHO | {"language": "cpp"}).encode(), 400, "language 'cpp'"),
        (json.dumps(ECHO | {"colour": "red"}).encode(), 400, "unknown field `colour`"),
        (json.dumps(ECHO | {"run_timeout": 1e9}).encode(), 400, "--most-seconds"),
        (json.dumps(ECHO | {"memory_limit_MB": 99999}).encode(), 400, "--memory"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason_and_counted(
    server: Served, body: bytes, status: int, reason: str
) -> None:
    before = server.stats()["refused"]
    found, answer = server.ask("run_code", raw=body)
    assert (found, reason in answer["detail"]) == (status, True), answer
    assert server.stats()["refused"] == before + 1


def test_a_program_of_100_megabytes_is_refused_unread(server: Served) -> None:
    memory = psutil.Process(server.process.pid).memory_info().rss
    with socket.create_connection(server.address, timeout=30) as client:
        head = f"POST {server.path}/run_code HTTP/1.1\r\nHost: x"
        client.sendall((head + f"\r\nContent-Length: {100 << 20}\r\n\r\n").encode())
        assert client.recv(99).startswith(b"HTTP/1.1 413 ")
    assert psutil.Process(server.process.pid).memory_info().rss < memory + (8 << 20)
    assert server.ask("run_code", ECHO)[1]["run_result"]["stdout"] == "hello\n"


def test_a_body_without_a_length_is_bounded_too(server: Served) -> None:
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    with socket.create_connection(server.address, timeout=30) as client:
        head = f"POST {server.path}/run_code HTTP/1.1\r\nHost: x"
        client.sendall((head + "\r\nTransfer-Encoding: chunked\r\n\r\n").encode())
        try:
            for _ in range((MAX_BODY >> 20) + 1):
                client.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert client.recv(99).startswith(b"HTTP/1.1 413 ")


def test_requests_at_once_are_queued_and_each_gets_its_own_answer(server: Served) -> None:
    def one(number: int) -> tuple[int, str]:
        status, answer = server.ask("run_code", ECHO | {"stdin": str(number)})
        return status, answer["run_result"]["stdout"]

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(one, range(200))) == [(200, f"{number}\n") for number in range(200)]


def test_a_request_whose_deadline_comes_first_is_answered_504_and_counted() -> None:
    """verl tries again on 504 alone. The deadline of its client is both times and ten seconds: here 10.1."""
    with served("--jobs", "1", "--most-seconds", "30") as server:
        stuck = [threading.Thread(target=server.ask, args=("run_code", LOOP | {"run_timeout": 30})) for _ in range(3)]
        for thread in stuck:
            thread.start()
        while server.stats()["waiting"] < 3:
            time.sleep(0.05)
        began = time.monotonic()
        status, answer = server.ask("run_code", ECHO | {"compile_timeout": 0, "run_timeout": 0.1})
        assert 8 < time.monotonic() - began < 10.1
        assert (status, answer["detail"]) == (504, "no processor was free before your deadline")
        assert server.stats()["late"] == 1
        server.process.send_signal(signal.SIGTERM)
        for thread in stuck:
            thread.join()


def test_a_program_that_is_slow_by_itself_gets_a_verdict_not_a_504() -> None:
    """Thirty tests of a second, twice each, do not fit into 30 seconds: the late program answers for the rest."""
    with served("--jobs", "1") as server:
        asked = {"program": "while True: pass", "tests": ["assert True"] * 40, "max_execution_time": 1.0}
        status, answer = server.ask("test_program", asked)
        assert (status, answer["results"], answer["runtimes"]) == (200, [0] * 40, [-1.0] * 40)
        assert server.stats()["verdicts"] == 1


def test_stats_say_when_so_many_answers_were_no_verdicts_that_a_run_must_stop() -> None:
    with served("--jobs", "1") as server:
        assert server.ask("run_code", ECHO)[0] == 200
        assert (server.stats()["verdicts"], server.stats()["stop_reason"]) == (1, None)
        for _ in range(6):
            assert server.ask("run_code", ECHO | {"language": "cobol"})[0] == 400
        assert server.stats()["stop_reason"] == (
            "6 of the last 7 answers of the code server were no verdicts (6 refused)"
        )


def test_a_server_that_was_asked_to_dies_with_the_process_that_started_it() -> None:
    start = (
        "import subprocess, sys, time\n"
        "found = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)\n"
        "found.stdout.readline()\nprint(found.pid, flush=True)\ntime.sleep(60)"
    )
    command = [sys.executable, "-c", start, *COMMAND, "--with-parent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        family = [server, *server.children(recursive=True)]
        parent.kill()
        assert len(family) > 1 and not psutil.wait_procs(family, timeout=10)[1]


@pytest.mark.slow
def test_ten_thousand_connections_neither_end_the_server_nor_its_answers() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 10_500:
        pytest.skip(f"this process may have {hard} descriptors, not 10,500")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    idle: list[socket.socket] = []
    try:
        with served() as server:
            process = psutil.Process(server.process.pid)
            before = process.memory_info().rss
            for _ in range(10_000):
                idle.append(socket.create_connection(server.address, timeout=30))
            assert server.ask("run_code", ECHO)[1]["run_result"]["stdout"] == "hello\n"
            assert process.memory_info().rss < before + (400 << 20)
    finally:
        for client in idle:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_connection_too_many_is_closed_and_counted() -> None:
    with served("--connections", "20") as server:
        crowd = [socket.create_connection(server.address, timeout=10) for _ in range(20)]
        time.sleep(0.3)
        with socket.create_connection(server.address, timeout=10) as extra, pytest.raises(ConnectionResetError):
            assert extra.recv(1) == b"", "closed"
            raise ConnectionResetError
        for client in crowd:
            client.close()
        time.sleep(0.3)
        assert server.stats()["turned_away"] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0_at_once_and_leaves_nothing(number: signal.Signals) -> None:
    with served("--jobs", "1", "--most-seconds", "30") as server:
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(server.ask("run_code", LOOP | {"run_timeout": 20})))
        asking.start()
        while server.stats()["waiting"] < 1:
            time.sleep(0.05)
        family = psutil.Process(server.process.pid).children(recursive=True)
        assert family
        began = time.monotonic()
        server.process.send_signal(number)
        assert server.process.wait(20) == ExitCode.OK
        assert time.monotonic() - began < 10
        asking.join()
        assert answers == [(504, {"detail": "the server ends"})], "verl tries again: a new server may be there"
        assert psutil.wait_procs(family, timeout=10)[1] == []
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


def refused(*options: str) -> tuple[int, str]:
    """Exit code and words of a start that must fail."""
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, cwd=REPOSITORY, timeout=60)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_port_that_is_taken_is_told_with_the_next_command(server: Served) -> None:
    code, said = refused("--port", str(server.address[1]))
    assert code == ExitCode.INPUT
    assert f"cannot listen on 127.0.0.1, port {server.address[1]}: [Errno 98] Address already in use" in said
    assert "next:  python -m workers.sandbox serve --port 0" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
        (("--port", "70000"), "--port 70000 is not between 0 and 65535"),
        (("--module", "no_such_module"), "module no_such_module cannot be loaded"),
        (("--jobs", "0"), "must be at least 1"),
        (("--memory", "0"), "must be above 0"),
        (("--secret-file", "/no/such/folder/secret"), "the secret cannot be read"),
    ],
)
def test_a_start_that_cannot_be_is_refused(options: tuple[str, ...], words: str) -> None:
    code, said = refused(*options)
    assert (code, words in said) == (ExitCode.INPUT, True), said


def test_the_extra_that_is_not_installed_is_named(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "import importlib.util as util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name in ('starlette', 'uvicorn') else real(name, *rest)\n"
        "from workers.sandbox.__main__ import main\n"
        "sys.exit(main(['serve', '--port', '0']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY, timeout=60)
    assert done.returncode == ExitCode.INPUT
    assert done.stderr.splitlines()[0] == "error: the code server needs starlette and uvicorn"
    assert done.stderr.splitlines()[-1] == 'next:  pip install "longhaul[server]"'


def test_a_secret_is_made_once_kept_for_its_owner_and_used_again(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with served("--secret-file", str(path)) as first:
        assert first.path == f"/{path.read_text().strip()}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with served("--secret-file", str(path)) as second:
        assert second.path == first.path
    path.chmod(0o644)
    assert refused("--secret-file", str(path))[0] == ExitCode.PERMISSION
    path.chmod(0o600)
    path.write_text("short")
    assert refused("--secret-file", str(path))[0] == ExitCode.INPUT


def test_two_servers_have_two_secrets_and_neither_is_on_a_command_line(server: Served) -> None:
    with served() as other:
        assert other.path != server.path
        assert other.path.strip("/") not in " ".join(psutil.Process(other.process.pid).cmdline())
    assert len(server.path) > 16


def test_it_listens_on_this_machine_alone_unless_told(server: Served) -> None:
    (listening,) = {
        one.laddr.ip for one in psutil.Process(server.process.pid).net_connections() if one.status == "LISTEN"
    }
    assert listening == "127.0.0.1"


def test_the_sandbox_without_the_server_imports_nothing_of_it() -> None:
    assert Limits().scripts is False
    code = "import sys, workers.sandbox.__main__; print({'starlette', 'uvicorn', 'asyncio.events'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert "starlette" not in done.stdout and "uvicorn" not in done.stdout
