"""Every path of a run, as properties of RunDir; nobody else joins paths. (pure, but for `free_attempt`)

Paths that are stored (in the store, in manifests, in specs) are relative to the run directory, so that a run may be
moved or renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AttemptDir:
    """One try at a cycle: what its worker is told, what it says, what it leaves."""

    path: Path

    @property
    def spec(self) -> Path:
        return self.path / "spec.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def log(self) -> Path:
        return self.path / "worker.log"

    @property
    def evidence(self) -> Path:
        return self.path / "evidence"

    @property
    def ranks_store(self) -> Path:
        """Through which the ranks of an attempt on several GPUs meet."""
        return self.path / "ranks"

    def rank_log(self, rank: int) -> Path:
        """What a further GPU's process wrote; that of rank 0 is the worker's."""
        return self.path / f"rank-{rank}.log"


@dataclass(frozen=True)
class RunDir:
    """One run on disk. `root` is the run directory itself, `runs/NAME`."""

    root: Path
    link: Path | None = None
    """The symbolic link by which a person named it; `root` is then what it led to."""

    @property
    def name(self) -> str:
        return (self.link or self.root).name

    @property
    def folder(self) -> Path:
        """Where a person finds it: the folder of all runs."""
        return (self.link or self.root).parent

    @property
    def store(self) -> Path:
        return self.root / "state.db"

    @property
    def store_companions(self) -> tuple[Path, ...]:
        """Files that SQLite keeps beside the store; a store that is put elsewhere is not whole without them."""
        return tuple(self.root / f"state.db{suffix}" for suffix in ("-wal", "-shm", "-journal"))

    @property
    def unborn_store(self) -> Path:
        """The store of a new run until it is complete; then it is renamed."""
        return self.root / ".state.db.new"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def place(self) -> Path:
        """Where the last master found this directory: a copy is known by it."""
        return self.root / "place.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def latest(self) -> Path:
        """Names the head, for people and other programs."""
        return self.root / "latest.json"

    @property
    def best(self) -> Path:
        """Names the checkpoint with the best validation; not there before the first one."""
        return self.root / "best.json"

    @property
    def readers(self) -> Path:
        """Links to checkpoints that a command reads now; a folder for each process."""
        return self.root / "readers"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def trackers(self) -> Path:
        """What the tracker process remembers and logs."""
        return self.root / "trackers"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    @property
    def backups(self) -> Path:
        return self.root / "backups"

    @property
    def cycles(self) -> Path:
        return self.root / "cycles"

    @property
    def standby_logs(self) -> Path:
        """Output of workers that were warmed and have no attempt yet."""
        return self.root / "standby"

    @property
    def workers(self) -> Path:
        """A file for each worker that may live: the handle by which its launcher finds it."""
        return self.root / "workers"

    @property
    def log(self) -> Path:
        return self.root / "orchestrator.log"

    @property
    def control_socket(self) -> Path:
        return self.root / "control.sock"

    @property
    def ballast(self) -> Path:
        """16 MB that are given up first when the disk is full, so that the store can commit the reason."""
        return self.root / "ballast"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def examples(self) -> Path:
        return self.root / "examples"

    @property
    def difficulties(self) -> Path:
        """How hard each problem was for the policy that the run began with; GRPO with a curriculum alone."""
        return self.root / "difficulties.jsonl"

    @property
    def imported(self) -> Path:
        """Data set of the tasks that the run began with, as they were verified on the way in."""
        return self.root / "data" / "imported.jsonl"

    @property
    def next_input(self) -> Path:
        """Data set of everything that the run ended with: the input of a next iteration."""
        return self.root / "data" / "next.jsonl"

    def cycle(self, cycle: int) -> Path:
        return self.cycles / f"{cycle:04d}"

    def rollouts(self, cycle: int) -> Path:
        """Rollouts of a cycle, shared by its attempts: what one generated, the next need not generate again."""
        return self.cycle(cycle) / "rollouts"

    def rollout_file(self, cycle: int, step: int) -> Path:
        return self.rollouts(cycle) / f"step-{step:06d}.jsonl"

    def seed_file(self, cycle: int, batch: int) -> Path:
        """What one batch of seeding found."""
        return self.rollouts(cycle) / f"seed-{batch:06d}.jsonl"

    def attempt(self, cycle: int, attempt: int, role: str = "train") -> AttemptDir:
        """role: "train" or "validate"; a validation attempt has a directory of its own."""
        prefix = "attempt" if role == "train" else role
        return AttemptDir(self.cycle(cycle) / f"{prefix}-{attempt}")

    def free_attempt(self, cycle: int, attempt: int, role: str) -> int:
        """`attempt`, or one past the highest number whose directory is there: two attempts never share one."""
        prefix = self.attempt(cycle, attempt, role).path.name.rpartition("-")[0]
        names = [path.name.rpartition("-")[2] for path in self.cycle(cycle).glob(f"{prefix}-*")]
        return max([attempt, *(int(name) + 1 for name in names if name.isdigit())])

    def worker(self, token: str) -> Path:
        return self.workers / f"{token}.json"

    def relative(self, path: Path) -> str:
        """The form in which a path is stored."""
        return path.relative_to(self.root).as_posix()


LONGEST_NAME_BYTES = 255
"""Of a file name, on the file systems that people use."""


def name_problem(name: str) -> str:
    """Why a run cannot have this name, which is that of its directory; empty if it can. (pure)"""
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "that is a directory of the file system"
    if "/" in name:
        return "it has a '/': a run is one directory in the folder of all runs (--runs)"
    if not name.isprintable():
        return "it has characters that cannot be shown"
    if len(name.encode(errors="replace")) > LONGEST_NAME_BYTES:
        return f"it has {len(name.encode(errors='replace'))} bytes, of {LONGEST_NAME_BYTES} that a file name may have"
    return ""
