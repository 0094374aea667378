"""Run programs from standard input: `python -m workers.sandbox < cases.jsonl > results.jsonl`.

Each line is {"id", "program", "input"}: the program defines f (or the name in "entry"), the input is the source text of
its arguments. Each is answered, in input order, by {"id", "status", "output"}; the output is the value's literal text.
`python -m workers.sandbox serve` answers over HTTP instead, and has a help text of its own.
"""

from __future__ import annotations

import argparse
import sys

from profiles.errors import LonghaulError
from workers.sandbox import Limits, Sandbox, filter, probe
from workers.sandbox.limits import LAYERS
from workers.sandbox.server import command


def main(arguments: list[str] | None = None) -> int:
    """Return exit code 0, or the error's own code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["serve"]:
        return _serve(given[1:])
    options = _parser().parse_args(given)
    if options.layers:
        (probe.as_json if options.json else probe.table)(probe.layers(), sys.stdout.write)
        return 0
    try:
        limits = Limits(
            cpu_s=options.cpu,
            wall_s=options.wall,
            memory_mb=options.memory,
            modules=tuple(options.module),
            require=tuple(options.require or Limits().require),
            allow_weak=options.allow_weak,
        )
        with Sandbox(limits, jobs=options.jobs) as sandbox:
            stats = filter.run(sandbox, sys.stdin.fileno(), sys.stdout.fileno())
    except LonghaulError as error:
        sys.stderr.write(error.render() + "\n")
        return int(error.exit_code)
    if options.stats:
        sys.stderr.write(stats.line() + "\n")
    return 0


def _serve(arguments: list[str]) -> int:
    try:
        return command.main(arguments)
    except LonghaulError as error:
        sys.stderr.write(error.render() + "\n")
        return int(error.exit_code)


def _parser() -> argparse.ArgumentParser:
    defaults = Limits()
    parser = argparse.ArgumentParser(prog="python -m workers.sandbox", description=__doc__)
    add = parser.add_argument
    add("--jobs", type=int, default=2, metavar="N", help="programs side by side (default 2)")
    add("--cpu", type=float, default=defaults.cpu_s, metavar="S", help="CPU seconds of a program (default %(default)s)")
    add("--wall", type=float, default=defaults.wall_s, metavar="S", help="wall seconds (default %(default)s)")
    add("--memory", type=int, default=defaults.memory_mb, metavar="MIB", help="address space (default %(default)s)")
    add("--module", action="append", default=[], metavar="NAME", help="one more module that programs may import")
    add(
        "--require",
        action="append",
        choices=LAYERS,
        default=None,
        help="a layer that must hold; may be repeated (default: landlock, seccomp)",
    )
    add("--allow-weak", action="store_true", help="run although a required layer is missing")
    add("--stats", action="store_true", help="one line of counts at the end, on standard error")
    add("--layers", action="store_true", help="try each layer of this machine, print the table and leave")
    add("--json", action="store_true", help="with --layers: as JSON")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
