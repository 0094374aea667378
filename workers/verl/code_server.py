"""The code server of a job: that of a URL, or one that the worker starts on its host and ends with the job."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from profiles.verl import OWN_SERVER
from state import python
from workers.rank_group.meeting import address_of
from workers.verl.verdicts import ADDRESS

READY_S = 60.0
"""The most that start, or an answer to the check, may take."""
END_S = 10.0
LOG = "code-server.log"
FINAL = (ExitCode.INPUT, ExitCode.PERMISSION)
"""Ends of a server's start that no further try changes."""
KEPT = "the head, unchanged; nothing was started"


def command_of(profile: Profile) -> list[str]:
    """What starts a server with the profile's limits at a free port: on loopback, or for several hosts on the network
    between them. Raises LonghaulError (INPUT) if this host has no such interface."""
    knobs = profile.sandbox
    words = ["serve", "--port", "0", "--with-parent", "--jobs", str(knobs.jobs), "--memory", str(knobs.memory_mb)]
    words += ["--most-seconds", str(knobs.cpu_s)]
    words += [word for name in knobs.modules for word in ("--module", name)]
    words += [word for layer in knobs.require for word in ("--require", layer)]
    words += ["--allow-weak"] * knobs.allow_weak
    if profile.run.hosts > 1:
        words += ["--host", address_of(profile.launch.interface)]
    return python.command("workers.sandbox", *words)


class CodeServer:
    """A context manager. Inside, the server has judged a right and a wrong program, and `control` has its address."""

    def __init__(self, profile: Profile, folder: Path, control: Path) -> None:
        """folder: for the log of a server of our own."""
        self._profile, self._control = profile, control
        self._log = folder / LOG
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            url = self._profile.verl.code_server
            if url == OWN_SERVER:
                url = self._start()
            check(url, self._profile.sandbox.cpu_s)
            address = self._control / ADDRESS
            address.touch(0o600)
            address.write_text(url.rstrip("/"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    @property
    def advice(self) -> str:
        """What to type when it gives no verdicts."""
        again = "python -m orchestrator run   (goes on from the checkpoint)"
        return f"tail -50 {self._log}; then {again}" if self._process else f"see that the server is well; then {again}"

    def refuse_end(self, kept: str) -> None:
        """Raises LonghaulError (CODE_SERVER) if a server of our own is gone."""
        if self._process is not None and (code := self._process.poll()) is not None:
            what = f"the code server ended with {code}, while rollouts had to be judged"
            raise _no_server(what, kept, f"tail -50 {self._log}")

    def _start(self) -> str:
        """The URL. Raises LonghaulError."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command_of(self._profile),
                env=python.finding_us(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        line = self._first_line(self._process)
        if not line.startswith("code server: "):
            self._process.kill()
            code = self._process.wait()
            told = dict(line.partition(":")[::2] for line in self._log.read_text(errors="replace").splitlines())
            why = told.get("error", f" exit code {code}, after {READY_S:g} s at most").strip()
            raise LonghaulError(
                f"the code server did not start: {why}",
                kept=KEPT,
                next_command=told.get("next", f"tail -50 {self._log}").strip(),
                exit_code=ExitCode(code) if code in FINAL else ExitCode.CODE_SERVER,
            )
        return line.split()[-1]

    @staticmethod
    def _first_line(process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], READY_S)[0]:
            return ""
        return process.stdout.readline().decode(errors="replace")


def check(url: str, seconds: float) -> None:
    """Let the server judge a right and a wrong test. seconds: what programs will ask for.

    Raises LonghaulError (CODE_SERVER) for every other answer than one right and one wrong.
    """
    program = {"program": "def f(): return 1", "tests": ["assert f() == 1", "assert f() == 2"]}
    request = urllib.request.Request(
        url.rstrip("/") + "/test_program",
        data=json.dumps(program | {"max_execution_time": seconds}).encode(),
        headers={"Content-Type": "application/json"},
    )
    began, why = time.monotonic(), ""
    try:
        with urllib.request.urlopen(request, timeout=READY_S) as response:
            found = json.loads(response.read())["results"]
        if found == [1, 0]:
            return
        why = f"a right and a wrong test gave {found}"
    except urllib.error.HTTPError as error:
        with contextlib.suppress(Exception):
            why = f": {json.loads(error.read())['detail']}"
        why = f"HTTP {error.code}{why}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
    what = f"the code server of verl.code_server does not judge programs: {why[:300]}"
    raise _no_server(
        f"{what} (after {time.monotonic() - began:.0f} s)",
        KEPT,
        f"python -m orchestrator run --set verl.code_server={OWN_SERVER}   or the URL that its server printed",
    )


def _no_server(what: str, kept: str, next_command: str) -> LonghaulError:
    return LonghaulError(what, kept=kept, next_command=next_command, exit_code=ExitCode.CODE_SERVER)
