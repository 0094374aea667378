"""Tasks, files and a run to consolidate, each in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from profiles.load import profile_sha256, resolved_json
from profiles.schema import Profile
from state import checkpoint
from state.facts import Line
from state.history import CheckpointFacts
from state.layout import RunDir
from state.store import NewAttempt, NewRun, Store
from workers.azr.buffers import Buffers
from workers.data.checking import Checker
from workers.data.consolidate import Report, consolidate
from workers.data.sources import Source
from workers.sandbox import Limits, Sandbox
from workers.suites.held_out import HeldOutPrograms
from workers.tasks.entry import Entry, make_entry
from workers.tasks.validate_proposals import Rules

ADD = "def f(a):\n    return a + 1"
TWICE = "def f(a):\n    return a * 2"
LOOP = "def f(a):\n    while a:\n        pass\n    return a"
HELD_OUT = "def f(a):\n    return a - 1"


def line(program: str = ADD, input_: str = "1", output: str | None = None, task: str = "ded", **more: Any) -> str:
    """One line of this project."""
    outputs = {} if output is None else {"outputs": [output]}
    return json.dumps({"task": task, "program": program, "inputs": [input_], **outputs, **more})


def problem(program: str = ADD, inputs: tuple[str, ...] = ("1", "2", "3"), **more: Any) -> str:
    return json.dumps({"task": "ind", "program": program, "inputs": list(inputs), **more})


def triplet(program: str = ADD, input_: str = "1", output: str = "2", **more: Any) -> str:
    """One line of the original's files: two tasks of ours."""
    row = {"snippet": program, "input": input_, "output": output, "imports": [], "original_snippet": program}
    return json.dumps({**row, "composite_functions": [], **more})


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + end)
    return path


@contextmanager
def checker(**fields: Any) -> Iterator[Checker]:
    """Real processes; `HELD_OUT` is held out, whatever its comments."""
    with Sandbox(Limits(cpu_s=0.5, allow_weak=True), jobs=1) as sandbox:
        yield Checker(sandbox, Rules(is_held_out=HeldOutPrograms([HELD_OUT])), **fields)


def merged(into: Path, check: Checker, *files: Path, **options: Any) -> Report:
    return consolidate(into, [Source(path, path.name) for path in files], check, **options)[1]


def entry(program: str = ADD, input_: str = "1", output: str = "2", step: int = 5, **fields: Any) -> Entry:
    task = fields.pop("task", "ded")
    return make_entry(task, program, [input_], [output], step=step, source="selfplay" if step else "seed", **fields)


def a_run(root: Path, *entries: Entry, found: tuple[Entry, ...] = (), steps: tuple[int, ...] = (0, 5)) -> RunDir:
    """A run with a checkpoint at each of `steps`, the last one the head; its buffers hold `entries`."""
    run, profile = RunDir(root), Profile(name="night")
    root.mkdir(parents=True)
    new = NewRun("r0", run.name, resolved_json(profile).decode(), profile_sha256(profile), 0, "0.1.0", 1000.0)
    store = Store.open(run, new)
    store.plan_cycle(1, "train", 1, 21, 0, 1000.0)
    store.plan_attempt(NewAttempt(1, "train", 1, "t1", 1, 0, 1000.0))
    buffers = Buffers(("abd", "ded", "ind"), cap=100)
    for one in entries:
        buffers.of[one.task].add(one)
    parent = None
    for step in steps:
        saved = checkpoint.stage(run, run_id="r0", parent=parent, cycle=1, attempt=1, token="t1", step=step,
                                 profile_sha256="p", versions={},
                                 write=lambda folder: buffers.save(folder / Buffers.filename))  # fmt: skip
        facts = CheckpointFacts(
            saved.checkpoint_id, parent, 1, step, saved.path, saved.digest, saved.manifest.bytes, True
        )
        store.commit_checkpoint(facts, 1, 1000.0)
        parent = saved.checkpoint_id
    if found:  # tasks of step 3, whether the buffers still have them or not
        from workers.azr.trainer import example  # imports torch, which most tests here can do without

        line_ = Line(1, "examples", 3, 0.0, 0.0, {"tasks": [example(one) for one in found]}, "")
        store.ingest("t1", [line_], 1)
    store.close()
    return run
