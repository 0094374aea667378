"""Chooses the target of an evaluation: a checkpoint, protected from pruning while it is read, or a model directory."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import pointers
from profiles.architecture import reason_against
from profiles.built_in import BUILT_IN
from profiles.errors import ExitCode, LonghaulError
from profiles.load import from_json
from profiles.schema import Model, Profile, Sampling
from profiles.worker_kinds import worker_kind_of
from state import durable
from state.checkpoint import Damaged, Manifest, read_manifest
from state.evaluations import EvaluationDir, Target
from state.layout import RunDir
from state.reader import Reader

MOST_DIGITS = 18
"""Longest step number; SQLite's integers have at most nineteen digits."""
MODEL_TOKENS = 1024
"""Longest completion where nothing says another; the built-in models have numbers of their own."""
NOT_NEEDED = ("optimizer", "buffers", "rng", "actor/optim", "actor/extra_state")
"""Beginnings of names of a checkpoint's files that only training reads."""
IDENTITY_FILES = ("*.json", "*.jinja", "*.safetensors")


@dataclass(frozen=True)
class Chosen:
    """A target, with its defaults for the command line."""

    where: EvaluationDir
    target: Target
    directory: Path
    """The checkpoint, which may be pruned by now, or the model."""
    profile: Profile
    suites: tuple[str, ...]
    style: str
    max_new_tokens: int


def choose_checkpoint(run: RunDir, wanted: str, command: str = "evaluate") -> Chosen:
    """wanted: `latest` (or `head`), `best`, a step, or a path. command: the calling command; only `evaluate` accepts a
    pruned checkpoint, because it may still hold the files. Raises LonghaulError (INPUT) if there is no checkpoint.
    """
    reader = Reader.open(run)
    try:
        profile = from_json(reader.profile_json())
        if command != "export" and worker_kind_of(profile).has_own_engine:
            raise _shards(run, profile, command)
        path = run.root / _path_of(reader, run, wanted, command)
        run_id = reader.history().run_id
        identity = _identity(reader, run, path, run_id, command)
        if command != "evaluate" and not path.is_dir():
            raise _no_checkpoint(run, f"no longer has the files of step {identity[1]} (pruned)", reader, command)
    finally:
        reader.close()
    target = Target("checkpoint", run.name, identity[1], identity[0], _stored_path(run, path))
    suites = profile.validation.suites if worker_kind_of(profile).uses_model else ()
    where = EvaluationDir.of(run)
    return Chosen(where, target, path, profile, suites, "run", profile.sampling.max_completion_tokens)


def _path_of(reader: Reader, run: RunDir, wanted: str, command: str) -> str:
    if not wanted:
        raise _no_checkpoint(run, "has no checkpoint with an empty name", reader, command)
    if wanted in ("head", "latest"):
        head = reader.history().head
        if head is None:
            raise _no_checkpoint(run, "has no checkpoint yet", reader, command)
        return head.path
    if wanted == "best":
        found = pointers.best_of(reader)
        if found is None:
            raise _no_checkpoint(run, "has no validation yet, so no checkpoint is the best", reader, command)
        return found.path
    if wanted.isascii() and wanted.isdigit():  # isdigit() accepts `²`, int() does not
        found_path = _path_of_step(reader, wanted.lstrip("0") or "0")
        if found_path is None:
            raise _no_checkpoint(run, f"has no checkpoint of step {wanted}", reader, command)
        return found_path
    path = Path(wanted)
    return str(path.resolve()) if path.is_dir() else wanted


def _path_of_step(reader: Reader, digits: str) -> str | None:
    if len(digits) > MOST_DIGITS:
        return None
    row = reader.connection.execute(
        "SELECT path FROM checkpoints WHERE step=? ORDER BY state='deleted', created_at DESC LIMIT 1", [int(digits)]
    ).fetchone()
    return None if row is None else str(row[0])


def _identity(reader: Reader, run: RunDir, path: Path, run_id: str, command: str) -> tuple[str, int]:
    """(checkpoint_id, step), from the store, or else from the manifest of a directory that the store does not know."""
    row = reader.connection.execute(
        "SELECT checkpoint_id, step FROM checkpoints WHERE path=?", [_stored_path(run, path)]
    ).fetchone()
    if row is not None:
        return str(row[0]), int(row[1])
    try:
        manifest = read_manifest(path)
    except Damaged as damaged:
        raise _no_checkpoint(run, f"has no checkpoint at {path}: {damaged.reason}", reader, command) from damaged
    if manifest.run_id != run_id:
        raise _no_checkpoint(run, f"did not make the checkpoint {path} (run {manifest.run_id} did)", reader, command)
    return Manifest.checkpoint_id(path), manifest.step


def _stored_path(run: RunDir, path: Path) -> str:
    """The path as stored: relative to the run directory if it is inside it."""
    root, resolved = run.root.resolve(), path.resolve()
    return resolved.relative_to(root).as_posix() if root in resolved.parents else str(resolved)


def _no_checkpoint(run: RunDir, why: str, reader: Reader, command: str) -> LonghaulError:
    steps = sorted({one.step for one in reader.checkpoints()})
    there = f"; it has checkpoints of steps {', '.join(map(str, steps[-12:]))}" if steps else ""
    return LonghaulError(
        f"run '{run.name}' {why}{there}",
        kept="everything",
        next_command=f"python -m orchestrator {command} --run {run.name} --checkpoint head"
        if steps
        else f"python -m orchestrator run --run {run.name}",
        exit_code=ExitCode.INPUT,
    )


def _shards(run: RunDir, profile: Profile, command: str) -> LonghaulError:
    return LonghaulError(
        f"the checkpoints of run '{run.name}' are shards of the worker {profile.run.worker}; {command} reads models",
        kept="everything",
        next_command=f"python -m orchestrator export --run {run.name} --merged --out MODEL   "
        f"then: python -m orchestrator {command} --model MODEL",
        exit_code=ExitCode.INPUT,
    )


def choose_model(name: str, out: Path | None, *, identify: bool = True) -> Chosen:
    """name: a model directory, or a built-in model's name. identify: hash all its files, to recognise it later.

    Raises LonghaulError (INPUT) if the directory does not hold a model.
    """
    known = BUILT_IN.get(name)
    directory = known.directory if known is not None else Path(name).expanduser().resolve()
    if not directory.is_dir():
        raise LonghaulError(
            f"there is no model directory {directory}",
            kept="everything",
            next_command=f"hf download OWNER/NAME --local-dir {directory}",
            exit_code=ExitCode.INPUT,
        )
    if (directory / "adapter_config.json").is_file() and not (directory / "config.json").exists():
        raise LonghaulError(
            f"{directory} holds an adapter but no model",
            kept="everything",
            next_command="use --run NAME with the run that made it, or a merged directory from: "
            "python -m orchestrator export --merged --run NAME --out DIR",
            exit_code=ExitCode.INPUT,
        )
    called = name if known is not None else re.sub(r"[^A-Za-z0-9._-]", "_", directory.name) or "model"
    where = EvaluationDir((out or Path("evaluations") / called).resolve())
    target = Target("model", called, None, identity_of(directory) if identify else "", str(directory))
    if known is not None:
        profile = Profile(name=called, model=Model(path=str(directory), prompt_style=known.prompt_style))
        return Chosen(where, target, directory, profile, (known.suite,), "run", known.max_new_tokens)
    sampling = Sampling(engine="hf" if reason_against(config_of(directory)) else "native")
    profile = Profile(name=called, model=Model(path=str(directory)), sampling=sampling)
    return Chosen(where, target, directory, profile, (), "auto", MODEL_TOKENS)


def config_of(directory: Path) -> dict[str, Any]:
    """The content of config.json; empty if unreadable, in which case the worker reports the error."""
    try:
        found = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def identity_of(directory: Path) -> str:
    """Hash over the content of all files that determine the model's output."""
    paths = sorted({path for pattern in IDENTITY_FILES for path in directory.glob(pattern) if path.is_file()})
    with durable.explained("cannot read", directory):
        lines = [f"{path.name} {_sha256(path)}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- holding a checkpoint --------------------------------------------------------------------------------------------


def hold(checkpoint: Path, identity: str, held: Path) -> Path:
    """Verify the checkpoint and link its files into `held`, so that its run can prune it.

    Returns the checkpoint itself if it cannot be linked. Raises LonghaulError (INPUT) if it is missing or damaged.
    """
    source = held if held.is_dir() else checkpoint
    try:
        manifest = read_manifest(source)
        if Manifest.checkpoint_id(source) != identity:
            raise Damaged(source, "it is not the checkpoint that was committed under this name")
        names = [name for name in manifest.files if not name.startswith(NOT_NEEDED)]
        for name in names:
            if not (source / name).is_file():
                raise Damaged(source, f"{name} is missing")
            if _sha256(source / name) != manifest.files[name].sha256:
                raise Damaged(source, f"{name} was changed: its sha256 differs from the manifest")
        if source == checkpoint and not _link(checkpoint, ["MANIFEST.json", *names], held):
            return checkpoint
    except (Damaged, FileNotFoundError) as error:
        reason = error.reason if isinstance(error, Damaged) else "a file is missing"
        raise LonghaulError(
            f"checkpoint {checkpoint.name} cannot be evaluated: {reason}",
            kept="all files, unchanged",
            next_command="python -m orchestrator evaluate --checkpoint head",
            exit_code=ExitCode.INPUT,
        ) from error
    return held


def _link(source: Path, names: list[str], held: Path) -> bool:
    """Link all files, then rename the folder, so that a crash leaves nothing that looks complete."""
    half = _half(held)
    durable.remove_tree(half, held.parent)
    half.mkdir(mode=0o700)
    try:
        for name in names:
            (half / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(source / name, half / name, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # no hard links on this file system, or too many
        durable.remove_tree(half, held.parent)
        return False
    half.rename(held)
    return True


def let_go(held: Path) -> None:
    """Release the held checkpoint. Renamed first: a crash within leaves nothing that looks complete."""
    half = _half(held)
    durable.remove_tree(half, held.parent)
    with suppress(FileNotFoundError):  # it could not be linked, or there was nothing to hold
        held.rename(half)
    durable.remove_tree(half, held.parent)


def _half(held: Path) -> Path:
    """Where a folder is made and removed. The next evaluation removes what is left there."""
    return held.with_name(f".{held.name}.half")
