"""`plan --import`: a YAML of open-instruct read, what is wrong with it told, and the corrected files written."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.cluster_plan import Cluster, least_hosts, refusals
from orchestrator.cluster_text import facts, head, listed, plan_text, verdict
from orchestrator.display.wording import harmless
from orchestrator.job_time import SLOWEST_DISK, JobTime, asked_time
from orchestrator.judging import shape_for
from orchestrator.machine import this_machine
from orchestrator.open_instruct.as_profile import open_instruct_toml, verl_toml
from orchestrator.open_instruct.findings import Reading, read_for
from orchestrator.open_instruct.render import corrected_yaml, stops
from orchestrator.path_errors import writing
from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB
from profiles.open_instruct.document import read, value
from profiles.open_instruct.options import UPSTREAM_COMMIT
from profiles.refusal import input_error
from profiles.schema import Model
from profiles.shapes import PUBLISHED, Shape
from state import durable

START_S = 1200.0
"""Upper end of what the guide says of its own start."""
SAVED_BYTES = 14
"""Of a parameter: weights in 16 bits, their float32 copy, two moments."""


def import_guide(args: argparse.Namespace) -> int:
    """Print the findings and write the files; the exit code says whether the corrected job fits."""
    path = Path(args.guide)
    settings = read(path)
    shape = counted_shape(value(settings, "model_name_or_path"), "model_name_or_path")
    again = f"--import {shlex.quote(args.guide)} --hosts {args.hosts} --gpus {args.gpus}"
    cluster = Cluster(args.hosts, args.gpus, card_bytes(args, again))
    reading = read_for(settings, shape, cluster, time_of(args, shape, args.hosts, START_S, 0))
    job = reading.job
    profile, why_none = _as_profile(reading, path) if job is not None else ("", "")
    written = _write(reading, profile, path, args.out) if job is not None and args.out is not None else []
    if args.json:
        sys.stdout.write(json.dumps(_facts(reading, written, why_none), indent=2) + "\n")
    else:
        said = told(reading, path, explain=args.explain)
        said += f"no profile for verl: {why_none}\n" if why_none else ""
        sys.stdout.write(said + _about_files(reading, written))
    return int(ExitCode.OK if job is not None and not refusals(job) else ExitCode.CUDA_OOM)


def _as_profile(reading: Reading, path: Path) -> tuple[str, str]:
    """Text of the profile, or why there is none."""
    try:
        return verl_toml(reading, harmless(path.name)), ""
    except LonghaulError as error:
        return "", error.what


def counted_shape(model: str, name: str) -> Shape:
    """The shape of the model that `name` says. Raises LonghaulError (INPUT)."""
    shape = shape_for(Model(path=model)) if model else None
    if shape is not None and shape.is_counted:
        return shape
    why = "names no model" if not model else "has no config.json here, and is not a published name that is known"
    if shape is not None:
        why = "is of a family without a record (profiles/families), so its parameters cannot be counted"
    raise input_error(
        f"{name} {harmless(model)!r} {why}\n  known without a file: {', '.join(sorted(PUBLISHED))}",
        f"download the model and set {name} to its folder, or correct the name",
    )


def card_bytes(args: argparse.Namespace, again: str) -> int:
    """Of one GPU of the cluster. again: the command's words, for the refusal. Raises LonghaulError (GPU)."""
    if args.card:
        return int(args.card * GIB)
    machine = this_machine()
    if machine.card is not None:
        return machine.card.total_bytes
    raise LonghaulError(
        f"no GPU is known here whose size could be taken for those of the cluster: {harmless(machine.why)}",
        kept="nothing was written",
        next_command=f"python -m orchestrator plan {again} --card 95.6   (GiB of one GPU, by nvidia-smi there)",
        exit_code=ExitCode.GPU,
    )


def time_of(
    args: argparse.Namespace, shape: Shape, hosts: int, start_s: float, time_limit_minutes: int
) -> JobTime | None:
    """start_s, time_limit_minutes: where the command line has none; 0: without a limit."""
    return asked_time(
        args, time_limit_minutes, start_s=start_s, save_s=SAVED_BYTES * shape.parameters / (SLOWEST_DISK * hosts)
    )


# --- what is said -----------------------------------------------------------------------------------------------------


def told(reading: Reading, path: Path, *, explain: bool) -> str:
    """The findings, then the corrected job. (pure)"""
    as_is, job = reading.as_is, reading.job
    lines = [f"{harmless(str(path))}: {head(as_is)}", "", f"as it is {verdict(as_is, refusals(as_is))}", ""]
    count = f"{len(reading.faults)} finding{'s' * (len(reading.faults) != 1)}"
    lines += [count + (":" if reading.faults else ""), *([_numbered(reading)] if reading.faults else []), ""]
    if job is None:
        hosts = least_hosts(as_is)
        fits = f"{hosts} hosts would do" if hosts else "no number of such hosts up to 64 would do"
        lines.append(f"corrected refused: no layout of these GPUs fits this job; {fits}")
    else:
        lines += [
            "corrected:",
            plan_text(job, explain=explain),
            stops(reading),
        ]
    return "\n".join(lines) + "\n"


def _numbered(reading: Reading) -> str:
    rows = []
    for number, fault in enumerate(reading.faults, 1):
        now = ", ".join(f"{name}: {one}" for name, one in fault.becomes.items())
        rows.append((f"{number} {fault.name}", fault.text))
        if now:
            rows.append(("", f"-> {now}".replace("True", "true").replace("False", "false")))
    return listed(rows)


def _about_files(reading: Reading, written: list[Path]) -> str:
    if written:
        return f"written: {', '.join(map(str, written))} (open-instruct {UPSTREAM_COMMIT[:8]})\n"
    if reading.fit is None:
        return ""
    return "next:  the same command with --out DIR writes the corrected YAML and profiles that train by it\n"


def _facts(reading: Reading, written: list[Path], why_none: str) -> Mapping[str, Any]:
    job = reading.job
    return {
        "as_it_is": facts(reading.as_is),
        "findings": [
            {"name": fault.name, "text": fault.text, "becomes": dict(fault.becomes)} for fault in reading.faults
        ],
        "corrected": facts(job) if job is not None else None,
        "settings": dict(reading.corrected) if job is not None else None,
        "least_hosts": None if job is not None else least_hosts(reading.as_is),
        "no_profile": why_none,
        "written": [str(path) for path in written],
    }


# --- what is written --------------------------------------------------------------------------------------------------


def _write(reading: Reading, profile: str, source: Path, folder: Path) -> list[Path]:
    """Never over a file that is there; an empty profile is left out. Raises LonghaulError (INPUT, or of the disk)."""
    corrected, name = f"{source.stem}-corrected.yaml", harmless(source.name)
    texts = {
        corrected: corrected_yaml(reading, name),
        f"{source.stem}-open-instruct.toml": open_instruct_toml(reading, name, (folder / corrected).absolute()),
    }
    if profile:
        texts[f"{source.stem}-verl.toml"] = profile
    there = [name for name in texts if (folder / name).exists()]
    if there:
        raise input_error(
            f"{folder / there[0]} is there already, and an import never writes over a file",
            "the same command with another --out",
        )
    kept = "everything; the YAML is unchanged"
    with writing(folder, kept):
        durable.make_dir(folder)
    for name, text in texts.items():
        with writing(folder / name, kept):
            durable.write_new_file(folder / name, text.encode())
    durable.fsync_dir(folder)
    return [folder / name for name in texts]
