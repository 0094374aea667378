"""A real server of the page, in a process of its own, and runs for it to show."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from orchestrator.web.gate import cookie_name, cookie_of
from state.layout import RunDir, web_token
from tests import REPOSITORY
from workers.cycle import rollout_file

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u202e${7*7}'\"&"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Any
    """Case does not matter in their names."""
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    port: int
    runs: Path
    url: str
    """With the token."""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def cookie(self) -> str:
        return f"{cookie_name(self.port)}={cookie_of(web_token(self.runs).read_text().strip())}"

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Without a cookie unless one is given."""
        request = urllib.request.Request(f"{self.base}{path}", method=method, headers=headers)
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=30) as found:
                return Reply(found.status, found.headers, found.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.headers, error.read())

    def ask(self, name: str, **given: object) -> Reply:
        """A question of the page, with its cookie."""
        return self.get(f"/api/{name}?{urlencode(given)}", Cookie=self.cookie)

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@contextmanager
def served(runs: Path, *options: str, port: int = 0) -> Iterator[Served]:
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "web",
        "--runs",
        str(runs),
        "--port",
        str(port),
        "--json",
        *options,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, env={**os.environ}
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        said = json.loads(line)
        yield Served(process, said["port"], runs, said["url"])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def byte_tokenizer(folder: Path) -> Tokenizer:
    """Writes a tokenizer that can say any text."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def rollouts(run: RunDir, cycle: int, step: int, *groups: list[dict[str, Any]], prompt: str = "What is 6 * 7?") -> Path:
    """Rollouts as GRPO writes them, and a tokenizer in the head's directory. A rollout: text, reward, anything else."""
    with closing(sqlite3.connect(run.store)) as db:
        (path,) = db.execute(
            "SELECT path FROM checkpoints WHERE state<>'deleted' ORDER BY step DESC, created_at DESC LIMIT 1"
        ).fetchone()
    tokenizer = byte_tokenizer(run.root / path)
    rows = []
    for number, group in enumerate(groups):
        for one in group:
            row = {"group": number, "problem": number, "finish_reason": "stop", "log_probs": [], **one}
            row["prompt_ids"] = tokenizer.encode(prompt).ids
            row["completion_ids"] = tokenizer.encode(row.pop("text")).ids
            rows.append(row)
    file = run.rollout_file(cycle, step)
    rollout_file.write(file, rollout_file.Header("r", "p", step), [*rows, {"train": [], "metrics": {}}])
    return file


def hostile_example(run: RunDir) -> None:
    """A task whose program, input and output are markup, and an event with the same text."""
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute(
            "INSERT INTO examples VALUES ('hostile', 'ded', 1, 1, 999999, ?, ?, ?, 0.5)", [HOSTILE, HOSTILE, HOSTILE]
        )
        payload = msgspec.json.encode({"text": HOSTILE}).decode()
        db.execute("INSERT INTO events VALUES (1, 'train', 1, 99999, 'warning', 1, 1.0, 1.0, ?)", [payload])
        db.execute("UPDATE runs SET stop_reason=?", [HOSTILE])
