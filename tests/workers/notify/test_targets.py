"""Where messages go: a real program, a real HTTP server, a real SMTP server; and what is never said of a URL."""

from __future__ import annotations

import json
import os
import socketserver
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.notify import Notify
from tests import REPOSITORY
from workers.notify.events import Event
from workers.notify.targets import HIDDEN, Target, redacted, secrets_of, targets_of

EVENT = Event("r0:end:1.0", "end", "night", "r0", 1.0, 20, "night: finished", "step 20; all cycles are done")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
TIMEOUT_S = 60.0


class Inbox:
    """A server of this machine that keeps what it gets. status: of its answers."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Mapping[str, str], str]] = []
        self.status = 200
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
                inbox.got.append((self.path, dict(self.headers), body))
                self.send_response(inbox.status)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.server.shutdown()
    made.server.server_close()


def only_target(url: str) -> Target:
    (target,), problems = targets_of(Notify(urls_env="URLS"), {"URLS": url})
    assert problems == []
    return target


@pytest.mark.parametrize("kind", ["ntfy", "json"])
def test_a_message_reaches_a_server(kind: str, inbox: Inbox) -> None:
    pytest.importorskip("apprise")
    target = only_target(f"{kind}://127.0.0.1:{inbox.port}/my-secret-topic")
    assert target.send(EVENT, TIMEOUT_S, ENVIRONMENT) == ""
    ((path, headers, body),) = inbox.got
    said = path + json.dumps(dict(headers)) + body
    assert "my-secret-topic" in said and "night: finished" in said and "all cycles are done" in said


def test_a_server_that_refuses_and_one_that_is_not_there_are_failures_that_give_nothing_away(inbox: Inbox) -> None:
    pytest.importorskip("apprise")
    inbox.status = 403
    for port in (inbox.port, 9):
        target = only_target(f"ntfy://someone:pass%20word@127.0.0.1:{port}/my-secret-topic?tags=hidden")
        error = target.send(EVENT, TIMEOUT_S, ENVIRONMENT)
        assert error.startswith("exit code 1")
        assert not any(part in error for part in ("someone", "pass word", "my-secret-topic", "hidden"))


@pytest.mark.parametrize("url", ["nonsense", "slack://a", "nowhere://secret/word"])
def test_a_url_that_apprise_cannot_use_is_a_failure(url: str) -> None:
    pytest.importorskip("apprise")
    error = only_target(url).send(EVENT, TIMEOUT_S, ENVIRONMENT)
    assert "apprise does not know this kind of URL" in error and "secret" not in error


class Mailbox(socketserver.StreamRequestHandler):
    """SMTP as far as one letter needs it (RFC 5321)."""

    letters: ClassVar[list[str]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        lines: list[str] = []
        is_data = False
        while line := self.rfile.readline().decode():
            if is_data:
                is_data = line != ".\r\n"
                lines.append(line)
                if not is_data:
                    self.letters.append("".join(lines))
                    self.wfile.write(b"250 taken\r\n")
                continue
            word = line[:4].upper()
            is_data = word == "DATA"
            self.wfile.write(b"354 go\r\n" if is_data else b"221 bye\r\n" if word == "QUIT" else b"250 well\r\n")
            if word == "QUIT":
                return


def test_a_letter_reaches_a_mail_server() -> None:
    pytest.importorskip("apprise")
    Mailbox.letters.clear()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        target = only_target(f"mailto://127.0.0.1:{port}?from=run@example.org&to=me@example.org&mode=insecure")
        error = target.send(EVENT, TIMEOUT_S, ENVIRONMENT)
        server.shutdown()
    assert error == ""
    (letter,) = Mailbox.letters
    assert "Subject: night: finished" in letter and "me@example.org" in letter


def command(code: str, **settings: Any) -> tuple[Target, Mapping[str, str]]:
    notify = Notify(command=(sys.executable, "-c", code), **settings)
    environment = {**ENVIRONMENT, "MY_TOKEN": "very-secret-token"}
    ((target,), problems) = targets_of(notify, environment)
    assert problems == []
    return target, environment


def test_a_command_gets_the_event_as_json(tmp_path: Path) -> None:
    file = tmp_path / "got"
    target, environment = command(f"import sys; open({str(file)!r}, 'w').write(sys.stdin.read())")
    assert target.send(EVENT, TIMEOUT_S, environment) == ""
    assert msgspec.json.decode(file.read_bytes(), type=Event) == EVENT
    assert set(json.loads(file.read_text())) == {
        "id", "kind", "run", "run_id", "at", "step", "title", "text", "facts", "again"
    }  # fmt: skip


def test_of_a_command_that_fails_its_last_words_are_said_without_what_it_was_trusted_with() -> None:
    target, environment = command(
        "import os; print('no: ' + os.environ['MY_TOKEN']); raise SystemExit(3)", pass_env=("MY_TOKEN",)
    )
    assert target.send(EVENT, TIMEOUT_S, environment) == f"exit code 3: no: {HIDDEN}"


@pytest.mark.parametrize("more", [150, 290, 300, 310])
def test_a_secret_that_is_cut_or_spaced_out_is_not_said_in_part(more: int) -> None:
    secret = "TOKEN-" + "s3cr3t" * 30 + "\n  end"
    code = f"import os; print(os.environ['T'] + 'x' * {more}); raise SystemExit(3)"
    ((target,), _) = targets_of(
        Notify(command=(sys.executable, "-c", code), pass_env=("S", "T")), {"S": "TOKEN", "T": secret}
    )
    said = target.send(EVENT, TIMEOUT_S, {**ENVIRONMENT, "T": secret})
    assert said.startswith("exit code 3: ") and "s3cr3t" not in said and "end" not in said


def test_a_command_that_leaves_a_process_behind_has_taken_the_message() -> None:
    ((target,), _) = targets_of(Notify(command=("sh", "-c", "cat > /dev/null; sleep 1000 &")), {})
    assert target.send(EVENT, 1.0, ENVIRONMENT) == ""


def test_a_command_that_hangs_ends_with_all_its_processes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen(['sleep', '1000'], stdout=open({str(tmp_path / 'alive')!r}, 'w'))\n"
        "time.sleep(1000)"
    )
    target, environment = command(code)
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    assert target.send(EVENT, 3.0, environment) == "took longer than 3 s"
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # the end of the pipe: nobody holds it any more
    os.close(reader)


def test_a_command_that_does_not_exist_or_does_not_read_is_a_failure_or_none(tmp_path: Path) -> None:
    ((target,), _) = targets_of(Notify(command=("/nowhere/program",)), {})
    assert target.send(EVENT, TIMEOUT_S, ENVIRONMENT) == "cannot be started: No such file or directory"
    ((target,), _) = targets_of(Notify(command=("true",)), {})
    assert target.send(msgspec.structs.replace(EVENT, text="x" * 1_000_000), TIMEOUT_S, ENVIRONMENT) == ""


def test_urls_come_from_a_variable_and_a_file_and_have_names_that_give_nothing_away(tmp_path: Path) -> None:
    file = tmp_path / "urls"
    file.write_text("# mine\n\nmailto://me:word@example.org\n")
    file.chmod(0o600)
    notify = Notify(command=("cat",), urls_env="URLS", urls_file=str(file))
    targets, problems = targets_of(notify, {"URLS": "ntfy://topic\nslack://a/b/c"})
    assert [target.name for target in targets] == ["command", "url 1 (ntfy)", "url 2 (slack)", "url 3 (mailto)"]
    assert problems == []
    assert not any("topic" in word or "word" in word for target in targets for word in (target.name, *target.command))


def test_what_is_wrong_with_the_settings_is_said(tmp_path: Path) -> None:
    file = tmp_path / "urls"
    file.write_text("ntfy://topic")
    file.chmod(0o644)
    assert targets_of(Notify(urls_env="URLS"), {})[1] == ["notify.urls_env: the variable URLS is not set"]
    assert targets_of(Notify(urls_file=str(file)), {})[1] == [
        f"notify.urls_file: others may read it; type: chmod 600 {file}"
    ]
    missing = targets_of(Notify(urls_file=str(tmp_path / "none")), {})[1]
    assert missing == [f"notify.urls_file: {tmp_path / 'none'} cannot be read (FileNotFoundError)"]


WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=96, exclude_characters="/:@?&=,;#%*"), min_size=3)


@given(WORDS, WORDS, WORDS)
def test_no_part_of_a_url_survives_in_what_is_said(user: str, password: str, topic: str) -> None:
    url = f"ntfys://{user}:{password}@example.org/{topic}?key={password}"
    said = f"cannot reach https://example.org/{topic} as {user} with {password}: {url}"
    left = redacted(said, secrets_of(url))
    assert not any(part in left for part in (user, password, topic))
    assert left.startswith("cannot reach https://") and HIDDEN in left
