"""Checkpoints, rows and child processes: one line of set-up a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from state.checkpoint import Saved, stage
from state.history import CheckpointFacts
from state.layout import RunDir
from tests import REPOSITORY


def write_state(content: bytes = b"weights") -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / "weights.bin").write_bytes(content)
        (directory / "tokenizer").mkdir()
        (directory / "tokenizer" / "vocab.json").write_text("{}")

    return write


def save(run: RunDir, step: int = 1, parent: str | None = None, **changes: Any) -> Saved:
    """A real checkpoint on disk."""
    values: dict[str, Any] = {
        "run_id": "run-a",
        "parent": parent,
        "cycle": 1,
        "attempt": 1,
        "token": "t0",
        "step": step,
        "profile_sha256": "p",
        "versions": {"python": "3.11"},
        "write": write_state(),
    }
    return stage(run, **{**values, **changes})


def row(saved: Saved, state: str = "committed") -> CheckpointFacts:
    """The store's row of a checkpoint."""
    manifest = saved.manifest
    return CheckpointFacts(
        saved.checkpoint_id, manifest.parent, manifest.cycle, manifest.step, saved.path, manifest.digest,
        manifest.bytes, verified=True, state=state,
    )  # fmt: skip


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter, with `arguments` in sys.argv[1:]."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


SAVE_CODE = """
import sys
from pathlib import Path
from state.layout import RunDir
from tests.state.samples import save, write_state
save(RunDir(Path(sys.argv[1])), step=2, parent=sys.argv[2], write=write_state(b"newer"))
"""
