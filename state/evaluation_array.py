"""Every path of the jobs that a scheduler runs for an evaluation, inside its folder. (pure but for listing)

An array of jobs has a folder of its own, and each of its shards one inside that. A shard that is repeated is part of a
later array. No file of answers has two writers: each start of a shard writes its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from state.layout import AttemptDir


@dataclass(frozen=True)
class ShardDir(AttemptDir):
    """One shard's claim, messages, logs and answers. Its spec is that of its array."""

    @property
    def number(self) -> int:
        """From 0."""
        return _number_of(self.path)

    @property
    def array(self) -> ArrayDir:
        return ArrayDir(self.path.parent)

    def answers(self, restart: int) -> Path:
        """Folder of what this start of the job answers; the scheduler has restarted it `restart` times."""
        return self.path / f"start-{restart}"

    def all_answers(self) -> list[Path]:
        """The folder of each start, in their order."""
        return _numbered(self.path, "start")


@dataclass(frozen=True)
class ArrayDir:
    """One array: what was submitted, as which job."""

    path: Path

    @property
    def number(self) -> int:
        """From 1."""
        return _number_of(self.path)

    @property
    def spec(self) -> Path:
        return self.path / "spec.json"

    @property
    def handle(self) -> Path:
        """By which the next command finds the job."""
        return self.path / "handle.json"

    @property
    def script(self) -> Path:
        return self.path / "job.sbatch"

    def shard(self, number: int) -> ShardDir:
        return ShardDir(self.path / f"shard-{number}")

    def shards(self) -> list[ShardDir]:
        """Those that the array was submitted for."""
        return [ShardDir(path) for path in _numbered(self.path, "shard")]


def arrays_in(folder: Path) -> list[ArrayDir]:
    """The arrays of an evaluation, the oldest first. folder: of the evaluation."""
    return [ArrayDir(path) for path in _numbered(folder, "array")]


def next_array(folder: Path) -> ArrayDir:
    return ArrayDir(folder / f"array-{max((one.number for one in arrays_in(folder)), default=0) + 1}")


def _number_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _numbered(folder: Path, kind: str) -> list[Path]:
    """The paths `KIND-N` in a folder, by their numbers."""
    return sorted((path for path in folder.glob(f"{kind}-*") if path.name[len(kind) + 1 :].isdigit()), key=_number_of)
