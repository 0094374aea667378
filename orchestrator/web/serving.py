"""Serves the page until it is asked to stop: the port, the token, the addresses that it is reached by."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from state import durable

TOKEN_BYTES = 24
LEAST_TOKEN = 24
"""Characters; a shorter one was written by hand."""
BACKLOG = 128
CONNECTIONS = 200
"""At once; a further one hears that the page is busy."""


@dataclass(frozen=True)
class Where:
    """host: as given. port: the real one. addresses: what to type into a browser, the best first."""

    host: str
    port: int
    addresses: tuple[str, ...]


def token_of(path: Path, *, is_new: bool = False) -> str:
    """The token in the file, which is made if it is not there. is_new: make another one; old links are void then.

    Raises LonghaulError: INPUT for a file that is no token, PERMISSION for one that others may read.
    """
    if is_new or not path.exists():
        durable.make_dir(path.parent)
        durable.write_file(path, f"{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode())
    way = "python -m orchestrator web --new-token"
    try:
        mode, text = path.stat().st_mode, path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(f"the token in {path} cannot be read: {error}", way, ExitCode.PERMISSION) from error
    if stat.S_IMODE(mode) & 0o077:
        raise _refused(f"others may read the token in {path}", f"{way}   (makes another)", ExitCode.PERMISSION)
    if len(text) < LEAST_TOKEN or not text.isascii() or not text.isprintable():
        raise _refused(f"{path} holds no token", f"{way}   (makes another)", ExitCode.INPUT)
    return text


class Token:
    """The token in a file, as it is now: `--new-token` of another page voids the links of this one too."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """As `token_of`, and raises what it does."""
        self._path, self._text = path, token_of(path, is_new=is_new)
        self._seen: tuple[int, int] | None = None

    def __call__(self) -> str:
        """The last one that could be read, where the file is gone or no token."""
        if (seen := _version(self._path)) not in (self._seen, None):
            with contextlib.suppress(LonghaulError):
                self._text = token_of(self._path)
            self._seen = seen
        return self._text


def _version(path: Path) -> tuple[int, int] | None:
    """Changes when the file is replaced. None if there is no file."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises LonghaulError if it cannot be opened, with another port to try."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _refused(f"cannot listen on {host}: {error}", "python -m orchestrator web", ExitCode.INPUT) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise _not_bound(host, port, error) from error
    return listener


def _not_bound(host: str, port: int, error: OSError | OverflowError) -> LonghaulError:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        way = f"python -m orchestrator web --port {port + 1 if port < 65535 else 0}   (`ss -ltnp` shows who has {port})"
        return _refused(f"port {port} is taken, perhaps by another page of Longhaul", way, ExitCode.INPUT)
    if number == errno.EADDRNOTAVAIL:
        return _refused(f"{host} is no address of this machine", "python -m orchestrator web", ExitCode.INPUT)
    code = ExitCode.PERMISSION if isinstance(error, PermissionError) else ExitCode.INPUT
    return _refused(f"cannot listen on {host}, port {port}: {error}", "python -m orchestrator web --port 0", code)


def _refused(what: str, next_command: str, code: ExitCode) -> LonghaulError:
    return LonghaulError(what, kept="every run; nothing was started", next_command=next_command, exit_code=code)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. (pure, but for names)"""
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def where(host: str, listener: socket.socket) -> Where:
    bound, port = listener.getsockname()[:2]
    if not ip_address(bound).is_unspecified:
        return Where(host, port, (in_address(bound),))
    found = [one for one in own_addresses(listener.family) if not is_loopback(one)]
    return Where(host, port, (*map(in_address, found), in_address("::1" if ":" in bound else "127.0.0.1")))


def in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def own_addresses(family: int) -> list[str]:
    """Addresses of this machine's interfaces, without those of a link alone."""
    import psutil

    found = [one.address for all_of in psutil.net_if_addrs().values() for one in all_of if one.family == family]
    return [one for one in dict.fromkeys(found) if "%" not in one]


def own_names() -> frozenset[str]:
    """By which a browser may call this machine."""
    name = socket.gethostname().lower()
    return frozenset({name, f"{name}.local"})


def serve(listener: socket.socket, folder: Path, token: Token, names: frozenset[str], ready: Callable[[], None]) -> int:
    """Serve until SIGINT or SIGTERM. ready: called once connections are accepted. Returns the exit code."""
    return asyncio.run(_serve(listener, folder, token, names, ready))


async def _serve(
    listener: socket.socket, folder: Path, token: Token, names: frozenset[str], ready: Callable[[], None]
) -> int:
    import uvicorn

    from orchestrator.web.app import Access, served
    from orchestrator.web.desk import Desk

    class Server(uvicorn.Server):
        """Leaves signal handling to us: uvicorn would re-raise the signal, but we want exit code 0."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    desk = Desk(folder)
    server = Server(
        uvicorn.Config(
            served(desk, Access(token, listener.getsockname()[1], names)),
            lifespan="off",
            ws="none",
            proxy_headers=False,  # nobody asks where a request came from
            log_config=None,
            access_log=False,  # it would log the token
            server_header=False,
            date_header=True,
            backlog=BACKLOG,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
        )
    )

    def end(number: signal.Signals) -> None:
        server.force_exit = server.should_exit  # a second signal does not wait for open connections
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    announcer = asyncio.create_task(_announce(server, ready))
    await server.serve(sockets=[listener])
    announcer.cancel()
    await desk.close()
    return int(ExitCode.OK)


async def _announce(server: object, ready: Callable[[], None]) -> None:
    while not getattr(server, "started", False):
        await asyncio.sleep(0.01)
    ready()
