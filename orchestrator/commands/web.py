"""Serve a page of all runs: curves, events, tasks and rollouts, live, for a browser or a phone.

Read-only, on this machine alone unless --host names an address. The link that it prints holds a token: whoever has the
link may read every run in the folder, the texts of its rollouts among them. Ctrl+C ends the page; runs go on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from importlib.util import find_spec
from urllib.parse import quote

from orchestrator.display.wording import among, harmless
from orchestrator.runs import find_run
from orchestrator.web import serving
from profiles.errors import ExitCode, LonghaulError
from state.layout import web_token

PORT = 8642
NEEDED = ("starlette", "uvicorn")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--port", type=int, default=PORT, metavar="P", help="port to listen on (%(default)s); 0: any free one")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (this machine alone)")
    add(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        dest="names",
        help="a name by which browsers reach this machine, such as that of a proxy; may be repeated",
    )
    add("--new-token", action="store_true", help="make another token; links and browsers that had the old one are out")


def run(args: argparse.Namespace) -> int:
    refuse_missing()
    if not 0 <= args.port < 1 << 16:
        raise LonghaulError(
            f"--port {args.port} is not between 0 and 65535",
            kept="every run; nothing was started",
            next_command="python -m orchestrator web",
            exit_code=ExitCode.USAGE,
        )
    if args.run is not None:
        find_run(args)  # an unknown name is refused with those that there are
    with contextlib.closing(serving.listen(args.host, args.port)) as listener:
        token = serving.Token(web_token(args.runs), is_new=args.new_token)
        where = serving.where(args.host, listener)
        names = serving.own_names() | {name.lower() for name in args.names}
        return serving.serve(listener, args.runs, token, names, lambda: announce(args, where, token()))


def refuse_missing() -> None:
    """Raises LonghaulError (INPUT) if the extra is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise LonghaulError(
            f"the page needs {' and '.join(missing)}, which the extra `server` installs",
            kept="every run; nothing was started",
            next_command='.venv/bin/python -m pip install "starlette>=0.46" "uvicorn>=0.34"   (the extra `server`)',
            exit_code=ExitCode.INPUT,
        )


def announce(args: argparse.Namespace, where: serving.Where, token: str) -> None:
    links = [link(address, where.port, token, args.run) for address in (*args.names, *where.addresses)]
    is_open = not serving.is_loopback(args.host)
    if args.json:
        facts = {"url": links[0], "urls": links, "port": where.port, "runs": str(args.runs), "open": is_open}
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.write(among(args.runs, text(args, where, links, is_open=is_open)))
    sys.stdout.flush()


def link(address: str, port: int, token: str, run: str | None) -> str:
    return f"http://{address}:{port}/?token={token}" + (f"#/{quote(run, safe='')}" if run else "")


def text(args: argparse.Namespace, where: serving.Where, links: list[str], *, is_open: bool) -> str:
    first, *others = links
    lines = [f"page: {first}", *(f"      {other}" for other in others)]
    lines.append(f"It shows the runs in {harmless(str(args.runs))}, read-only. Ctrl+C ends the page; runs go on.")
    if is_open:
        lines += [
            f"warning: anyone who reaches port {where.port} of this machine and has the link can read every run, its "
            "tasks and rollouts.",
            "warning: nothing is encrypted: whoever listens on the network can read the link. Use a network that you "
            "trust, or a tunnel.",
        ]
    else:
        lines.append(
            f"From another machine: ssh -L {where.port}:127.0.0.1:{where.port} THIS-MACHINE, then open the link there."
        )
    return "".join(f"{line}\n" for line in lines)
