"""Export a checkpoint as an adapter, a merged model, or a model that llama.cpp can convert.

The directory appears only once it is complete; an existing one must be empty. See docs/using.md.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace

from orchestrator.commands.run import program_version
from orchestrator.display.wording import harmless, size
from orchestrator.evaluation.target import Chosen, choose_checkpoint
from orchestrator.line_worker import started
from orchestrator.path_errors import writing
from orchestrator.reading import held
from orchestrator.runs import find_run
from profiles.errors import ExitCode, LonghaulError
from state import durable
from state.crash import crash_point
from workers.line_contract import ExportSpec, Loading, Said, Wrote

KEPT = "the checkpoint, unchanged; nothing was exported"
CONVERT = "python convert_hf_to_gguf.py {out} --outfile {out}.gguf --outtype {kind}"
"""The script is in llama.cpp's repository."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_mutually_exclusive_group(required=True)
    for kind, text in (
        ("adapter", "only the adapter, in peft's format"),
        ("merged", "a plain model directory with the adapter merged into the base, nothing in 4 bits"),
        ("gguf-ready", "the same in 16 bits, with every file that llama.cpp's converter needs"),
    ):
        kinds.add_argument(f"--{kind}", action="store_const", const=kind, dest="kind", help=text)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a directory that is empty or does not exist"
    )
    parser.add_argument("--checkpoint", default="latest", metavar="WHICH", help="latest, best, a step, a path (latest)")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "float16", "bfloat16"),
        default="auto",
        help="dtype of merged weights (as in the run's memory; gguf-ready: bfloat16)",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="device to load the model on (as in the run)")


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    out = Path(os.path.abspath(args.out))  # noqa: PTH100 - a link is refused, not followed
    refuse_what_is_there(out)
    run_dir = find_run(args)
    chosen = choose_checkpoint(run_dir, args.checkpoint, "export")
    with held(run_dir, chosen) as directory, half_made(out) as half:
        spec = spec_of(args, chosen, directory, half, out)
        with started("workers.export", spec, name="export", kept=KEPT) as worker:
            for message in worker.hear():
                tell(message)
        crash_point("export.before_rename")
        publish(half, out)
    facts = json.loads((out / "export.json").read_bytes())
    if args.json:
        sys.stdout.write(json.dumps({"out": str(out)} | facts) + "\n")
        return 0
    total = sum(path.stat().st_size for path in out.iterdir())
    sys.stdout.write(f"step {chosen.target.step} of run {harmless(chosen.target.name)}: {size(total)} in {out}\n")
    if command := facts.get("convert"):
        sys.stdout.write(f"convert it with llama.cpp's script:\n  {command}\n")
    return 0


def tell(message: Said) -> None:
    """Print progress to standard error."""
    match message:
        case Loading():
            sys.stderr.write("loading the model ...\n")
        case Wrote(name=name) if name.endswith(".safetensors"):
            sys.stderr.write(f"wrote {harmless(name)} ({size(message.bytes)})\n")
    sys.stderr.flush()


def spec_of(args: argparse.Namespace, chosen: Chosen, directory: Path, half: Path, out: Path) -> ExportSpec:
    profile, target = chosen.profile, chosen.target
    if args.device:
        profile = replace(profile, run=replace(profile.run, device=args.device))
    assert target.step is not None
    source: dict[str, Any] = {
        "run": target.name,
        "step": target.step,
        "checkpoint_id": target.identity,
        "longhaul": program_version(),
    }
    if args.kind == "gguf-ready":
        source["convert"] = CONVERT.format(out=out, kind="f16" if args.dtype == "float16" else "bf16")
    return ExportSpec(
        kind=args.kind,
        directory=str(directory.resolve()),
        step=target.step,
        out=str(half),
        profile=profile,
        dtype=args.dtype,
        source=source,
    )


def refuse_what_is_there(out: Path) -> None:
    """Raises LonghaulError (INPUT) unless `out` is free or an empty directory."""
    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        why = "exists and is not a directory"
    elif any(out.iterdir()):
        why = "is not empty"
    else:
        return
    raise LonghaulError(
        f"{out} {why}; an export never overwrites anything",
        kept="everything; nothing was exported",
        next_command=f"ls -l {out}   then the same command with another --out",
        exit_code=ExitCode.INPUT,
    )


@contextmanager
def half_made(out: Path) -> Iterator[Path]:
    """A temporary directory beside `out`, removed at the end of the block. Also removes those of killed commands."""
    with writing(out, KEPT):
        durable.make_dir(out.parent)
    prefix = f".{out.name}.half-"
    for path in out.parent.glob(f"{prefix}*"):
        pid = path.name.removeprefix(prefix).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            durable.remove_tree(path, out.parent)
    half = out.parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    with writing(half, KEPT):
        half.mkdir(mode=0o755)
    try:
        yield half
    finally:
        with suppress(OSError):
            shutil.rmtree(half)


def publish(half: Path, out: Path) -> None:
    """Rename the complete directory to `out`, replacing an empty directory."""
    refuse_what_is_there(out)
    with durable.explained("cannot rename to", out, KEPT):
        with suppress(FileNotFoundError):
            out.rmdir()
        half.chmod(0o755)
        durable.rename_dir(half, out)
