"""What is stable in `import longhaul`: its names, their signatures, the fields of its records; and what it imports."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import fields, is_dataclass

import pytest

import longhaul
from tests import REPOSITORY

FUNCTIONS = {
    "frame": "(records: 'Iterable[Any]') -> 'pandas.DataFrame'",
    "open_run": "(name: 'str | None' = None, folder: 'str | Path' = 'runs') -> 'Run'",
    "resume": "(name: 'str', *, folder: 'str | Path' = 'runs', settings: 'Mapping[str, Any] | None' = None,"
    " arguments: 'Sequence[str]' = (), timeout_s: 'float' = 300.0) -> 'Run'",
    "runs": "(folder: 'str | Path' = 'runs') -> 'list[Run]'",
    "start": "(profile: 'str | Path' = 'pocket', *, name: 'str | None' = None, folder: 'str | Path' = 'runs',"
    " settings: 'Mapping[str, Any] | None' = None, arguments: 'Sequence[str]' = (), timeout_s: 'float' = 300.0)"
    " -> 'Run'",
}
OF_A_RUN = {
    "checkpoint": "(self, *, timeout_s: 'float' = 900.0) -> 'Checkpoint'",
    "checkpoints": "(self) -> 'list[Checkpoint]'",
    "cycles": "(self) -> 'list[Cycle]'",
    "events": "(self, newest: 'int' = 50) -> 'list[Event]'",
    "explain": "(self) -> 'list[str]'",
    "load_model": "(self, which: 'str | int' = 'head', *, device: 'str' = 'cpu') -> 'LoadedModel'",
    "metric_names": "(self) -> 'list[str]'",
    "profile": "(self) -> 'dict[str, Any]'",
    "rollouts": "(self, number: 'int' = 8) -> 'list[Rollout]'",
    "series": "(self, metrics: 'Sequence[str]' = ('reward',), *, points: 'int' = 600, first: 'int' = 1,"
    " last: 'int | None' = None) -> 'list[Point]'",
    "status": "(self) -> 'Status'",
    "steps": "(self, *, first: 'int' = 1, last: 'int | None' = None) -> 'list[Step]'",
    "stop": "(self, *, now: 'bool' = False, timeout_s: 'float' = 1800.0) -> 'Status'",
    "tasks": "(self, newest: 'int' = 100) -> 'list[Task]'",
    "validations": "(self, suite: 'str | None' = None) -> 'list[Validation]'",
    "wait": "(self, timeout_s: 'float | None' = None) -> 'Status'",
    "watch": "(self, *, first: 'int' = 1, poll_s: 'float' = 0.5) -> 'Iterator[Step]'",
}
RECORDS = {
    "Checkpoint": "step cycle path digest num_bytes is_head",
    "Cycle": "cycle phase state first last train_seconds new_tasks verdict evidence",
    "Event": "at cycle step type text",
    "LoadedModel": "model tokenizer checkpoint",
    "Point": "first last seconds tokens metrics",
    "Rollout": "step task prompt answer verdict reward",
    "Status": "run profile state phase cycle step steps_total head_step accuracy training_seconds master_pid failures"
    " stop_reason facts",
    "Step": "step cycle seconds reward metrics",
    "Task": "kind step program input output solve_rate",
    "Validation": "step cycle suite accuracy low high correct n tasks",
}


def test_the_public_names_are_these() -> None:
    assert set(longhaul.__all__) == {*FUNCTIONS, *RECORDS, "ExitCode", "LonghaulError", "Run"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_keeps_its_signature(name: str) -> None:
    assert str(inspect.signature(getattr(longhaul, name))) == FUNCTIONS[name]


def test_a_run_keeps_its_methods_and_their_signatures() -> None:
    public = {name: one for name, one in vars(longhaul.Run).items() if not name.startswith("_")}
    assert {name: str(inspect.signature(one)) for name, one in public.items() if inspect.isfunction(one)} == OF_A_RUN
    assert {name for name, one in public.items() if isinstance(one, property)} == {"name", "path"}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_keeps_its_fields(name: str) -> None:
    record = getattr(longhaul, name)
    assert is_dataclass(record) and " ".join(field.name for field in fields(record)) == RECORDS[name]


@pytest.mark.parametrize("name", [*FUNCTIONS, *RECORDS, "Run"])
def test_every_public_name_is_explained_there_and_in_the_guide(name: str) -> None:
    assert inspect.getdoc(getattr(longhaul, name))
    assert f"`{name}" in (REPOSITORY / "docs/python.md").read_text()


@pytest.mark.parametrize("name", OF_A_RUN)
def test_every_method_of_a_run_is_explained_there_and_in_the_guide(name: str) -> None:
    assert inspect.getdoc(getattr(longhaul.Run, name))
    assert f"`{name}(" in (REPOSITORY / "docs/python.md").read_text()


def test_importing_it_imports_no_large_library_and_nothing_of_the_master() -> None:
    code = (
        "import json, sys; before = set(sys.modules); import longhaul; print(json.dumps([*set(sys.modules) - before]))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    found = {name.split(".")[0] for name in json.loads(told.stdout)}
    assert found >= {"longhaul", "profiles"}
    heavy = {"torch", "transformers", "numpy", "pandas", "msgspec", "rich", "psutil", "sqlite3"}
    assert not found & {*heavy, "orchestrator", "workers", "state"}
