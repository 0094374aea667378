"""Test reward functions of your own on rows and completions, and say what most often goes wrong.

  test FILE.py            every function of the file that looks like a reward
  test FILE.py:NAME ...   these ones; MODULE:NAME where Python finds the module

Without --completions each row gets three: its own answer in a box, an empty text and a wrong answer. Without --data the
rows are built-in word problems. Nothing is trained. See docs/extending.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.data_sets.render import Progress
from orchestrator.display.wording import count, duration, harmless, percent
from orchestrator.line_worker import started
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Data
from workers.line_contract import RewardsSpec, RewardsTested

KEPT = "everything; nothing is trained"
ROWS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("test",), metavar="ACTION", help="test")
    parser.add_argument("functions", nargs="+", metavar="FILE[:NAME]", help="a file or module, or a function of it")
    parser.add_argument("--data", metavar="FILE", help="rows, with all columns (built-in word problems)")
    parser.add_argument("--profile", metavar="NAME|FILE", help="take the data and its columns from a profile")
    parser.add_argument(
        "--completions",
        type=Path,
        metavar="FILE",
        help='lines {"row" or "prompt", "completion"}: a row\'s line or prompt, and a text or a list of texts',
    )
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"the first N rows; 0: all ({ROWS})")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="time limit of a call (60)")
    parser.add_argument("--memory", type=float, default=4.0, metavar="GIB", help="memory limit of the functions (4)")
    parser.add_argument("--threads", type=int, default=16, metavar="N", help="calls side by side (16)")


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    refuse_nonsense(args)
    folder = Path(tempfile.mkdtemp(prefix="longhaul-rewards-"))
    progress = Progress(sys.stderr if args.json else sys.stdout)
    facts: dict[str, Any] = {}
    try:
        with started("workers.reward_test", spec_of(args, folder), name="reward test", kept=KEPT) as worker:
            for message in worker.hear():
                progress.hear(message)
                if isinstance(message, RewardsTested):
                    facts = message.report
    except KeyboardInterrupt:
        progress.say("stopped")
        return 130
    finally:
        with suppress(OSError):  # it stays if a call failed, or a function printed something
            folder.rmdir()
    sys.stdout.write(json.dumps(facts, indent=2) + "\n" if args.json else render(facts))
    return ExitCode.REWARD if any(one["exceptions"] for one in facts["functions"]) else ExitCode.OK


def spec_of(args: argparse.Namespace, folder: Path) -> RewardsSpec:
    """Raises LonghaulError (INPUT) for a profile that cannot be read."""
    from profiles.load import load_profile

    of_profile = load_profile(args.profile).profile.data if args.profile else Data()
    columns, data = of_profile.columns, args.data or next(iter(of_profile.names), "")
    return RewardsSpec(
        functions=tuple(args.functions),
        cwd=str(Path.cwd()),
        data=str(Path(data).absolute()) if data and Path(data).exists() else data,
        completions=str(args.completions.absolute()) if args.completions else "",
        rows=args.rows,
        columns=columns,
        folder=str(folder),
        timeout_s=args.timeout,
        memory_gib=args.memory,
        threads=args.threads,
    )


def refuse_nonsense(args: argparse.Namespace) -> None:
    """Raises LonghaulError (USAGE)."""
    checks = (
        (args.rows >= 0, f"--rows {args.rows}: 0 (all) or more"),
        (args.timeout > 0, f"--timeout {args.timeout:g}: more than 0"),
        (args.memory > 0, f"--memory {args.memory:g}: more than 0"),
        (0 < args.threads <= 256, f"--threads {args.threads}: 1 to 256"),
    )
    for is_fine, text in checks:
        if not is_fine:
            next_command = "python -m orchestrator rewards --help"
            raise LonghaulError(text, kept=KEPT, next_command=next_command, exit_code=ExitCode.USAGE)


def render(facts: Mapping[str, Any]) -> str:
    """The table, and below it what is odd. (pure)"""
    about = "each row's own answer, an empty text and a wrong answer" if facts["obvious"] else "given"
    rows: list[tuple[str, ...]] = [("function", "mean", "spread", "equal groups", "slowest row", "exceptions")]
    rows += [cells_of(one) for one in facts["functions"]]
    lines = [f"{count(facts['rows'])} rows, {count(facts['completions'])} completions ({about})", *table(rows)]
    lines += [f"exception  {one['first_exception']}" for one in facts["functions"] if one["exceptions"]]
    lines += [f"note       {line}" for line in facts["advice"]]
    return "".join(harmless(line.rstrip()) + "\n" for line in lines)


def cells_of(one: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = one["slowest_s"]
    took = duration(seconds) if seconds >= 1 else f"{seconds * 1000:.1f} ms"
    return (
        one["function"],
        "?" if one["mean"] is None else f"{one['mean']:.3f}",
        "?" if one["spread"] is None else f"{one['spread']:.3f}",
        percent(one["equal_groups"]),
        f"{one['slowest_row']} ({took})",
        count(one["exceptions"]),
    )


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
