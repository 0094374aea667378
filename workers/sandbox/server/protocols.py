"""Request and response formats: open-instruct's two test calls, and SandboxFusion's `run_code` as verl sends it.

Pure. Unknown fields are refused rather than ignored: they may change the meaning of a request.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import math
import zlib
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec

from workers.sandbox.result import Result, ScriptResult, Status
from workers.sandbox.server import pickled

MAX_TESTS = 64 << 20
"""Maximum size of decompressed tests, in bytes."""
LATE_RUNTIME = -1.0
"""Runtime reported for a failed test."""

Body = TypeVar("Body")


class BadRequest(ValueError):
    """The request is malformed or cannot be granted; the message is the reason."""


class ProgramTests(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `/test_program` and `/test_program_stdio`."""

    program: str
    tests: Any
    max_execution_time: float = 1.0

    @property
    def deadline_s(self) -> float:
        """Seconds after which open-instruct's client gives up."""
        return max(30.0, min(300.0, 10 * self.max_execution_time))


class RunCode(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `/run_code`."""

    code: str
    language: str
    stdin: str | None = ""
    compile_timeout: float = 10.0
    run_timeout: float = 10.0
    memory_limit_mb: int = msgspec.field(default=-1, name="memory_limit_MB")
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []

    @property
    def deadline_s(self) -> float:
        """Seconds after which verl's client gives up."""
        return self.compile_timeout + self.run_timeout + 10.0


def read_body(data: bytes, kind: type[Body]) -> Body:
    """Decode a request body. Raises BadRequest."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not what is asked for: {error}") from error


def check_seconds(name: str, seconds: float, most: float) -> None:
    """Raises BadRequest if the time is not positive and finite, or exceeds what this server grants."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise BadRequest(f"{name} = {seconds} must be above 0")
    if seconds > most:
        raise BadRequest(f"{name} = {seconds:g} is more than this server grants ({most:g} s, its --most-seconds)")


def check_run(asked: RunCode, most_memory_mb: int) -> None:
    """Raises BadRequest if this server cannot run the request."""
    if asked.language != "python":
        raise BadRequest(f"language {asked.language!r} is not known here; programs are in python")
    if asked.files or asked.fetch_files:
        raise BadRequest("files and fetch_files must be empty: programs here have no files")
    if asked.memory_limit_mb > most_memory_mb:
        raise BadRequest(f"memory_limit_MB = {asked.memory_limit_mb} is more than the {most_memory_mb} of --memory")
    if not (math.isfinite(asked.compile_timeout) and asked.compile_timeout >= 0):
        raise BadRequest(f"compile_timeout = {asked.compile_timeout} must be at least 0")


def list_of(tests: Any) -> list[Any]:
    """The tests as a list. Clients send a list, JSON text, or base64 of a zlib-compressed pickle. Raises BadRequest."""
    if not tests:
        return []
    if isinstance(tests, str):
        try:
            tests = msgspec.json.decode(tests)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            tests = _unpacked(tests)
    if isinstance(tests, str):  # LiveCodeBench packs JSON text
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
            tests = msgspec.json.decode(tests)
    if not isinstance(tests, list):
        raise BadRequest("tests must be a list, its JSON text, or its base64 text")
    return tests


def _unpacked(text: str) -> Any:
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(base64.b64decode(text, validate=True), MAX_TESTS + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise BadRequest(f"tests are neither JSON nor base64 of compressed data: {error}") from error
    if len(data) > MAX_TESTS:
        raise BadRequest(f"tests of more than {MAX_TESTS} bytes")
    try:
        return pickled.read(data)
    except pickled.NotPlain as error:
        raise BadRequest(f"tests cannot be read: {error}") from error


def call_for(tests: Any) -> str:
    """Name of the call that judges such tests: statements, or inputs and outputs. Raises BadRequest, also for none."""
    found = list_of(tests)
    if not found:
        raise BadRequest("there are no tests")
    if isinstance(found[0], str):
        asserts_of(found)
        return "test_program"
    pairs_of(found)
    return "test_program_stdio"


def asserts_of(tests: Any) -> list[str]:
    """The test statements of a `/test_program` request. Raises BadRequest."""
    found = list_of(tests)
    for place, test in enumerate(found):
        if not isinstance(test, str):
            raise BadRequest(f"test {place} must be text, a statement of Python")
    return found


def pairs_of(tests: Any) -> list[tuple[str, str]]:
    """(input, expected output) of each test of a `/test_program_stdio` request. Raises BadRequest."""
    found = []
    for place, test in enumerate(list_of(tests)):
        given, expected = (test.get("input"), test.get("output")) if isinstance(test, dict) else (None, None)
        if isinstance(given, list) and all(isinstance(line, str) for line in given):
            given = "\n".join(given)
        if not (isinstance(given, str) and isinstance(expected, str)):
            raise BadRequest(f"test {place} must be an object with the texts input and output")
        found.append((given, expected))
    return found


def same_output(printed: str, expected: str) -> bool:
    """Compare line by line, ignoring surrounding whitespace; lines of equal numbers match too."""
    ours, theirs = (text.strip().split("\n") for text in (printed, expected))
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _same_line(printed: str, expected: str) -> bool:
    if printed.strip() == expected.strip():
        return True
    try:
        return [Decimal(word) for word in printed.split()] == [Decimal(word) for word in expected.split()]
    except (InvalidOperation, ValueError):
        return False


def scores(outcomes: Sequence[tuple[bool, float]]) -> bytes:
    """Response to a test call, from (passed, CPU seconds) of each test."""
    answer = {
        "results": [int(passed) for passed, _ in outcomes],
        "runtimes": [seconds if passed else LATE_RUNTIME for passed, seconds in outcomes],
    }
    return msgspec.json.encode(answer)


def outcome_of_call(result: Result | None) -> tuple[bool, float]:
    """(passed, CPU seconds) of a statement. None: it ran out of time."""
    return (False, 0.0) if result is None else (result.status is Status.OK, result.cpu_s)


def outcome_of_script(result: ScriptResult | None, expected: str) -> tuple[bool, float]:
    """(passed, CPU seconds) of a script. None: it ran out of time."""
    if result is None:
        return False, 0.0
    printed = result.stdout.decode(errors="replace")
    return result.status is Status.OK and same_output(printed, expected), result.cpu_s


RUN_STATUS = {Status.OK: "Finished", Status.ERROR: "Finished", Status.TIMEOUT: "TimeLimitExceeded"}
"""All other statuses are reported as `Error`: the program has no exit code of its own."""


def run_answer(result: ScriptResult) -> bytes:
    """Response to `/run_code`."""
    run = {
        "status": RUN_STATUS.get(result.status, "Error"),
        "execution_time": result.cpu_s,
        "return_code": result.exit_code,
        "stdout": result.stdout.decode(errors="replace"),
        "stderr": result.stderr.decode(errors="replace") or result.message,
    }
    return _run_code("Success" if result.status is Status.OK else "Failed", result.message, run)


def sandbox_error(why: str) -> bytes:
    """Response to `/run_code` when there is no verdict."""
    return _run_code("SandboxError", why, None)


def _run_code(status: str, message: str, run: dict[str, Any] | None) -> bytes:
    answer = {"status": status, "message": message, "compile_result": None, "run_result": run}
    return msgspec.json.encode(answer | {"executor_pod_name": None, "files": {}})
