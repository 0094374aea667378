"""Where messages go: a command of the user's, and URLs by apprise. Each try is a process with a time limit.

A URL is a secret. It goes to that process through a pipe, and is taken out of whatever is said about the try.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import msgspec

from profiles.harmless import harmless
from profiles.notify import Notify
from state import python
from workers.notify.events import Event

MOST_SAID = 300
SHORTEST_SECRET = 3
HIDDEN = "***"


@dataclass(frozen=True)
class Target:
    """name: for people; it gives no secret away. secrets: texts that nobody may read."""

    name: str
    command: tuple[str, ...]
    url: str = ""
    secrets: tuple[str, ...] = ()

    def send(self, event: Event, timeout_s: float, environment: Mapping[str, str]) -> str:
        """Try once; returns why it failed, empty if it did not."""
        given = json.dumps({"url": self.url, "title": event.title, "body": event.text}) if self.url else as_json(event)
        try:
            error = _run(self.command, given.encode(), timeout_s, environment, self.secrets)
        except OSError as failure:
            error = f"cannot be started: {failure.strerror}"
        return redacted(harmless(error), self.secrets)[:MOST_SAID]


def as_json(event: Event) -> str:
    return msgspec.json.encode(event).decode() + "\n"


def _run(
    command: tuple[str, ...], given: bytes, timeout_s: float, environment: Mapping[str, str], secrets: Iterable[str]
) -> str:
    """Run a process in a session of its own, all of which ends with the time limit."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(given, timeout_s)
    except subprocess.TimeoutExpired:
        if process.poll() is None:
            return f"took longer than {timeout_s:g} s"
        said = b""  # it has ended; a process that it left behind holds its output
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode == 0:
        return ""
    # Redacted before it is cut or its white space changed: a part of a secret is not found any more.
    last = " ".join(redacted(said.decode(errors="replace"), secrets).split())[-MOST_SAID:]
    return f"exit code {process.returncode}" + (f": {last}" if last else "")


def targets_of(notify: Notify, environment: Mapping[str, str]) -> tuple[list[Target], list[str]]:
    """All targets, and what is wrong with their settings."""
    urls, problems = _urls_of(notify, environment)
    found = []
    if notify.command:
        given = sorted((environment[name] for name in notify.pass_env if environment.get(name)), key=len, reverse=True)
        found.append(Target("command", notify.command, secrets=tuple(given)))
    for number, url in enumerate(urls, 1):
        scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)", url)
        name = f"url {number} ({scheme[0].lower()})" if scheme else f"url {number}"
        found.append(Target(name, tuple(python.command("workers.notify.deliver")), url, secrets_of(url)))
    return found, problems


def _urls_of(notify: Notify, environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    urls: list[str] = []
    problems: list[str] = []
    if notify.urls_env:
        given = environment.get(notify.urls_env, "").split()
        urls += given
        if not given:
            problems.append(f"notify.urls_env: the variable {notify.urls_env} is not set")
    if notify.urls_file:
        file = Path(notify.urls_file).expanduser()
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"notify.urls_file: {file} cannot be read ({type(error).__name__})")
        else:
            urls += [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
            if file.stat().st_mode & 0o077:
                problems.append(f"notify.urls_file: others may read it; type: chmod 600 {file}")
    return urls, problems


def secrets_of(url: str) -> tuple[str, ...]:
    """Every part of a URL behind its scheme that could be one, the longest first."""
    rest = url.partition("://")[2] or url
    parts = {rest, unquote(rest)}
    for text in tuple(parts):
        parts.update(re.split(r"[/:@?&=,;# ]+", text))
        parts.update(re.split(r"[/?&#]+", text))
    return tuple(sorted((part for part in parts if len(part) >= SHORTEST_SECRET), key=lambda part: -len(part)))


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text without any of the secrets."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
