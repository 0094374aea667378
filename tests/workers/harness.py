"""A master in forty lines: starts a worker as the contract says, talks to it, reads what it leaves."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from profiles.schema import Azr, Fake, Model, Optimizer, Profile, Run, Sampling, Validation
from state.layout import RunDir
from tests import REPOSITORY
from workers.contract import (
    ATTEMPT_VARIABLE,
    CONTROL_FD_VARIABLE,
    LIFELINE_FD_VARIABLE,
    TOKEN_VARIABLE,
    CheckpointRef,
    Event,
    Message,
    Result,
    WorkerSpec,
)

PATIENCE_S = 60.0


def fake_profile(fault: str = "", *, every: int = 5, **fake: Any) -> Profile:
    return Profile(
        name="test",
        run=Run(worker="fake", checkpoint_every=every),
        validation=Validation(suites=("fake",)),
        fake=Fake(fault=fault, **fake),
    )


def tiny_profile(*, every: int = 100, **changes: Any) -> Profile:
    """Real self-play at the smallest sizes that still have every part."""
    sections: dict[str, Any] = {
        "run": Run(worker="azr", checkpoint_every=every, threads=1),
        "model": Model(),
        "sampling": Sampling(max_completion_tokens=48),
        "azr": Azr(proposals_per_task=4, group_size=2),
        "optimizer": Optimizer(micro_batch_size=16, warmup_steps=2, learning_rate=1e-3),
        "validation": Validation(examples_per_task=8),
    }
    return Profile(name="test", **(sections | changes))


def make_spec(
    root: Path,
    profile: Profile,
    *,
    head: CheckpointRef | None,
    end_step: int,
    cycle: int = 1,
    attempt: int = 1,
    role: str = "train",
    **changes: Any,
) -> WorkerSpec:
    first_step = (head.step if head else 0) + 1
    attempt_dir = RunDir(root).attempt(cycle, attempt, role)
    attempt_dir.path.mkdir(parents=True, exist_ok=True)
    (root / "checkpoints").mkdir(exist_ok=True)
    fields: dict[str, Any] = {
        "run_id": "run-1",
        "run_dir": str(root),
        "role": role,
        "cycle": cycle,
        "attempt": attempt,
        "token": f"{role}-{cycle}-{attempt}",
        "attempt_dir": RunDir(root).relative(attempt_dir.path),
        "first_step": first_step,
        "end_step": end_step,
        "head": head,
        "profile": profile,
        "profile_sha256": hashlib.sha256(msgspec.json.encode(profile)).hexdigest(),
    }
    spec = WorkerSpec(**(fields | changes))
    attempt_dir.spec.write_bytes(msgspec.json.encode(spec))
    return spec


@dataclass
class Worker:
    """A started worker, seen from the master's side."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    lifeline: int
    token: str
    log: Path
    messages: list[Message] = field(default_factory=list)
    _buffer: bytes = b""

    def send(self, type_: str, **fields: Any) -> None:
        self.send_raw(msgspec.json.encode(Message(type=type_, **({"attempt": self.token} | fields))) + b"\n")

    def send_raw(self, line: bytes) -> None:
        self.control.sendall(line)

    def wait_for(self, type_: str, **fields: Any) -> Message:
        """The next message of this type, in order of arrival; earlier ones of other types are kept in `messages`."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            message = self._next(deadline)
            if message.type == type_ and all(getattr(message, name) == value for name, value in fields.items()):
                return message
        raise TimeoutError(type_)

    def wait_for_step(self, step: int) -> None:
        """Until a heartbeat tells of this step or a later one."""
        while self.wait_for("heartbeat").step < step:
            pass

    def _next(self, deadline: float) -> Message:
        while b"\n" not in self._buffer:
            self.control.settimeout(max(0.01, deadline - time.monotonic()))
            chunk = self.control.recv(65536)
            if not chunk:
                raise EOFError(f"the worker left; its log:\n{self.log.read_text()}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        message = msgspec.json.decode(line, type=Message)
        self.messages.append(message)
        return message

    def exit_code(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self.close()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.control.close()
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1


WORKER = ("-m", "workers")


def without_restoring(name: str) -> tuple[str, str]:
    """A worker that forgets to restore one registered item: resume must notice."""
    code = (
        "import runpy; from state.registry import Registry\n"
        "load = Registry.load\n"
        "def forgetful(self, directory, *args, **kwargs):\n"
        f"    self._items[{name!r}].load = lambda path: None\n"
        "    load(self, directory, *args, **kwargs)\n"
        "Registry.load = forgetful\n"
        "runpy.run_module('workers', run_name='__main__')\n"
    )
    return ("-c", code)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def spawn(
    token: str, log: Path, *, warm: str = "fake", program: tuple[str, ...] = WORKER, **environment: str
) -> Worker:
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    variables = {
        **os.environ,
        CONTROL_FD_VARIABLE: str(theirs.fileno()),
        LIFELINE_FD_VARIABLE: str(read_end),
        TOKEN_VARIABLE: token,
        ATTEMPT_VARIABLE: f"run-1/{token}",
        "LONGHAUL_WARM": warm,
        "PYTHONPATH": str(REPOSITORY),
        **environment,
    }
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *program],
            cwd=REPOSITORY,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(), read_end),
            start_new_session=True,
        )
    theirs.close()
    os.close(read_end)
    return Worker(process, ours, write_end, token, log)


def start(spec: WorkerSpec, *, warm: str = "fake", program: tuple[str, ...] = WORKER, **environment: str) -> Worker:
    """Spawn a worker and hand it the spec."""
    directory = Path(spec.run_dir) / spec.attempt_dir
    worker = spawn(spec.token, directory / "worker.log", warm=warm, program=program, **environment)
    worker.wait_for("ready")
    worker.send("start", path=str(directory / "spec.json"))
    return worker


def run(spec: WorkerSpec, *, warm: str = "fake", program: tuple[str, ...] = WORKER, **environment: str) -> int:
    """Start, wait for the end, return the exit code."""
    worker = start(spec, warm=warm, program=program, **environment)
    try:
        return worker.exit_code()
    finally:
        worker.close()


def result_of(spec: WorkerSpec) -> Result:
    return msgspec.json.decode((Path(spec.run_dir) / spec.attempt_dir / "result.json").read_bytes(), type=Result)


def events_of(spec: WorkerSpec, type_: str = "") -> list[Event]:
    return events_at(Path(spec.run_dir) / spec.attempt_dir, type_)


def events_at(directory: Path, type_: str = "") -> list[Event]:
    path = directory / "events.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    events = [msgspec.json.decode(line, type=Event) for line in lines]
    return [event for event in events if not type_ or event.type == type_]


def trained(root: Path, profile: Profile, steps: int, *, warm: str = "fake") -> CheckpointRef:
    """Seed a run and train it `steps` steps in one go; the checkpoint that it ended on."""
    root.mkdir(parents=True, exist_ok=True)
    seeded = make_spec(root, profile, head=None, end_step=1, cycle=0)
    assert run(seeded, warm=warm) == 0, log_of(seeded)
    spec = make_spec(root, profile, head=result_of(seeded).checkpoint, end_step=steps + 1)
    assert run(spec, warm=warm) == 0, log_of(spec)
    checkpoint = result_of(spec).checkpoint
    assert checkpoint is not None
    return checkpoint


def log_of(spec: WorkerSpec) -> str:
    return (Path(spec.run_dir) / spec.attempt_dir / "worker.log").read_text()


def newest_checkpoint(root: Path) -> CheckpointRef:
    """The checkpoint that a master would adopt after a crash: the highest step with a manifest."""
    return max(checkpoints_of(root), key=lambda reference: reference.step)


def first_checkpoint(root: Path) -> CheckpointRef:
    return min(checkpoints_of(root), key=lambda reference: reference.step)


def checkpoints_of(root: Path) -> list[CheckpointRef]:
    found = []
    for manifest in (root / "checkpoints").glob("c*/MANIFEST.json"):
        content = json.loads(manifest.read_text())
        reference = CheckpointRef(
            path=manifest.parent.relative_to(root).as_posix(),
            step=content["step"],
            checkpoint_id=hashlib.sha256(manifest.read_bytes()).hexdigest(),
            digest=content["digest"],
        )
        found.append(reference)
    return found


@contextmanager
def worker_of(spec: WorkerSpec, **environment: str) -> Iterator[Worker]:
    worker = start(spec, **environment)
    try:
        yield worker
    finally:
        worker.close()


def seeded(root: Path, profile: Profile) -> CheckpointRef:
    root.mkdir(parents=True, exist_ok=True)
    spec = make_spec(root, profile, head=None, end_step=1, cycle=0)
    assert run(spec) == 0, log_of(spec)
    checkpoint = result_of(spec).checkpoint
    assert checkpoint is not None
    return checkpoint


def cycle(root: Path, profile: Profile, end_step: int = 9, **fields: object) -> WorkerSpec:
    return make_spec(root, profile, head=seeded(root, profile), end_step=end_step, **fields)  # type: ignore[arg-type]
