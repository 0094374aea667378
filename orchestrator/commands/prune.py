"""Delete old checkpoints of a stopped run, and say which.

The head, --keep of its ancestors, the best of each suite and the ends of every Nth cycle stay, and always two that are
verified.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import closing

from msgspec.structs import replace

from orchestrator.commit import Ledger
from orchestrator.display.wording import size
from orchestrator.runs import find_run
from profiles.errors import ExitCode
from profiles.load import from_json
from state.lock import RunLock
from state.reader import Reader
from state.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", type=int, metavar="N", help="ancestors of the head that stay (the profile's)")
    parser.add_argument("--keep-every", type=int, metavar="N", help="ends of every Nth cycle stay (the profile's)")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    found = find_run(args)
    lock = RunLock.acquire(found)
    try:
        with closing(Store.open(found)) as store, closing(Reader.open(found)) as reader:
            rule = from_json(reader.profile_json()).retention
            if args.keep is not None:
                rule = replace(rule, keep_ancestors=max(1, args.keep))
            if args.keep_every is not None:
                rule = replace(rule, keep_every=max(0, args.keep_every))
            ledger = Ledger(found, store, reader, rule)
            doomed = ledger.doomed()
            if not args.dry_run:
                ledger.prune()
    finally:
        lock.release()
    total = sum(facts.bytes for facts in doomed)
    if args.json:
        gone = [{"path": facts.path, "step": facts.step, "bytes": facts.bytes} for facts in doomed]
        sys.stdout.write(json.dumps({"dry_run": args.dry_run, "checkpoints": gone, "bytes": total}) + "\n")
        return int(ExitCode.OK)
    for facts in doomed:
        sys.stdout.write(f"{'would delete' if args.dry_run else 'deleted'} {facts.path} ({size(facts.bytes)})\n")
    sys.stdout.write(f"{len(doomed)} checkpoints, {size(total)}{' would be' if args.dry_run else ''} free\n")
    return int(ExitCode.OK)
