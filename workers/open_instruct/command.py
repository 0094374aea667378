"""The command line of open-instruct's `grpo_fast.py`: its YAML as options, and the places that a run has. (pure)

At the pinned commit the program reads no YAML: it hands its arguments to Hugging Face's parser alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from profiles.open_instruct.document import Settings
from workers.open_instruct.log import WIDTH

ENTRY = "open_instruct/grpo_fast.py"
"""In a checkout."""


def options(settings: Settings, own: Mapping[str, Any]) -> list[str]:
    """Of the YAML; `own` takes the place of what it says. An option without a value is left out: its default."""
    return [word for name, one in {**settings, **own}.items() for word in _words(name, one)]


def _words(name: str, one: Any) -> Iterator[str]:
    if isinstance(one, list):
        yield f"--{name}"
        yield from map(str, one)
    elif one is not None:
        yield f"--{name}={one}"


def own_options(folder: Path, state: Path) -> dict[str, Any]:
    """What a run decides. folder: of the attempt. state: where the job reads and writes its checkpoints.

    None is removed by the program (we prune them), and no copy of the weights is written beside them but the last.
    """
    return {
        "checkpoint_state_dir": str(state),
        "output_dir": str(folder / "model"),
        "rollouts_save_path": str(folder / "rollouts"),
        "dataset_local_cache_dir": str(folder / "datasets"),
        "keep_last_n_checkpoints": -1,
        "save_freq": -1,
    }


def environment(spool: str) -> dict[str, str]:
    """For every process of the job. spool: folder of Ray's files; empty: the Ray of the allocation has its own."""
    found = {
        "COLUMNS": str(WIDTH),
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return found | ({"RAY_TMPDIR": spool} if spool else {})
