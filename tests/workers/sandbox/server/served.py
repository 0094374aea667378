"""A code server of its own process, and a plain client."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests import REPOSITORY

COMMAND = [sys.executable, "-m", "workers.sandbox", "serve", "--port", "0", "--allow-weak"]


@dataclass
class Served:
    """A server that runs, and where."""

    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None and parts.port is not None
        return parts.hostname, parts.port

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    def ask(self, path: str, body: Any = None, *, method: str = "POST", raw: bytes | None = None) -> tuple[int, Any]:
        """(status, answer) of one request. path: below the secret, or whole if it begins with /."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        data = raw if raw is not None else json.dumps(body).encode()
        try:
            whole = path if path.startswith("/") else f"{self.path}/{path}"
            connection.request(method, whole, data if method == "POST" else None)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def stats(self) -> dict[str, Any]:
        status, found = self.ask("stats", method="GET")
        assert status == 200
        return dict(found)


@contextmanager
def served(*options: str) -> Iterator[Served]:
    """Start one and end it."""
    command = [*COMMAND, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("code server: http://127.0.0.1:"), process.stderr.read()
        yield Served(process, line.split()[2])
    finally:
        process.kill()
        process.communicate()
