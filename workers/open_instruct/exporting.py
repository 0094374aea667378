"""The model that open-instruct wrote after its last step, as an export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from workers.open_instruct.checkpoints import MODEL, MODEL_COMPLETE, read_layout


def write_model(head: Path, out: Path, kind: str) -> str:
    """Weights, config and tokenizer into `out`. Returns the weights' precision. Raises LonghaulError (INPUT) where the
    checkpoint holds shards alone, or where an adapter is wanted."""
    why = ""
    if kind == "adapter":
        why = "open-instruct trained all weights, so there is no adapter"
    elif not read_layout(head).has_model:
        why = "this checkpoint holds shards alone: open-instruct writes a model after its last step"
    if why:
        raise LonghaulError(
            why,
            kept="the checkpoint, unchanged; nothing was exported",
            next_command="python -m orchestrator export --merged --out ...   (of the run's last step)",
            exit_code=ExitCode.INPUT,
        )
    for path in sorted((head / MODEL).iterdir()):
        if path.is_file() and path.name != MODEL_COMPLETE:
            shutil.copyfile(path, out / path.name)
    config = json.loads((out / "config.json").read_bytes())
    return str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
