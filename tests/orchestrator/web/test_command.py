"""`web` as typed: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.commands import web
from orchestrator.web import serving
from profiles.errors import ExitCode, LonghaulError
from state.layout import web_token
from tests import REPOSITORY
from tests.builders import build_store
from tests.orchestrator.web.served import served


def typed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", "web", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=60)


def said_until(words: str, *arguments: str) -> list[str]:
    """The lines that are printed when the page is ready, up to one with these words; then it is stopped."""
    command = [sys.executable, "-m", "orchestrator", "web", "--port", "0", *arguments]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        guard = threading.Timer(60, process.kill)
        guard.start()
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if words in line:
                process.terminate()
                break
        process.wait()
        guard.cancel()
    assert process.returncode == 0 and words in lines[-1], lines
    return lines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_with_0_and_says_nothing_more(tmp_path: Path, number: int) -> None:
    with served(tmp_path) as page:
        assert page.stop(number) == 0
        assert page.process.stdout is not None and page.process.stderr is not None
        assert (page.process.stdout.read(), page.process.stderr.read()) == ("", "")


def test_it_prints_the_link_and_how_to_reach_it_from_elsewhere(tmp_path: Path) -> None:
    link, about, tunnel = said_until("ssh -L", "--runs", str(tmp_path))
    token = web_token(tmp_path).read_text().strip()
    assert link.startswith("page: http://127.0.0.1:") and link.endswith(f"/?token={token}")
    assert "read-only" in about and "ssh -L" in tunnel


def test_a_named_run_is_opened_by_the_link(tmp_path: Path) -> None:
    build_store(tmp_path / "a b", cycles=2, steps=20)
    (link,) = said_until("page: ", "--runs", str(tmp_path), "--run", "a b")
    assert link.endswith("#/a%20b")


def test_an_unknown_run_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    build_store(tmp_path / "night", cycles=2, steps=20)
    done = typed("--runs", str(tmp_path), "--run", "nigth")
    assert done.returncode == ExitCode.INPUT
    assert "there is no run 'nigth'" in done.stderr and "night" in done.stderr


def test_without_any_run_the_page_waits_for_one(tmp_path: Path) -> None:
    with served(tmp_path / "runs") as page:
        assert page.ask("runs").json["runs"] == []


def test_a_taken_port_is_told_with_another_to_try(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = typed("--runs", str(tmp_path), "--port", str(port))
    assert done.returncode == ExitCode.INPUT
    assert f"port {port} is taken" in done.stderr and f"--port {port + 1 if port < 65535 else 0}" in done.stderr


@pytest.mark.parametrize("port", ["-1", "65536", "99999999"])
def test_a_port_that_cannot_be_is_a_wrong_command_line(tmp_path: Path, port: str) -> None:
    assert typed("--runs", str(tmp_path), "--port", port).returncode == ExitCode.USAGE


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid", "", "a" * 300])
def test_an_address_of_another_machine_is_refused(tmp_path: Path, host: str) -> None:
    done = typed("--runs", str(tmp_path), "--port", "0", f"--host={host}")
    if host == "" and done.returncode == 0:
        return
    assert done.returncode == ExitCode.INPUT and "Traceback" not in done.stderr


def test_without_the_extra_it_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(web, "find_spec", lambda name: None)
    assert main(["web"]) == ExitCode.INPUT
    said = capsys.readouterr().err
    assert "starlette and uvicorn" in said and 'pip install "starlette' in said


def test_an_open_address_is_warned_about_and_reached_by_name_too(tmp_path: Path) -> None:
    said = said_until("nothing is encrypted", "--runs", str(tmp_path), "--host", "0.0.0.0", "--name", "Box.Example")
    text = "\n".join(said)
    assert said[0].startswith("page: http://Box.Example:")
    assert "http://127.0.0.1:" in text and "warning: anyone who reaches port" in text


def test_a_given_name_is_let_in_and_only_that(tmp_path: Path) -> None:
    with served(tmp_path, "--name", "Box.Example") as page:
        assert page.get("/", Host="box.example", Cookie=page.cookie).status == 200
        assert page.get("/", Host="other.example", Cookie=page.cookie).status == 421


def test_the_token_is_kept_for_its_owner_alone_and_changed_on_request(tmp_path: Path) -> None:
    path = web_token(tmp_path / "runs")
    first = serving.token_of(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert serving.token_of(path) == first and len(first) >= 32
    assert serving.token_of(path, is_new=True) != first


def test_a_new_token_shuts_out_browsers_with_the_old_one(tmp_path: Path) -> None:
    build_store(tmp_path / "night", cycles=2, steps=20)
    with served(tmp_path) as page:
        port, cookie = page.port, page.cookie
        assert page.stop() == 0
    with served(tmp_path, port=port) as page:
        assert page.get("/", Cookie=cookie).status == 200
        assert page.stop() == 0
    with served(tmp_path, "--new-token", port=port) as page:
        assert page.get("/", Cookie=cookie).status == 403


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [("x" * 40, 0o644, "others may read"), ("short", 0o600, "holds no token"), ("ü" * 40, 0o600, "holds no token")],
)
def test_a_token_that_is_none_or_no_secret_is_refused(tmp_path: Path, text: str, mode: int, words: str) -> None:
    path = web_token(tmp_path)
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(LonghaulError, match=words):
        serving.token_of(path)


def test_it_starts_without_heavy_libraries(tmp_path: Path) -> None:
    code = "import sys; from orchestrator.web import app, desk, serving; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ}
    )
    assert not {"torch", "transformers", "numpy", "tokenizers"} & set(done.stdout.split()), done.stderr


def test_json_has_the_links_for_scripts(tmp_path: Path) -> None:
    (line,) = said_until("{", "--runs", str(tmp_path), "--json")
    said = json.loads(line)
    assert said["url"] == said["urls"][0] and str(said["port"]) in said["url"] and said["open"] is False


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("box", False),
    ],
)
def test_only_a_loopback_address_is_this_machine_alone(host: str, alone: bool) -> None:
    assert serving.is_loopback(host) is alone


def test_a_new_token_shuts_out_browsers_of_a_page_that_is_served_already(tmp_path: Path) -> None:
    with served(tmp_path) as page:
        old = page.cookie
        assert page.get("/api/runs", Cookie=old).status == 200
        with served(tmp_path, "--new-token"):
            assert page.get("/api/runs", Cookie=old).status == 403
            assert page.ask("runs").status == 200  # with the new one


def test_a_page_goes_on_with_its_token_when_the_file_is_gone(tmp_path: Path) -> None:
    with served(tmp_path) as page:
        cookie = page.cookie
        web_token(tmp_path).unlink()
        assert page.get("/api/runs", Cookie=cookie).status == 200
