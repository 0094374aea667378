"""Checks the machine before a run. Each finding gives the check, its result and the remedy.

Imports no torch: checks that need the worker's libraries run in a separate process.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil

from orchestrator import judging, preflight
from orchestrator.launchers.environment import without_master
from orchestrator.machine import Machine, this_machine
from orchestrator.packages import PACKAGES
from profiles.built_in import BUILT_IN
from profiles.errors import ExitCode, LonghaulError
from profiles.load import resolved_json
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of
from state import durable, python
from state.lock import is_network

State = Literal["ok", "warn", "fail"]

OLDEST, NEWEST = (3, 11), (3, 14)
"""Supported Python versions; docs/quickstart.md says what was tested with each."""
SQLITE = (3, 37, 0)
"""The first version with STRICT tables."""
FREE_MB = 2048
"""Free disk space that the pocket model needs for checkpoints, logs and reserve; larger models need more."""
MEMORY_MB = 2048
SLOW_FSYNC_S = 0.1
PROBE_TIMEOUT_S = 60.0
SANDBOX = ("workers.sandbox", "--layers", "--json")
SANDBOX_COMMAND = python.command(*SANDBOX)
LIBRARIES_COMMAND = python.command("workers.selftest")
LIBRARIES_TIMEOUT_S = 300.0
"""Imports alone can take a minute on a cold disk."""
CODES = {"cuda": ExitCode.GPU, "self-test": ExitCode.INTERNAL}
"""Exit code of a run if a library check fails; INPUT for the others."""


@dataclass(frozen=True)
class Finding:
    """fail: a run with this profile cannot start or will not last. fix: the remedy, empty if nothing is wrong."""

    check: str
    state: State
    detail: str
    fix: str = ""
    exit_code: ExitCode = ExitCode.OK
    """Exit code with which a run would end."""


def examine(profile: Profile, runs: Path) -> Iterator[Finding]:
    """Run all checks, in the order a run would meet them. Takes some seconds.

    Where another launcher than `local` starts the workers, their GPUs, memory and sandbox are not this machine's.
    """
    yield python_version(sys.version_info[:3])
    yield from packages()
    yield from disk(runs, is_shared=profile.launch.launcher != "local")
    if profile.launch.launcher != "local":
        command = f"python -m orchestrator doctor --cluster --profile {profile.name}"
        yield Finding("workers", "ok", f"started elsewhere by the launcher {profile.launch.launcher}; see: {command}")
        return
    yield memory(psutil.virtual_memory().available >> 20)
    yield gpu(profile.run.device)
    yield from card(profile, this_machine())
    yield from libraries(profile)
    yield from sandbox_layers(profile)


def python_version(version: tuple[int, ...]) -> Finding:
    """(pure)"""
    text = ".".join(map(str, version))
    fix = "install Python {}.{} to {}.{}, then: make clean setup".format(*OLDEST, *NEWEST)
    if version < OLDEST:
        return Finding("python", "fail", f"{text} is too old", fix, ExitCode.INPUT)
    if version[:2] > NEWEST:
        return Finding("python", "warn", f"{text} is newer than any tested version", fix)
    return Finding("python", "ok", text)


def packages() -> Iterator[Finding]:
    """Installed package versions, from their metadata, and SQLite's version."""
    found, missing = [], []
    for name in PACKAGES.values():
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding("packages", "fail", f"not installed: {', '.join(missing)}", "make setup", ExitCode.INPUT)
    else:
        yield Finding("packages", "ok", ", ".join(found))
    if sqlite3.sqlite_version_info < SQLITE:
        fix = "use a Python that was built with SQLite 3.37 or newer"
        yield Finding("sqlite", "fail", f"{sqlite3.sqlite_version} is too old", fix, ExitCode.INPUT)
    else:
        yield Finding("sqlite", "ok", sqlite3.sqlite_version)


def disk(runs: Path, *, is_shared: bool = False) -> Iterator[Finding]:
    """Whether the folder of runs supports durable writes, renames and locks, and has space. is_shared: whether workers
    on other machines have to see it."""
    place = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.is_dir())
    probe = place / f".longhaul-doctor-{os.getpid()}"
    try:
        probe.mkdir()
        began = time.monotonic()
        durable.write_file(probe / "file", b"x" * (1 << 20))
        seconds = time.monotonic() - began
        locks = _lock_excludes(probe / "file")
    except LonghaulError as error:
        yield Finding("disk", "fail", error.what, error.next_command.partition(", then:")[0], error.exit_code)
        return
    except OSError as error:
        fix = f"ls -ld {place}   (it must belong to you and be writable)"
        yield Finding("disk", "fail", f"{place}: {error.strerror}", fix, ExitCode.PERMISSION)
        return
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    slow = seconds > SLOW_FSYNC_S
    yield Finding(
        "disk",
        "warn" if slow else "ok",
        f"{place}: 1 MiB is durable after {seconds * 1000:.0f} ms",
        "checkpoints will be slow; keep runs on a local disk (--runs)" if slow else "",
    )
    if not locks:
        fix = "keep runs on a local disk (--runs): otherwise two masters could write to one run"
        yield Finding("locks", "fail", f"{place}: a lock does not exclude a second lock", fix, ExitCode.LOCKED)
    elif is_shared and not is_network(place):
        fix = "keep runs on a file system that all nodes share (--runs), unless the nodes are this machine"
        yield Finding("disk", "warn", f"{place} is on a file system of this machine alone", fix)
    elif is_network(place) and not is_shared:
        fix = "keep runs on a local disk (--runs): SQLite is not safe on every network file system"
        yield Finding("locks", "warn", f"{place} is on a network file system", fix)
    free = shutil.disk_usage(place).free >> 20
    if free < FREE_MB:
        yield Finding("space", "warn", f"{free} MiB free, {FREE_MB} wanted", f"df -h {place}   (free some space)")
    else:
        yield Finding("space", "ok", f"{free / 1024:.1f} GiB free")


def _lock_excludes(path: Path) -> bool:
    with path.open("rb") as first, path.open("rb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def memory(available_mb: int) -> Finding:
    """(pure)"""
    if available_mb >= MEMORY_MB:
        return Finding("memory", "ok", f"{available_mb / 1024:.1f} GiB available")
    return Finding("memory", "warn", f"{available_mb} MiB available, {MEMORY_MB} wanted", "end other programs")


def gpu(device: str) -> Finding:
    """What the driver reports. Whether torch can use the GPU shows only when a worker starts."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    fix = "install the driver, or use a profile for the CPU: python -m orchestrator run --set run.device=cpu"
    missing: State = "fail" if device == "cuda" else "ok"
    code = ExitCode.GPU if device == "cuda" else ExitCode.OK
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except FileNotFoundError:
        return Finding("gpu", missing, "none (no nvidia-smi)", fix if device == "cuda" else "", code)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("gpu", "fail" if device == "cuda" else "warn", f"nvidia-smi failed: {error}", fix, code)
    return Finding("gpu", "ok", "; ".join(answer.stdout.split("\n")).strip("; "))


def card(profile: Profile, machine: Machine) -> Iterator[Finding]:
    """Whether there are enough GPUs, and each has enough memory for the profile's largest shapes.

    Yields nothing if that cannot be determined.
    """
    gpus = profile.run.cards
    if gpus > 1 and machine.lacks(gpus) and not preflight.on_cpu(profile, machine) and profile.run.device != "cpu":
        there = len(machine.cards or ())
        knob, fewer = preflight.fewer_cards(profile, there)
        fix = f"python -m orchestrator run --profile {profile.name} --set {fewer}"
        yield Finding("gpus", "fail", f"{there} of {gpus} required by {knob}", fix, ExitCode.GPU)
    verdict = judging.judge(profile, machine)
    plan = verdict.plan
    if plan is None or machine.card is None or plan.usable_bytes is None:
        return
    detail = (
        f"{preflight.gib(plan.demand.device)} of {preflight.gib(plan.usable_bytes)} GiB usable of {machine.card.name} "
        f"expected ({plan.demand.worst}); {preflight.rollouts_by(verdict)}"
    )
    plan_command = f"python -m orchestrator plan --profile {profile.name}"
    if plan.fits:
        yield Finding("gpu memory", "warn" if plan.is_tight else "ok", detail, plan_command if plan.is_tight else "")
        return
    fix = f"python -m orchestrator run --profile {profile.name} {preflight.as_words(verdict)}"
    is_refused = verdict.is_refused
    yield Finding(
        "gpu memory",
        "fail" if is_refused else "warn",
        detail,
        fix if verdict.changes else plan_command,
        ExitCode.CUDA_OOM if is_refused else ExitCode.OK,
    )


def libraries(profile: Profile) -> Iterator[Finding]:
    """Try CUDA, peft, bitsandbytes, Triton and a step with a tiny model, in a separate process.

    Yields nothing for a built-in model on a CPU, which needs none of them.
    """
    is_small = profile.model.path in BUILT_IN and profile.model.random_init == "off" and not profile.adapter.rank
    if not worker_kind_of(profile).uses_model or (is_small and profile.run.device != "cuda"):
        return
    try:
        answer = subprocess.run(
            LIBRARIES_COMMAND,
            input=resolved_json(profile),
            capture_output=True,
            timeout=LIBRARIES_TIMEOUT_S,
            check=False,
            env=without_master("doctor", "libraries"),
        )
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("libraries", "fail", f"could not be checked: {error}", "make setup", ExitCode.INTERNAL)
        return
    yield from judge_libraries(answer.stdout.decode("utf-8", "replace").splitlines())
    if answer.returncode:
        words = answer.stderr.decode("utf-8", "replace").strip().splitlines()
        detail = f"the process that checks them ended with {answer.returncode}: {words[-1] if words else 'no message'}"
        yield Finding("libraries", "fail", detail, "make setup", ExitCode.INTERNAL)


def judge_libraries(lines: Sequence[str]) -> Iterator[Finding]:
    """lines: one JSON object per check with name, state, detail and fix; ignores other lines. (pure)"""
    for line in lines:
        try:
            found = json.loads(line)
            name, state, detail, fix = (str(found[key]) for key in ("name", "state", "detail", "fix"))
        except (ValueError, KeyError, TypeError):
            continue
        code = CODES.get(name, ExitCode.INPUT) if state == "fail" else ExitCode.OK
        yield Finding(name, "fail" if state == "fail" else "warn" if state == "warn" else "ok", detail, fix, code)


def sandbox_layers(profile: Profile) -> Iterator[Finding]:
    """Test each sandbox layer with an attack, in a separate process."""
    try:
        answer = subprocess.run(
            SANDBOX_COMMAND,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
            env=without_master("doctor", "sandbox"),
        )
        found = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        fix = "-m " + " ".join(SANDBOX)
        yield Finding(
            "sandbox", "fail", f"the layers could not be tested: {error}", f"python {fix}", ExitCode.PERMISSION
        )
        return
    yield from judge_layers(found, profile)


def judge_layers(found: Sequence[dict[str, Any]], profile: Profile) -> Iterator[Finding]:
    """found: {"name", "holds", "reason"} of each layer. A missing required layer is a failure. (pure)"""
    required = profile.sandbox.require
    barriers = [layer["holds"] for layer in found if layer["name"] in ("landlock", "seccomp")]
    for layer in found:
        name, reason = f"sandbox {layer['name']}", layer["reason"]
        is_barrier = layer["name"] in ("landlock", "seccomp") and not any(barriers)
        if layer["holds"]:
            yield Finding(name, "ok", reason)
        elif profile.sandbox.allow_weak:
            yield Finding(name, "warn", reason, "model-written programs run anyway: [sandbox] allow_weak = true")
        elif layer["name"] in required or is_barrier:
            fix = (
                "run outside a container or on a newer kernel; on a machine without valuable data: "
                "--set sandbox.allow_weak=true"
            )
            yield Finding(name, "fail", reason, fix, ExitCode.PERMISSION)
        else:
            yield Finding(name, "warn", reason, "nothing, unless the profile requires it: other layers hold")
