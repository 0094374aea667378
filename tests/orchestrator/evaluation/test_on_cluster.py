"""Which array of an earlier command an evaluation goes on with."""

from __future__ import annotations

import io
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator.evaluation import on_cluster
from orchestrator.evaluation.on_cluster import OnCluster
from orchestrator.evaluation.progress import Progress
from orchestrator.launchers.slurm_array import SlurmArray
from profiles.errors import LonghaulError
from profiles.schema import Launch, Profile, Sampling
from state.evaluation_array import arrays_in
from workers.line_contract import EvaluationSpec, Left, Said, SuiteBegun

PROGRAMS = {
    "sbatch": '[ -e "$(dirname "$0")/refuses" ] && { echo "Invalid partition name specified" >&2; exit 1; }; echo 12',
    "squeue": "",
    "sacct": "",
    "scontrol": "exit 1",
}
PROFILE = Profile(name="x", launch=Launch(launcher="slurm", partition="gpuu"), sampling=Sampling(engine="native"))


class Follows(Exception):
    """The command follows the array of this number."""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvaluationSpec:
    """The evaluation of a command that died before it could submit its array."""
    programs, folder = tmp_path / "bin", tmp_path / "evaluation"
    programs.mkdir()
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    spec = EvaluationSpec(
        folder=str(folder), model="/m", step=None, profile=PROFILE, suites=("gsm8k",), style="plain", data="",
        examples=0, samples=1, temperature=0.0, max_new_tokens=8, ks=(1,), batch_size=4, seed=0, shards=2,
    )  # fmt: skip
    (programs / "refuses").touch()
    with pytest.raises(LonghaulError, match="Invalid partition"):
        command(spec).answer()
    (programs / "refuses").unlink()
    return spec


def command(spec: EvaluationSpec) -> OnCluster:
    def ask(spec: EvaluationSpec) -> Generator[Said]:
        for suite in spec.suites:
            yield SuiteBegun(suite, f"of {suite}", 4)
        yield Left([2, 2])

    return OnCluster(spec, "ev-1", 0, ask, lambda _: None, Progress(io.StringIO(), on_terminal=False))


def followed(spec: EvaluationSpec, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of the array that such a command follows."""

    def watch(array: SlurmArray) -> None:
        raise Follows(array.directory.number)

    monkeypatch.setattr(on_cluster, "Watch", watch)
    with pytest.raises(Follows) as found:
        command(spec).answer()
    return int(found.value.args[0])


@pytest.mark.parametrize(
    "change",
    [{"suites": ("cruxeval-o",)}, {"profile": replace(PROFILE, sampling=Sampling(engine="hf"))}, {"shards": 3}],
    ids=["other suites", "another engine", "another number of shards"],
)
def test_an_array_that_was_asked_something_else_is_left_alone(
    spec: EvaluationSpec, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(spec, **change)
    assert followed(asked, monkeypatch) == 2
    stored = msgspec.json.decode(arrays_in(Path(spec.folder))[-1].spec.read_bytes(), type=EvaluationSpec)
    assert replace(stored, fingerprints={}) == asked


def test_an_array_whose_command_died_is_submitted_with_a_launch_that_was_corrected(
    spec: EvaluationSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    corrected = replace(PROFILE, launch=Launch(launcher="slurm", partition="gpu"))
    assert followed(replace(spec, profile=corrected), monkeypatch) == 1
