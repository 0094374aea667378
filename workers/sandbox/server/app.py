"""HTTP endpoints of the code server: each reads a request, runs its jobs, and sends and counts the response."""

from __future__ import annotations

import asyncio
import hmac
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from workers.sandbox.inside.child import STATEMENT
from workers.sandbox.job import MAX_SCRIPT, Calls, Job, ScriptJob, pack_statement, script_reason, source_reason
from workers.sandbox.limits import Budget
from workers.sandbox.result import Case, Result, Script, ScriptResult, Status
from workers.sandbox.server import protocols
from workers.sandbox.server.dispatcher import Dispatcher, Overdue, Stopping
from workers.sandbox.server.protocols import BadRequest, ProgramTests, RunCode
from workers.sandbox.server.tally import VERDICT, Tally

MAX_BODY = 32 << 20
"""Maximum size of one request body, in bytes."""
MAX_BODIES = 512 << 20
"""Maximum size of all bodies being read at once, in bytes. Further requests wait before they are read."""
ANSWER_EARLY_S = 1.0
"""Seconds before a client's deadline at which it gets an answer in any case."""

Answer: TypeAlias = "Callable[[Request, float], Awaitable[Response]]"


@dataclass(frozen=True)
class Grants:
    """The most that a request may ask for."""

    seconds: float
    memory_mb: int

    def budget(self, cpu_s: float, memory_mb: int = 0) -> Budget:
        """Budget for `cpu_s` seconds of CPU. The wall limit is a generous safety net for busy machines."""
        return Budget(cpu_s, 3 * cpu_s + 5, max(0, memory_mb))


class TooLarge(Exception):
    """The body has more than MAX_BODY bytes."""


class Lost(Exception):
    """The sandbox lost a program twice; the result is no verdict."""


class Bodies:
    """Limits the memory used by request bodies: a new request waits until its body fits."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._changed = asyncio.Condition()

    async def take(self, size: int) -> None:
        if self._free < size:
            async with self._changed:
                await self._changed.wait_for(lambda: self._free >= size)
        self._free -= size

    async def give_back(self, size: int) -> None:
        self._free += size
        async with self._changed:
            self._changed.notify_all()


class CodeServer:
    """State shared by all endpoints. Create it on the event loop that serves it."""

    def __init__(self, dispatcher: Dispatcher, grants: Grants, secret: str) -> None:
        self._dispatcher, self._grants, self._secret = dispatcher, grants, secret.encode()
        self._bodies = Bodies(MAX_BODIES)
        self._numbers = count()
        self._calls: dict[str, Answer] = {
            "test_program": self._test_program,
            "test_program_stdio": self._test_stdio,
            "run_code": self._run_code,
        }
        self.tally = Tally()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application for uvicorn, for HTTP alone. Starlette's router and middleware cost 15 % more."""
        response = await self._respond(Request(scope, receive))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path, method = request.scope["path"], request.method
        if path == "/health" and method == "GET":
            return self._health()
        _, _, rest = path.partition("/")
        secret, _, name = rest.partition("/")
        if not hmac.compare_digest(secret.encode(), self._secret):
            self.tally.count("wrong_secret")
            return _refusal(404, "the secret in the path is wrong; the server printed its address when it started")
        if method == "POST" and (call := self._calls.get(name)):
            return await self._counted(call, request)
        if method == "GET" and name in ("health", "stats"):
            return self._health() if name == "health" else self._stats()
        return _refusal(404, f"there is no {method} of {name!r}")

    def _health(self) -> Response:
        return _json(200, b'{"status":"healthy"}')

    def _stats(self) -> Response:
        facts = {"waiting": self._dispatcher.waiting, "stop_reason": self.tally.stop_reason}
        return _json(200, msgspec.json.encode(self.tally.counts | facts))

    async def _counted(self, call: Answer, request: Request) -> Response:
        """Run an endpoint, and turn every exception into a counted error response."""
        arrived = asyncio.get_running_loop().time()
        try:
            return await call(request, arrived)
        except BadRequest as error:
            self.tally.count("refused")
            return _refusal(400, str(error))
        except TooLarge:
            self.tally.count("refused")
            return _refusal(413, f"the request has more than {MAX_BODY} bytes", close=True)
        except (Overdue, Stopping) as error:
            self.tally.count("late")
            ends = isinstance(error, Stopping)
            return _refusal(504, "the server ends" if ends else "no processor was free before your deadline")
        except Lost as error:
            self.tally.count("broken")
            return _refusal(500, str(error))
        except ClientDisconnect:
            return _refusal(400, "the client left")
        except Exception:
            self.tally.count("broken")
            traceback.print_exc(file=sys.stderr)
            return _refusal(500, "a bug of the code server; its standard error has the traceback")

    async def _read(self, request: Request, kind: type[protocols.Body]) -> protocols.Body:
        """Read and decode the body. The size limit is enforced before and during reading."""
        told = request.headers.get("content-length", "")
        size = int(told) if told.isdecimal() else MAX_BODY
        if size > MAX_BODY:
            raise TooLarge
        await self._bodies.take(size)
        try:
            data = bytearray()
            async for chunk in request.stream():
                data += chunk
                if len(data) > MAX_BODY:
                    raise TooLarge
            return protocols.read_body(bytes(data), kind)
        finally:
            await self._bodies.give_back(size)

    async def _finish(self, jobs: list[Job], until: float) -> None:
        """Run the jobs. Raises Overdue, Stopping or Lost if there is no verdict."""
        await self._dispatcher.run(jobs, until - ANSWER_EARLY_S)
        if any(job.is_lost for job in jobs):
            raise Lost("the sandbox lost the program twice")

    async def _test_program(self, request: Request, arrived: float) -> Response:
        asked = await self._read(request, ProgramTests)
        protocols.check_seconds("max_execution_time", asked.max_execution_time, self._grants.seconds)
        tests = protocols.asserts_of(asked.tests)
        if source_reason(asked.program, MAX_SCRIPT):
            return self._verdict(protocols.scores([(False, 0.0)] * len(tests)))
        budget, case = self._grants.budget(asked.max_execution_time), Case(asked.program, (), STATEMENT)
        jobs = [Calls(next(self._numbers), 0, budget, case, [pack_statement(test)]) for test in tests]
        await self._finish(list(jobs), arrived + asked.deadline_s)
        results = [job.results[0] if job.results else None for job in jobs]
        self._note_walls(results)
        return self._verdict(protocols.scores([protocols.outcome_of_call(result) for result in results]))

    async def _test_stdio(self, request: Request, arrived: float) -> Response:
        asked = await self._read(request, ProgramTests)
        protocols.check_seconds("max_execution_time", asked.max_execution_time, self._grants.seconds)
        pairs = protocols.pairs_of(asked.tests)
        budget = self._grants.budget(asked.max_execution_time)
        scripts = [Script(asked.program, given.encode(), budget, is_ambient=True) for given, _ in pairs]
        results = await self._scripts(scripts, arrived + asked.deadline_s)
        outcomes = [
            protocols.outcome_of_script(result, expected) for result, (_, expected) in zip(results, pairs, strict=True)
        ]
        return self._verdict(protocols.scores(outcomes))

    async def _run_code(self, request: Request, arrived: float) -> Response:
        asked = await self._read(request, RunCode)
        protocols.check_run(asked, self._grants.memory_mb)
        protocols.check_seconds("run_timeout", asked.run_timeout, self._grants.seconds)
        budget = self._grants.budget(asked.run_timeout, asked.memory_limit_mb)
        script = Script(asked.code, (asked.stdin or "").encode(), budget)
        try:
            (result,) = await self._scripts([script], arrived + asked.deadline_s)
        except Lost as error:
            self.tally.count("broken")
            return _json(200, protocols.sandbox_error(str(error)))
        late = ScriptResult(Status.TIMEOUT, message="wall time used up", from_wall=True)
        return self._verdict(protocols.run_answer(result or late))

    async def _scripts(self, scripts: list[Script], until: float) -> list[ScriptResult | None]:
        """Results in order; None for a script of a slow program that ran out of time."""
        if not scripts:
            return []
        if reason := script_reason(scripts[0]):
            return [ScriptResult(Status.REJECTED, message=reason)] * len(scripts)
        jobs = [
            ScriptJob(next(self._numbers), 0, script.budget, script) for script in scripts if script.budget is not None
        ]
        await self._finish(list(jobs), until)
        results = [job.result for job in jobs]
        self._note_walls(results)
        return results

    def _note_walls(self, results: Sequence[Result | ScriptResult | None]) -> None:
        if any(result is not None and result.from_wall for result in results):
            self.tally.count("from_wall")

    def _verdict(self, body: bytes) -> Response:
        self.tally.count(VERDICT)
        return _json(200, body)


def _json(status: int, body: bytes, *, close: bool = False) -> Response:
    return Response(body, status, {"connection": "close"} if close else None, "application/json")


def _refusal(status: int, why: str, *, close: bool = False) -> Response:
    return _json(status, msgspec.json.encode({"detail": why}), close=close)
