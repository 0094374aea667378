"""A client that connects to the control socket and sends nothing does not delay the run."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.cli import main
from orchestrator.control import IDLE_S, MAX_CLIENTS, REST_S, Server, ask, is_listening
from orchestrator.ready import wait_for_any
from profiles.errors import ExitCode, LonghaulError
from state.layout import RunDir
from state.lock import RunLock
from tests.faults.harness import Scene, scene
from tests.faults.invariants import check_invariants


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with closing(Server(RunDir(tmp_path))) as made:
        yield made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def connect(path: Path, stack: ExitStack, said: bytes = b"") -> socket.socket:
    connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    connection.connect(str(path))
    connection.settimeout(20)
    connection.sendall(said)
    return connection


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(20)


STATUS = b'{"command": "status"}\n'
CHECKPOINT = b'{"command": "checkpoint"}\n'


def test_a_master_can_be_asked_from_its_server_on_and_looking_takes_no_place(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert not is_listening(run)
    with closing(Server(run)) as server:
        assert all(is_listening(run) for _ in range(2 * MAX_CLIENTS))
        assert server.poll(0.0) == [] and not server.waiting
    assert not is_listening(run)


def test_a_master_that_holds_the_lock_and_does_not_listen_yet_is_waited_for(tmp_path: Path, stack: ExitStack) -> None:
    run = RunDir(tmp_path)
    stack.callback(RunLock.acquire(run).release)

    def begin() -> None:
        time.sleep(0.3)
        with closing(Server(run)) as server:
            while not (clients := server.poll(time.monotonic())):
                time.sleep(0.01)
            clients[0].answer(ok=True, note=clients[0].command)

    master = Thread(target=begin)
    master.start()
    assert ask(run, "checkpoint", 20.0) == {"ok": True, "note": "checkpoint"}
    master.join()


def test_a_process_that_holds_the_lock_and_never_listens_is_named(tmp_path: Path, stack: ExitStack) -> None:
    run = RunDir(tmp_path)
    stack.callback(RunLock.acquire(run).release)
    with pytest.raises(LonghaulError) as told:
        ask(run, "stop", 0.2)
    assert f"the process {os.getpid()} holds run" in told.value.what
    assert told.value.exit_code == ExitCode.INPUT


def test_a_master_that_lost_its_run_leaves_the_socket_of_the_next_one(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    lost = Server(run)
    with closing(Server(run)):
        lost.close()
        assert is_listening(run)
    assert not run.control_socket.exists()


def test_idle_connections_are_let_go_and_a_late_command_is_heard(server: Server, stack: ExitStack) -> None:
    idle = connect(server.path, stack)
    half = connect(server.path, stack, b'{"command": ')
    assert server.poll(100.0) == []
    assert server.poll(100.0 + IDLE_S) == []
    assert not is_closed(idle) and not is_closed(half)
    late = connect(server.path, stack, STATUS)
    assert [client.command for client in server.poll(100.1 + IDLE_S)] == ["status"]
    assert is_closed(idle) and is_closed(half) and not is_closed(late)
    assert server.sockets(200.0) == [server.listener]


def test_the_oldest_idle_connection_makes_room_for_a_new_one(server: Server, stack: ExitStack) -> None:
    idle = []
    for number in range(3 * MAX_CLIENTS):
        idle.append(connect(server.path, stack))
        server.poll(100.0 + number / 1000)
    assert [is_closed(one) for one in idle] == [True] * (2 * MAX_CLIENTS) + [False] * MAX_CLIENTS
    asking = connect(server.path, stack, STATUS)
    (client,) = server.poll(101.0)
    client.answer(ok=True)
    assert json.loads(asking.recv(100)) == {"ok": True}


def test_requests_under_way_are_bounded_and_kept(server: Server, stack: ExitStack) -> None:
    asked = []
    clients = []
    for _ in range(MAX_CLIENTS):
        asked.append(connect(server.path, stack, CHECKPOINT))
        clients += server.poll(100.0)
    one_more = connect(server.path, stack, CHECKPOINT)
    assert server.poll(100.0) == []
    assert "try again later" in json.loads(one_more.recv(200))["error"]
    clients[0].answer(ok=True)
    connect(server.path, stack, CHECKPOINT)
    assert len(server.poll(100.0)) == 1
    assert not any(map(is_closed, asked[1:]))


def test_a_stop_is_heard_however_many_wait_for_the_end_of_a_step(server: Server, stack: ExitStack) -> None:
    for _ in range(MAX_CLIENTS):
        connect(server.path, stack, CHECKPOINT)
        server.poll(100.0)
    for command in (b"stop", b"abort", b"status"):
        connect(server.path, stack, b'{"command": "' + command + b'"}\n')
        assert [client.command for client in server.poll(100.0)] == [command.decode()]


def test_who_hung_up_makes_room_for_others(server: Server, stack: ExitStack) -> None:
    for _ in range(MAX_CLIENTS):
        asked = connect(server.path, stack, CHECKPOINT)
        server.poll(100.0)
        asked.close()
    connect(server.path, stack, CHECKPOINT)
    assert len(server.poll(100.0)) == 1


@pytest.mark.parametrize("line", [b"[" * 3000, b"nothing", b"[]", b"1", b'{"command": []}'])
def test_a_line_without_a_command_is_refused(line: bytes, server: Server, stack: ExitStack) -> None:
    asked = connect(server.path, stack, line + b"\n")
    assert server.poll(100.0) == []
    assert json.loads(asked.recv(200)) == {"ok": False, "error": "unknown command"}


@pytest.mark.parametrize("command", ["checkpoint", "cycles", "pause", "resume", "stop", "validate"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "1e30", "soon"])
def test_a_time_that_nobody_can_wait_is_refused(
    command: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--runs", str(tmp_path), "--timeout", value])
    assert ended.value.code == 2
    assert "a number of seconds above 0" in capsys.readouterr().err


def test_without_a_free_descriptor_the_listener_rests_and_then_serves(server: Server, stack: ExitStack) -> None:
    """A listener that is ready and cannot be served would make the master turn without a pause."""
    idle = connect(server.path, stack)
    server.poll(100.0)
    waiting = connect(server.path, stack, STATUS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))  # the next descriptor would be the first too many
        assert server.poll(101.0) == []
        assert server.sockets(101.0 + REST_S / 2) == [], "neither the listener nor the idle one, which was let go"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert is_closed(idle)
    assert server.poll(101.0 + REST_S / 2) == []
    assert len(server.poll(101.0 + REST_S)) == 1
    assert not is_closed(waiting)


def test_sixty_idle_connections_at_a_low_descriptor_limit_do_not_harm_a_run(tmp_path: Path, stack: ExitStack) -> None:
    with scene(tmp_path / "run", fake__step_s=0.05, run__checkpoint_every=100, run__steps_per_cycle=2000) as run:
        limit = (64, 64)
        master = run.launch(
            run.command("--plain"), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        )
        master.wait_for(run.run.rollout_file(1, 1).exists)
        for _ in range(60):
            connect(run.run.control_socket, stack)
        assert run.ask("status").returncode == 0
        assert run.ask("checkpoint").returncode == 0
        assert run.ask("stop").returncode == 0
        assert master.end() == 0, master.text()
        check_invariants(run)


FILLED = """
import os, sys
null = os.open(os.devnull, os.O_RDONLY)
for fd in range(3, 1100):
    os.dup2(null, fd)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Becomes the command in its arguments, with no descriptor free below 1,100."""


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Lets this process, and what it starts, have descriptors above 1,100."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"this user may have {hard} descriptors at most")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_a_master_with_descriptors_above_1023_runs_and_answers(tmp_path: Path) -> None:
    """It may have inherited them, or hold as many."""
    with scene(tmp_path / "run", fake__step_s=0.05, run__steps_per_cycle=2000) as run:
        master = run.launch([sys.executable, "-c", FILLED, *run.command("--plain")])
        master.wait_for(lambda: run.head_step() >= 0)
        assert asked(run)["ok"]
        assert run.ask("stop").returncode == 0
        assert master.end() == 0, master.text()
        check_invariants(run)


def asked(run: Scene) -> dict[str, object]:
    return dict(json.loads(run.ask("checkpoint", "--json").stdout))


@pytest.mark.usefixtures("many_descriptors")
def test_a_wait_ends_with_what_is_ready_however_large_its_number(stack: ExitStack) -> None:
    ours, theirs = socket.socketpair()
    stack.enter_context(ours)
    stack.enter_context(theirs)
    high = fcntl.fcntl(ours, fcntl.F_DUPFD, 1100)
    stack.callback(os.close, high)
    assert wait_for_any([high], 0.0) == set()
    theirs.sendall(b"x")
    assert wait_for_any([high], 20.0) == {high} and high > 1023
