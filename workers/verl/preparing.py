"""What a job of verl needs before it starts: a model on disk, problems in parquet, a checkpoint under verl's name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from profiles.verl_rules import training_gpus
from state import python
from workers.external.processes import make_spool, ray_address
from workers.models.load import TOKENIZER_FILES, model_directory, refuse_what_is_not_plain
from workers.runtime import Attempt
from workers.verl.cluster import host_of
from workers.verl.job import variables
from workers.verl.settings import CONTROL, METRICS, Work, lacks_flash_attention

LAYOUT = "verl.json"
"""In a checkpoint: how verl divided what lies beside it."""
STEP_FOLDER = "global_step_"
"""verl reads the step from the name of a folder."""
ACTOR = "actor"
MERGE_S = 3600.0


class Layout(Struct, frozen=True):
    """`verl.json`. gpus: parts that hold weights and moments; 0: the model as the profile names it, no step done."""

    verl: str
    strategy: str
    gpus: int


def layout_of(profile: Profile, *, is_trained: bool) -> Layout:
    from workers.verl.check import TESTED

    return Layout(TESTED["verl"], profile.verl.strategy, training_gpus(profile) if is_trained else 0)


def write_layout(folder: Path, layout: Layout) -> None:
    (folder / LAYOUT).write_bytes(msgspec.json.encode(layout))


def read_layout(head: Path) -> Layout:
    """Raises LonghaulError (INPUT) where a checkpoint has none, or one of another worker."""
    try:
        return msgspec.json.decode((head / LAYOUT).read_bytes(), type=Layout)
    except (OSError, msgspec.MsgspecError) as error:
        raise LonghaulError(
            f"the checkpoint {head.name} is not one of the worker verl: {LAYOUT}: {error}",
            kept="all files, unchanged",
            next_command="python -m orchestrator status",
            exit_code=ExitCode.INPUT,
        ) from error


@contextmanager
def model_folder(profile: Profile, folder: Path) -> Iterator[Path]:
    """The model's directory, where every process of the job can read it. folder: of the attempt."""
    if profile.model.random_init == "off":
        found = model_directory(profile.model).absolute()
        refuse_what_is_not_plain(found)
        yield found
        return
    from workers.models import random_init

    made = folder / "model"
    made.mkdir(parents=True, exist_ok=True)
    try:
        random_init.write(profile.model.random_init, profile.run.seed, profile.model.dtype, made)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def write_tokenizer(model: Path, folder: Path) -> Path:
    """The model's tokenizer, to be loaded exactly as `tokenizer.json` says: as all our other workers do."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (model / name).is_file():
            shutil.copyfile(model / name, folder / name)
    config = folder / "tokenizer_config.json"
    words = json.loads(config.read_bytes()) if config.is_file() else {}
    config.write_text(json.dumps(words | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def begin(attempt: Attempt, model: Path, head: Path | None, **how: Any) -> Work:
    """The work of a job from `head`, whose bytes were checked. how: of `Work`, what belongs to the kind of attempt.

    Raises LonghaulError (INPUT) where the head was made on another number of GPUs and may not be taken over, or where
    there is no cluster for several hosts.
    """
    profile, folder = attempt.profile, attempt.dir.path / "verl"
    shutil.rmtree(folder / CONTROL, ignore_errors=True)  # of an earlier start of the same job
    (folder / CONTROL).mkdir(parents=True)
    (folder / METRICS).unlink(missing_ok=True)
    step = attempt.spec.head.step if attempt.spec.head else 0
    resume: Path | None = None
    if head is not None and (layout := read_layout(head)).gpus:
        wanted = layout_of(profile, is_trained=True)
        if layout.gpus == wanted.gpus and layout.strategy == wanted.strategy:
            resume = _under_verls_name(head, folder, step)
        elif layout.strategy == "megatron" == wanted.strategy:
            resume = _under_verls_name(head, folder, step)  # Megatron's checkpoints load on any number
        elif profile.verl.on_other_gpus == "refuse":
            raise other_gpus(layout, wanted)
        else:
            model = merge(head, folder / "merged")
            attempt.warn(
                f"the checkpoint was made on {layout.gpus} GPUs, this job has {wanted.gpus}: its weights are taken "
                "over, the optimiser's moments begin anew (verl.on_other_gpus)"
            )
    host = host_of(profile, os.environ)
    address = ray_address(profile) if host is None else ""
    work = Work(
        model=model,
        tokenizer=write_tokenizer(model, folder / "tokenizer"),
        folder=folder,
        resume=resume,
        address=address,
        spool="" if address else make_spool(),
        has_flash_attention=find_spec("flash_attn") is not None,
        **how,
    )
    if lacks_flash_attention(profile, work):
        attempt.warn(
            "the package flash_attn is not installed: rows are padded to the longest of their batch, which takes more "
            "time and memory (pip install flash-attn --no-build-isolation)"
        )
    interface = host.interface if host else ""
    return replace(work, environment=variables(profile, work.control, work.metrics, step, interface))


def other_gpus(found: Layout, wanted: Layout) -> LonghaulError:
    return LonghaulError(
        f"the head holds {found.strategy} shards of {found.gpus} GPUs, and this run now trains with "
        f"{wanted.strategy} on {wanted.gpus}: such shards load on the same number alone",
        kept="the head, unchanged",
        next_command=f"python -m orchestrator run   with run.gpus and run.hosts for {found.gpus} GPUs, or with "
        "--set verl.on_other_gpus=weights   (keeps the weights, loses the optimiser's moments)",
        exit_code=ExitCode.INPUT,
    )


def _under_verls_name(head: Path, folder: Path, step: int) -> Path:
    """A link to the checkpoint, by which verl learns its step."""
    link = folder / f"{STEP_FOLDER}{step}"
    link.unlink(missing_ok=True)
    link.symlink_to(head.absolute(), target_is_directory=True)
    return link


def merge(head: Path, target: Path) -> Path:
    """Shards of a checkpoint as one Hugging Face model, by verl's own merger. Raises LonghaulError (ENGINE)."""
    backend = "megatron" if read_layout(head).strategy == "megatron" else "fsdp"
    words = ["merge", "--backend", backend, "--local_dir", str(head / ACTOR), "--target_dir", str(target)]
    done = subprocess.run(
        python.command("verl.model_merger", *words),
        env={**python.finding_us(os.environ), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=MERGE_S,
    )
    if done.returncode or not (target / "config.json").is_file():
        last = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()][-1:] or ["no word"]
        raise LonghaulError(
            f"verl's merger could not make one model of {head.name}: {last[0][:300]}",
            kept="the checkpoint, unchanged",
            next_command=f"python -m verl.model_merger {' '.join(words)}",
            exit_code=ExitCode.ENGINE,
        )
    return target
