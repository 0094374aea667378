"""The HTTP side of the page: who may read, which question is asked, and the reply. GET alone; nothing is changed.

Static files are read once, at the start: no path of a request ever reaches the disk.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import msgspec
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.display.wording import among
from orchestrator.web.desk import Desk
from orchestrator.web.gate import SECURITY_HEADERS, cookie_name, cookie_of, is_known_host, is_same
from profiles.errors import ExitCode, LonghaulError

PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
COOKIE_DAYS = 365
INDEX, ENTER = "index.html", "enter.html"

Endpoint = Callable[[Mapping[str, str]], Awaitable[Any]]


@dataclass(frozen=True)
class Access:
    """token: tells the one that holds now. port: where it is served. names: of hosts, beside addresses and localhost,
    in lower case."""

    token: Callable[[], str]
    port: int
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Asset:
    body: bytes
    type: str
    tag: str


class BadRequest(Exception):
    """A question that the page does not ask: what is wrong with it."""


class Page:
    """The ASGI application, without compression."""

    def __init__(self, desk: Desk, access: Access) -> None:
        self._desk, self._access = desk, access
        self._assets = {path.name: _asset(path) for path in PAGE.iterdir() if path.suffix in TYPES}
        self._api: dict[str, Endpoint] = {
            "runs": self._runs,
            "run": self._run,
            "series": self._series,
            "window": self._window,
            "scores": self._scores,
            "events": self._events,
            "cycles": self._cycles,
            "profile": self._profile,
            "tasks": self._tasks,
            "rollout_steps": self._rollout_steps,
            "rollouts": self._rollouts,
            "compare": self._compare,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        response = await self._respond(Request(scope))
        for name, value in SECURITY_HEADERS.items():
            response.headers[name] = value
        response.headers.setdefault("Cache-Control", "no-store")
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if not is_known_host(request.headers.get("host", ""), self._access.names):
            return _words(
                421,
                "This name is not known here",
                "Another site may be posing as this machine. If the name is right, start the page with it: "
                "python -m orchestrator web --name NAME",
            )
        if request.method not in ("GET", "HEAD"):
            response = _words(405, "This page is read-only", "It answers GET alone, and changes nothing.")
            response.headers["Allow"] = "GET, HEAD"
            return response
        name = request.scope["path"].removeprefix("/")
        if name == "" and "token" in request.query_params:
            return self._enter(request.query_params["token"])
        if name and name in self._assets and name not in (INDEX, ENTER):
            return self._file(name, request)
        may_read = is_same(request.cookies.get(cookie_name(self._access.port), ""), cookie_of(self._access.token()))
        if name.startswith("api/"):
            return await self._answer(name[4:], request) if may_read else _json(403, {"what": "no link"})
        if name != "":
            return _words(404, "There is nothing here", "The page itself is at the address without a path.")
        return self._file(INDEX, request) if may_read else _no_link()

    def _enter(self, token: str) -> Response:
        """Exchange the token of the link for a cookie. A page of ours follows, because a browser that comes from
        elsewhere does not send a strict cookie along with a redirect; it also drops the link from the history."""
        if not is_same(token, self._access.token()):
            return _no_link()
        response = Response(self._assets[ENTER].body, media_type=self._assets[ENTER].type)
        response.set_cookie(
            cookie_name(self._access.port),
            cookie_of(token),
            max_age=COOKIE_DAYS * 86400,
            httponly=True,
            samesite="strict",
        )
        return response

    def _file(self, name: str, request: Request) -> Response:
        asset = self._assets[name]
        headers = {"ETag": asset.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, headers=headers, media_type=asset.type)

    async def _answer(self, name: str, request: Request) -> Response:
        endpoint = self._api.get(name)
        if endpoint is None:
            return _json(404, {"what": f"there is no question {name[:60]!r}"})
        try:
            return _json(200, await endpoint(request.query_params))
        except BadRequest as error:
            return _json(400, {"what": str(error)})
        except LonghaulError as error:
            status = 404 if error.exit_code == ExitCode.INPUT else 503
            command = among(self._desk.folder, error.next_command)
            return _json(status, {"what": error.what, "kept": error.kept, "next": command})
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return _json(500, {"what": "a bug of the page; the terminal that serves it shows more"})

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _runs(self, given: Mapping[str, str]) -> Any:
        return {"folder": str(self._desk.folder), "runs": await self._desk.runs()}

    async def _run(self, given: Mapping[str, str]) -> Any:
        return await self._desk.of(_text(given, "run"), lambda watch: watch.overview())

    async def _series(self, given: Mapping[str, str]) -> Any:
        names = _text(given, "metrics").split(",")
        return await self._desk.series(_text(given, "run"), names, given.get("key", ""), _number(given, "first", 0))

    async def _window(self, given: Mapping[str, str]) -> Any:
        names, first, last = _text(given, "metrics").split(","), _number(given, "from"), _number(given, "to")
        return await self._desk.of(_text(given, "run"), lambda watch: watch.window(names, first, last))

    async def _scores(self, given: Mapping[str, str]) -> Any:
        return await self._desk.of(_text(given, "run"), lambda watch: watch.scores())

    async def _events(self, given: Mapping[str, str]) -> Any:
        before, kind, words = _number(given, "before", 0), given.get("type", ""), given.get("q", "")
        return await self._desk.of(_text(given, "run"), lambda watch: watch.events(before, kind, words[:200]))

    async def _cycles(self, given: Mapping[str, str]) -> Any:
        return await self._desk.of(_text(given, "run"), lambda watch: watch.cycles())

    async def _profile(self, given: Mapping[str, str]) -> Any:
        return await self._desk.of(_text(given, "run"), lambda watch: watch.profile())

    async def _tasks(self, given: Mapping[str, str]) -> Any:
        return {"tasks": await self._desk.of(_text(given, "run"), lambda watch: watch.tasks())}

    async def _rollout_steps(self, given: Mapping[str, str]) -> Any:
        return {"steps": await self._desk.of(_text(given, "run"), lambda watch: watch.rollout_steps())}

    async def _rollouts(self, given: Mapping[str, str]) -> Any:
        name, cycle, step = _text(given, "run"), _number(given, "cycle"), _number(given, "step")
        return msgspec.to_builtins(await self._desk.rollouts(name, cycle, step, given.get("group", "")))

    async def _compare(self, given: Mapping[str, str]) -> Any:
        try:
            names = json.loads(_text(given, "runs"))
        except ValueError as error:
            raise BadRequest("runs must be a list of names in JSON") from error
        if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
            raise BadRequest("runs must be a list of names")
        return await self._desk.compare(names)


def _text(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        raise BadRequest(f"{name} is missing")
    return given[name]


def _number(given: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = given.get(name, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise BadRequest(f"{name} must be a whole number")
    return int(text)


def served(desk: Desk, access: Access) -> ASGIApp:
    """The application with compressed replies."""
    return GZipMiddleware(Page(desk, access), minimum_size=1000, compresslevel=5)


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(body, TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:20]}"')


def _json(status: int, value: Any) -> Response:
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def _finite(value: Any) -> Any:
    """NaN and infinity, which JSON lacks, as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _no_link() -> Response:
    return _words(
        403,
        "This page needs its link",
        "Open the link that `python -m orchestrator web` printed, on this device too: it ends in ?token=… and may have "
        "changed since it was opened here.",
    )


def _words(status: int, title: str, text: str) -> Response:
    """A page of words, for a person."""
    body = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="stylesheet" href="style.css"></head>'
        f'<body class="plain"><main class="words"><h1>{escape(title)}</h1><p>{escape(text)}</p></main></body></html>'
    )
    return Response(body, status, media_type="text/html; charset=utf-8")
