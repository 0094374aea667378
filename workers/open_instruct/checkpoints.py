"""open-instruct's checkpoints and ours: what is complete, what is moved, and how a job is told where it goes on.

DeepSpeed writes `global_stepN/` with one file of weights and one of moments for each GPU that trains, where N counts
optimiser updates and not steps, and names the newest in `latest`. The program resumes from the folder that `latest`
names, and fails if its folder is there without one. The reference policy that it writes beside them is left: a YAML
that would change it is refused, and without that file the program takes the first model again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError

LAYOUT = "open_instruct.json"
"""In a checkpoint of ours: what lies beside it."""
TAG = "global_step"
LATEST = "latest"
CONVERTER = "zero_to_fp32.py"
"""DeepSpeed's own script that makes plain weights of the shards."""
MODEL = "model"
"""In the last checkpoint: the trained model as Hugging Face has it."""
MODEL_COMPLETE = ".checkpoint_complete"
"""The program touches it in a model's folder when all is written."""


class Layout(Struct, frozen=True):
    """`open_instruct.json`. tag: folder of the state; empty: there is none. learners: GPUs that hold a part of it."""

    commit: str
    tag: str
    learners: int
    has_model: bool = False


def write_layout(folder: Path, layout: Layout) -> None:
    (folder / LAYOUT).write_bytes(msgspec.json.encode(layout))


def read_layout(head: Path) -> Layout:
    """Raises LonghaulError (INPUT) where a checkpoint has none, or one of another worker."""
    try:
        return msgspec.json.decode((head / LAYOUT).read_bytes(), type=Layout)
    except (OSError, msgspec.MsgspecError) as error:
        raise _refused(
            f"the checkpoint {head.name} is not one of the worker open_instruct: {LAYOUT}: {error}",
            "python -m orchestrator status",
        ) from error


def prepare(state: Path, head: Path | None, learners: int) -> None:
    """Make `state` what the program resumes from: `head`, or nothing. Raises LonghaulError (INPUT) where the head was
    made by another number of GPUs that train."""
    discard(state)  # of an earlier start of this attempt
    layout = read_layout(head) if head is not None else None
    if head is None or layout is None or not layout.tag:
        return
    if layout.learners != learners:
        raise _refused(
            f"the head holds shards of {layout.learners} GPUs that train, and the YAML now has {learners}: such shards "
            "load on the same number alone",
            f"set num_learners_per_node for {layout.learners} GPUs, then python -m orchestrator run",
        )
    state.mkdir(parents=True)
    (state / layout.tag).symlink_to((head / layout.tag).absolute(), target_is_directory=True)
    (state / LATEST).write_text(layout.tag)


def discard(state: Path) -> None:
    """Remove what no checkpoint of ours has taken: of a large model, hundreds of gigabytes."""
    shutil.rmtree(state, ignore_errors=True)


def oldest(state: Path) -> Path | None:
    """The folder that the job has written longest ago. Those that were taken are gone, the one it resumed from is a
    link."""
    numbers = [
        int(path.name.removeprefix(TAG))
        for path in state.glob(f"{TAG}*")
        if path.name.removeprefix(TAG).isdigit() and path.is_dir() and not path.is_symlink()
    ]
    return state / f"{TAG}{min(numbers)}" if numbers else None


def missing(folder: Path, learners: int) -> str:
    """What a folder lacks to be the state of so many GPUs; empty: nothing."""
    for suffix in ("model_states.pt", "optim_states.pt"):
        ranks = [rank for rank in range(learners) if not any(folder.glob(f"*zero_pp_rank_{rank}_mp_rank_*_{suffix}"))]
        if ranks:
            return f"no {suffix} of {len(ranks)} of {learners} GPUs"
    if not (folder.parent / LATEST).is_file():
        return f"no {LATEST} beside it"
    return ""


def take(folder: Path, into: Path) -> None:
    """Move the state into a checkpoint. Not copied: shards of a large model would take minutes and as much room
    again."""
    shutil.move(folder, into / folder.name)  # a rename on one file system
    if (converter := folder.parent / CONVERTER).is_file():
        shutil.copyfile(converter, into / CONVERTER)


def finished_model(output: Path) -> Path | None:
    """The model that the program writes after its last step, in a folder that it names itself, once it is whole."""
    return next((marker.parent for marker in sorted(output.glob(f"*/{MODEL_COMPLETE}"))), None)


def _refused(what: str, next_command: str) -> LonghaulError:
    return LonghaulError(what, kept="all checkpoints, unchanged", next_command=next_command, exit_code=ExitCode.INPUT)
