"""Every path of a run, as properties of RunDir. No other module joins paths. (pure, except `free_attempt`)

Stored paths (in the store, manifests and specs) are relative to the run directory, so that a run can be moved or
renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AttemptDir:
    """One attempt at a cycle: the worker's spec, its events, its result and its logs."""

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
        """The file through which the ranks of a multi-GPU attempt rendezvous."""
        return self.path / "ranks"

    @property
    def requests(self) -> Path:
        """Lines of the master to a worker that has no socket to it."""
        return self.path / "requests.jsonl"

    @property
    def replies(self) -> Path:
        """Lines of such a worker to the master, heartbeats among them."""
        return self.path / "replies.jsonl"

    @property
    def stop(self) -> Path:
        """Where this file is, such a worker saves after its step and ends: the wish of its job script, at a limit."""
        return self.path / "stop"

    @property
    def master(self) -> Path:
        """A number that the master counts up while it looks after such a worker."""
        return self.path / "master"

    def claim(self, restart: int) -> Path:
        """Whose this attempt is, after so many restarts of its job: the process that created the file."""
        return self.path / f"claim.{restart}"

    @property
    def job_script(self) -> Path:
        return self.path / "job.bash"

    @property
    def job_end(self) -> Path:
        """The exit code with which the job script ended, the last thing that it writes."""
        return self.path / "job.exit"

    def rank_log(self, rank: int) -> Path:
        """Output of another rank's process; rank 0 writes to the worker's log."""
        return self.path / f"rank-{rank}.log"


@dataclass(frozen=True)
class RunDir:
    """One run on disk. `root` is the run directory itself, `runs/NAME`."""

    root: Path
    link: Path | None = None
    """The symbolic link used to name the run; `root` is then its target."""

    @property
    def name(self) -> str:
        return (self.link or self.root).name

    @property
    def folder(self) -> Path:
        """The folder of all runs that lists this one."""
        return (self.link or self.root).parent

    @property
    def store(self) -> Path:
        return self.root / "state.db"

    @property
    def store_companions(self) -> tuple[Path, ...]:
        """Files that SQLite keeps beside the store. A moved store is incomplete without them."""
        return tuple(self.root / f"state.db{suffix}" for suffix in ("-wal", "-shm", "-journal"))

    @property
    def unborn_store(self) -> Path:
        """The store of a new run until it is complete and renamed."""
        return self.root / ".state.db.new"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def place(self) -> Path:
        """Records where the last master found this directory, which reveals a copy."""
        return self.root / "place.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def latest(self) -> Path:
        """Names the head, for users and other programs."""
        return self.root / "latest.json"

    @property
    def best(self) -> Path:
        """Names the checkpoint with the best validation; absent before the first validation."""
        return self.root / "best.json"

    @property
    def readers(self) -> Path:
        """Links to checkpoints that commands are reading; one folder per process."""
        return self.root / "readers"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def trackers(self) -> Path:
        """State and logs of the tracker process."""
        return self.root / "trackers"

    @property
    def notify(self) -> Path:
        """State and log of the process that sends messages."""
        return self.root / "notify"

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
        """Output of standby workers that have no attempt yet."""
        return self.root / "standby"

    @property
    def workers(self) -> Path:
        """One file per worker that may be alive, with the handle by which its launcher finds it."""
        return self.root / "workers"

    @property
    def log(self) -> Path:
        return self.root / "orchestrator.log"

    @property
    def control_socket(self) -> Path:
        return self.root / "control.sock"

    @property
    def ballast(self) -> Path:
        """16 MB that the master frees when the disk is full, so that the store can commit the reason."""
        return self.root / "ballast"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def prediction(self) -> Path:
        """What was predicted when the run began: seconds of a step, memory, disk."""
        return self.root / "prediction.json"

    @property
    def difficulties(self) -> Path:
        """Difficulty of each problem for the initial policy; only for GRPO with a curriculum."""
        return self.root / "difficulties.jsonl"

    @property
    def imported(self) -> Path:
        """Data set of the tasks the run started with, after verification."""
        return self.root / "data" / "imported.jsonl"

    @property
    def next_input(self) -> Path:
        """Data set of all tasks at the end of the run, as input for another run."""
        return self.root / "data" / "next.jsonl"

    def cycle(self, cycle: int) -> Path:
        return self.cycles / f"{cycle:04d}"

    def rollouts(self, cycle: int) -> Path:
        """Rollouts of a cycle, shared by its attempts so that a retry need not generate them again."""
        return self.cycle(cycle) / "rollouts"

    def rollout_file(self, cycle: int, step: int) -> Path:
        return self.rollouts(cycle) / f"step-{step:06d}.jsonl"

    def seed_file(self, cycle: int, batch: int) -> Path:
        """The tasks found by one seeding batch."""
        return self.rollouts(cycle) / f"seed-{batch:06d}.jsonl"

    def attempt(self, cycle: int, attempt: int, role: str = "train") -> AttemptDir:
        """role: "train" or "validate"; each has its own directories."""
        prefix = "attempt" if role == "train" else role
        return AttemptDir(self.cycle(cycle) / f"{prefix}-{attempt}")

    def free_attempt(self, cycle: int, attempt: int, role: str) -> int:
        """`attempt`, or one past the highest existing directory, so that two attempts never share a directory."""
        prefix = self.attempt(cycle, attempt, role).path.name.rpartition("-")[0]
        names = [path.name.rpartition("-")[2] for path in self.cycle(cycle).glob(f"{prefix}-*")]
        return max([attempt, *(int(name) + 1 for name in names if name.isdigit())])

    def worker(self, token: str) -> Path:
        return self.workers / f"{token}.json"

    def relative(self, path: Path) -> str:
        """`path` relative to the run directory, as it is stored."""
        return path.relative_to(self.root).as_posix()


def web_token(runs: Path) -> Path:
    """The token of the web page that shows this folder of runs."""
    return runs / ".web" / "token"


LONGEST_NAME_BYTES = 255
"""Limit of a file name on common file systems."""


HALF = ".half-"
"""What names of folders begin with that a command still fills."""


def name_problem(name: str) -> str:
    """Why this cannot be the name of a run and its directory; empty if it can. (pure)"""
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "it is a reserved directory name"
    if "/" in name:
        return "it contains a '/': a run is a single directory in the folder of all runs (--runs)"
    if not name.isprintable():
        return "it contains unprintable characters"
    if name.startswith(HALF):
        return f"it begins with {HALF}, as a run does that is not restored yet"
    if len(name.encode(errors="replace")) > LONGEST_NAME_BYTES:
        return f"it has {len(name.encode(errors='replace'))} bytes; a file name may have {LONGEST_NAME_BYTES}"
    return ""
