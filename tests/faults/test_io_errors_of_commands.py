"""Any call that a command makes on a run's files may fail: three lines and a code of its own, and nothing is lost.

Each command is typed on a copy of a run, under strace, which makes one call fail. Then it is typed again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from profiles.errors import ExitCode
from state.checkpoint import verify
from state.opening import unsound
from tests import REPOSITORY
from tests.faults.harness import PATIENCE_S, Scene, faults, scene
from tests.faults.test_backup import made
from tests.faults.test_io_errors import FULL, failed_on, injecting, is_judged, places, strace
from tests.orchestrator.test_evaluate import a_run

UNTRIED = frozenset(
    {"close", "mmap", "ioctl", "fadvise64", "lseek", "getcwd", "execve", "chdir", "dup", "dup2", "dup3"}
)
"""Calls whose failure says nothing of a disk, or that nobody can answer: a descriptor that was not closed is closed."""
BUGS = frozenset({1, 120})
"""What Python ends with after a traceback, and where its output was lost."""
PARTS = 4


@dataclass(frozen=True)
class Command:
    """words: after `python -m orchestrator`; {root} is the folder of the scene. prepare: what is done before.

    again: codes that the same command may end with when it is typed again.
    """

    words: str
    prepare: Callable[[Scene], None] = lambda run: None
    again: frozenset[int] = frozenset({0})


def with_a_back_up(run: Scene) -> None:
    assert run.ask("backup", str(run.root / "kept")).returncode == 0
    made(run.root / "kept")[0].rename(run.root / "one")


def without_a_store(run: Scene) -> None:
    for path in (run.run.store, *run.run.store_companions):
        path.unlink(missing_ok=True)


def beside_another(run: Scene) -> None:
    shutil.copytree(run.run.root, run.run.root.with_name("other"))


TAKEN = frozenset({0, ExitCode.INPUT})
"""It may have been done, but for its last words: then the name is taken."""
OF_A_RUN = {
    "status": Command("status --run fake"),
    "explain": Command("explain --run fake"),
    "logs": Command("logs --run fake"),
    "report": Command("report --run fake"),
    "compare": Command("compare fake other", beside_another),
    "checkpoint": Command("checkpoint --run fake", again=TAKEN),
    "stop": Command("stop --run fake", again=TAKEN),
    "doctor": Command("doctor --run fake"),
    "repair": Command("doctor --run fake --repair"),
    "recover": Command("recover --run fake", without_a_store),
    "prune": Command("prune --run fake --keep 0"),
    "backup": Command("backup {root}/kept --run fake"),
    "archive": Command("archive {root}/night.tar --run fake", again=TAKEN),
    "restore": Command("restore {root}/one --run again", with_a_back_up, again=TAKEN),
}
OF_A_MODEL = {
    "export": Command("export --merged --out {root}/model --run night", again=TAKEN),
    "evaluate": Command("evaluate --on pocket --examples 1 --max-new-tokens 4 --run night"),
}
COMMANDS = {**OF_A_RUN, **OF_A_MODEL}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a finished run of the fake trainer, and of a run whose head is the built-in model."""
    with scene(tmp_path_factory.mktemp("finished") / "run") as run:
        run.finish()
        (run.run.root / "ballast").unlink()
        a_run(run.run.root.with_name("night"))
        yield run.root


def placed(finished: Path, folder: Path, command: Command) -> Scene:
    """A copy, as the command is to find it. Always at the same place: calls are counted."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(finished, folder)
    run = Scene(folder)
    command.prepare(run)
    return run


def typed(run: Scene, command: Command, before: list[str]) -> subprocess.CompletedProcess[str]:
    words = command.words.format(root=run.root).split()
    return subprocess.run(
        [*before, sys.executable, "-m", "orchestrator", *words, "--runs", str(run.root / "runs")],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=5 * PATIENCE_S, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip


def calls_of(command: Command, finished: Path, folder: Path) -> Mapping[str, list[int]]:
    """Call -> its numbers on files of the scene."""
    run, log = placed(finished, folder / "run", command), folder / "trace"
    done = typed(run, command, strace(log, "trace=%file,%desc"))
    assert done.returncode in command.again, done.stderr
    found = places(log, run.root)
    return {call: numbers for call, numbers in sorted(found.items()) if call not in UNTRIED}


def tries(found: Mapping[str, list[int]]) -> list[tuple[str, str, int]]:
    """(call, error, number) of all that can be tried."""
    return [
        (call, error, number)
        for call, numbers in found.items()
        for error in ("EIO", *(["ENOSPC"] if call in FULL else []))
        for number in numbers
    ]


def check_try(command: Command, call: str, error: str, number: int, finished: Path, folder: Path) -> None:
    run, log = placed(finished, folder / "run", command), folder / "trace"
    done = typed(run, command, injecting(log, call, error, number))
    hit = failed_on(log)
    if not is_judged(call, hit, run.root):
        return
    what = f"{command.words}: {call} {number} {error}\n{hit}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    faults.append(what)
    assert "Traceback" not in done.stdout + done.stderr and done.returncode not in BUGS, what
    if done.returncode and done.returncode not in command.again and "error:" in done.stderr:
        assert {"error", "kept", "next"} <= {line.split(":")[0] for line in done.stderr.splitlines()}, what
    again = typed(run, command, [])
    assert again.returncode in command.again, f"{what}\nand again: exit {again.returncode}\n{again.stderr}"
    assert_nothing_is_lost(run, what)


def assert_nothing_is_lost(run: Scene, what: str) -> None:
    assert unsound(run.run.store) == "", what
    assert run.head_step() == 6, what
    kept = run.rows("SELECT path FROM checkpoints WHERE state='committed'")
    for (path,) in kept:
        verify(run.run.root / path, deep=True)
    if (other := Scene(run.root, name="again")).run.root.exists():
        assert other.head_step() == 6 and unsound(other.run.store) == "", what
        verify(other.head_dir(), deep=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("explain", "logs", "stop", "repair")])
def test_a_command_survives_a_call_that_fails(name: str, finished: Path, tmp_path: Path) -> None:
    command = COMMANDS[name]
    found = tries(calls_of(command, finished, tmp_path))
    for one in Random(name).sample(found, min(2, len(found))):
        check_try(command, *one, finished, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_survives_any_call_that_fails(name: str, part: int, finished: Path, tmp_path: Path) -> None:
    command = COMMANDS[name]
    for one in tries(calls_of(command, finished, tmp_path))[part::PARTS]:
        check_try(command, *one, finished, tmp_path)
