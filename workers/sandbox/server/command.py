"""Judge programs over HTTP, for the clients of open-instruct and of verl (SandboxFusion).

Prints its address, with the secret in the path, on standard output when it is ready. Ends on SIGTERM or Ctrl+C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import secrets
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiles.errors import ExitCode, LonghaulError
from workers.process import die_with_parent
from workers.sandbox.lanes import Lanes
from workers.sandbox.limits import LAYERS, Limits

if TYPE_CHECKING:
    import uvicorn

NEEDED = ("starlette", "uvicorn")
SECRET_BYTES = 16
LEAST_SECRET = 16
"""Minimum length of a user-supplied secret, in characters."""
SPARE_FILES = 256
"""File descriptors reserved for zygotes, pipes and libraries; connections may use the rest."""
BACKLOG = 4096
"""Connections that the kernel queues until they are accepted."""
IDLE_S = 60.0
"""Interval of the idle check, in seconds. A connection idle at two checks in a row is closed."""


def main(arguments: list[str]) -> int:
    """Serve until asked to stop; returns the exit code (0 after one signal). Raises LonghaulError."""
    options = _parser().parse_args(arguments)
    if options.with_parent:
        die_with_parent()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise _refused(f"the code server needs {' and '.join(missing)}", 'pip install "longhaul[server]"')
    try:
        limits = Limits(
            cpu_s=options.most_seconds,
            wall_s=options.most_seconds,
            memory_mb=options.memory,
            modules=tuple(options.module),
            scripts=True,
            require=tuple(options.require or Limits().require),
            allow_weak=options.allow_weak,
        )
    except ValueError as error:
        raise _refused(str(error), "python -m workers.sandbox serve --help") from error
    if not 0 <= options.port < 1 << 16:
        raise _refused(f"--port {options.port} is not between 0 and 65535", "python -m workers.sandbox serve --port 0")
    if options.jobs < 1 or options.connections < 1:
        raise _refused("--jobs and --connections must be at least 1", "python -m workers.sandbox serve --help")
    secret = _secret(options.secret_file)
    connections = _connections(options.connections)
    with contextlib.closing(_listener(options.host, options.port)) as listener:
        lanes = Lanes(limits, [0] * options.jobs)
        try:
            if lanes.modules_failed:
                name, why = next(iter(lanes.modules_failed.items()))
                raise _refused(f"module {name} cannot be loaded: {why}", "leave it out of --module, or install it")
            return asyncio.run(_serve(listener, lanes, options, secret, connections))
        finally:
            lanes.close()


async def _serve(
    listener: socket.socket, lanes: Lanes, options: argparse.Namespace, secret: str, connections: int
) -> int:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    from workers.sandbox.server.app import CodeServer, Grants
    from workers.sandbox.server.dispatcher import Dispatcher

    class Server(uvicorn.Server):
        """Leaves signal handling to us: uvicorn would re-raise the signal, but we want exit code 0."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    class Bounded(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """Closes connections beyond the limit immediately, without reading a request."""

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= connections:
                server.tally.count("turned_away")
                transport.abort()
            else:
                super().connection_made(transport)

    dispatcher = Dispatcher(lanes)
    server = CodeServer(dispatcher, Grants(options.most_seconds, options.memory), secret)
    listening = Server(
        uvicorn.Config(
            server,
            http=Bounded,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # nobody asks where a request came from
            log_config=None,
            access_log=False,  # it would log the secret
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=5,
        )
    )
    asked: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        asked.append(number)
        dispatcher.stop()
        listening.should_exit = True
        listening.force_exit = len(asked) > 1

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if listener.family == socket.AF_INET6 else host
    announcer = asyncio.create_task(_announce(listening, f"http://{shown}:{port}/{secret}"))
    closer = asyncio.create_task(_close_idle(listening))
    await listening.serve(sockets=[listener])
    announcer.cancel()
    closer.cancel()
    dispatcher.close()
    return int(ExitCode.ABORTED if len(asked) > 1 else ExitCode.OK)


async def _announce(server: uvicorn.Server, address: str) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    sys.stdout.write(f"code server: {address}\n")
    sys.stdout.flush()


async def _close_idle(server: uvicorn.Server) -> None:
    """Close connections without a request at two checks in a row: anyone can open them without the secret."""
    silent: set[Any] = set()
    while True:
        await asyncio.sleep(IDLE_S)
        now: set[Any] = {one for one in server.server_state.connections if getattr(one, "cycle", None) is None}
        for connection in now & silent:
            connection.transport.close()
        silent = now


def _listener(host: str, port: int) -> socket.socket:
    """A listening socket. Raises LonghaulError if it cannot be opened."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _refused(f"cannot listen on {host}, port {port}: {error}", "name another with --host, --port") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        code = ExitCode.PERMISSION if isinstance(error, PermissionError) else ExitCode.INPUT
        why = f"cannot listen on {host}, port {port}: {error}"
        shown = f"python -m workers.sandbox serve --port 0   # a free port; `ss -ltnp` shows who has {port}"
        raise _refused(why, shown, code) from error
    return listener


def _secret(path: Path | None) -> str:
    """The secret from the file, which is created with a new one if missing. Raises LonghaulError."""
    fresh = secrets.token_urlsafe(SECRET_BYTES)
    if path is None:
        return fresh
    try:
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(f"{fresh}\n")
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise _refused(f"{path} can be read by others", f"chmod 600 {path}", ExitCode.PERMISSION)
        found = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(f"the secret cannot be read from {path}: {error}", "name another --secret-file") from error
    if len(found) < LEAST_SECRET or not all(one.isascii() and (one.isalnum() or one in "-_") for one in found):
        rule = f"{LEAST_SECRET} or more letters, digits, - and _"
        raise _refused(f"{path} holds no secret ({rule})", f"rm {path}   # the next start makes a new one")
    return found


def _connections(asked: int) -> int:
    """Raise the descriptor limit to the hard limit; returns the number of connections that it allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, min(asked, hard - SPARE_FILES))


def _refused(what: str, next_command: str, code: ExitCode = ExitCode.INPUT) -> LonghaulError:
    return LonghaulError(what, kept="nothing was started", next_command=next_command, exit_code=code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workers.sandbox serve", description=__doc__)
    add = parser.add_argument
    add("--port", type=int, required=True, metavar="P", help="port to listen on; 0: any free one, which is printed")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: this machine alone)")
    add("--secret-file", type=Path, metavar="FILE", help="file with the secret of the path; made if it is not there")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="programs side by side (default: CPUs)")
    add(
        "--most-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="the most that a request may ask for (%(default)s)",
    )
    add("--memory", type=int, default=1024, metavar="MIB", help="address space of a program (default %(default)s)")
    add("--module", action="append", default=[], metavar="NAME", help="one more module that programs may import")
    add("--connections", type=int, default=16_384, metavar="N", help="open at once; more are closed (%(default)s)")
    add("--require", action="append", choices=LAYERS, help="a layer that must hold (default: landlock, seccomp)")
    add("--allow-weak", action="store_true", help="run although a required layer is missing")
    add("--with-parent", action="store_true", help="die at once when the process that started this one is gone")
    return parser
