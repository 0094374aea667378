"""Hours of a run: known by the best that there is, told in three lines, refused where they cannot be, and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.hours import cpu
from orchestrator.hours.prediction import Prediction, key_of, time_line
from orchestrator.hours.records import LEAST_STEPS, measured_before, noted, outcomes
from orchestrator.judging import judge
from orchestrator.machine import Card, Machine
from profiles.errors import ExitCode
from profiles.footprint import GIB
from profiles.knobs import with_values
from profiles.load import load_profile

QUIET = cpu.Processor(cpu.UNIT_S, 1.0, 2)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    found = capsys.readouterr()
    return found.out + found.err


def facts(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["plan", "--json", *words]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)["prediction"]
    return found


# --- a CPU -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", cpu.ROWS, ids=lambda row: row.profile)
def test_a_row_has_the_work_of_its_profile_and_is_found_for_it(row: cpu.CpuRow) -> None:
    profile = load_profile(row.profile).profile
    assert cpu.tokens_of(profile) == row.tokens and cpu.nearest(profile) == row
    assert cpu.seconds_of(profile, row, QUIET) == pytest.approx(row.cpu_s / cpu.USED_CORES)


def test_a_slower_core_and_more_rollouts_take_longer_and_one_core_longer_than_two() -> None:
    profile = load_profile("pocket-grpo").profile
    row = cpu.nearest(profile)
    assert row is not None
    first = cpu.seconds_of(profile, row, QUIET)
    assert cpu.seconds_of(profile, row, cpu.Processor(2 * cpu.UNIT_S, 1.0, 2)) == pytest.approx(2 * first)
    assert cpu.seconds_of(profile, row, cpu.Processor(cpu.UNIT_S, 1.0, 1)) == pytest.approx(cpu.USED_CORES * first)
    busy = cpu.seconds_of(profile, row, cpu.Processor(cpu.UNIT_S, 0.1, 2))
    assert busy == pytest.approx(first * cpu.BUSY_PART / 0.1)
    twice = with_values(profile, {"grpo.groups_per_step": 32})
    assert cpu.seconds_of(twice, row, QUIET) == pytest.approx(2 * first)


def test_the_processor_is_looked_at_for_real() -> None:
    found = cpu.this_processor()
    assert 1e-5 < found.unit_s < 1 and 0 < found.share <= 1 and found.cores >= 1


# --- how it is known -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "basis"),
    [
        (["--profile", "pocket"], "scaled from another CPU, not measured"),
        (["--profile", "azr-3b-qlora"], "there is no GPU here"),
        (["--profile", "azr-3b-qlora", "--card", "16"], "a card of 16 GB is not in the table"),
        (["--profile", "azr-3b-qlora", "--card", "16", "--card-name", "RTX 4080"], "scaled to RTX 4080, not measured"),
        (["--profile", "azr-3b-qlora", "--card", "80", "--card-name", "H100"], "by steps measured on H100"),
        (["--profile", "pocket", "--step-s", "3"], "as --step-s says"),
        (["--profile", "fake"], "it only sleeps"),
        (["--profile", "azr-0.5b", "--card", "80", "--card-name", "H100", "--set", "sampling.engine=hf"],
         "the engine hf was not measured"),
    ],
)  # fmt: skip
def test_it_says_how_it_knows(words: list[str], basis: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "--set" in words:
        words = [*words, "--set", "sampling.fallback=[]"]
    shape = ["--set", "model.path=pocket", "--set", 'model.random_init="qwen2.5-3b"'] if "--card" in words else []
    assert main(["plan", "--json", *words, *shape]) in (0, ExitCode.CUDA_OOM)
    found = json.loads(capsys.readouterr().out)["prediction"]
    assert str(found["basis"]).startswith(basis)
    assert (found["step_s"] is None) == (("not" in basis and "scaled" not in basis) or "no GPU" in basis)


def test_steps_become_hours(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--profile", "pocket", "--step-s", "3.6", "--steps", "10000"]
    assert facts(capsys, *words)["seconds"] == 36_000
    assert "time: 3.6 s a step (2.8 s to 4.7 s), as --step-s says; 10,000 steps in 10 h 00 m" in said(
        capsys, "plan", *words
    )


def test_what_is_not_known_is_said_to_be() -> None:
    unknown = Prediction(None, None, None, "nobody measured it", 0, None)
    assert time_line(unknown, 5) == "time: not known: nobody measured it"


def test_two_real_steps_are_timed_and_their_run_is_gone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--measure", "--json", "--profile", "fake", "--set", "fake.step_s=0.3"]) == 0
    found = capsys.readouterr()
    prediction = json.loads(found.out)["prediction"]
    assert 0.3 <= prediction["step_s"] < 30 and prediction["basis"] == "measured here, the second of two steps"
    assert "two steps of fake: done" in found.err and not any(place.iterdir())


@pytest.mark.slow
def test_two_real_steps_of_a_model_are_timed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert facts(capsys, "--measure", "--profile", "pocket-grpo-debug")["step_s"]


# --- a run -----------------------------------------------------------------------------------------------------------


def test_a_run_says_it_in_three_lines_keeps_it_and_the_next_one_knows_better(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--plain", "--profile", "fake", "--max-cycles", "1"]
    lines = said(capsys, *words, "--run", "one").splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == ["memory", "disk", "time"]
    assert lines[2].startswith("time: 0.05 s a step, it only sleeps; 5 steps in ")
    assert "measured here, run one; 5 steps in" in said(capsys, *words, "--run", "two").splitlines()[2]
    table = said(capsys, "plan", "--history").splitlines()
    assert table[0].startswith("run  steps  predicted  measured  error") and len(table) == 3
    assert table[1].startswith("two  5      ") and table[1].endswith("measured here, run one")
    (two, one) = json.loads(said(capsys, "plan", "--history", "--json"))
    assert one["predicted_s"] == 0.05 and one["measured_s"] >= 0.05
    assert one["error"] == pytest.approx(one["predicted_s"] / one["measured_s"] - 1) and two["steps"] == 5
    assert json.loads(said(capsys, "plan", "--history", "--json", "--run", "one"))[0]["run"] == "one"


def test_a_run_that_goes_on_is_planned_by_its_own_steps_and_keeps_its_first_prediction(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--plain", "--run", "one", "--max-cycles"]
    said(capsys, *words, "1", "--profile", "fake")
    ((run, before),) = noted(Path("runs"))
    assert ", measured in this run; 10 steps in" in said(capsys, *words, "2")
    assert [one for _, one in noted(Path("runs"))] == [before] and run.name == "one"
    assert facts(capsys, "--run", "one")["basis"] == "measured in this run"


def test_other_work_and_another_card_are_not_the_same() -> None:
    profile = load_profile("pocket").profile
    same = with_values(profile, {"run.seed": 7, "run.max_cycles": 3, "optimizer.learning_rate": 1e-3})
    other = with_values(profile, {"azr.group_size": 4})
    assert key_of(profile, "") == key_of(same, "")
    assert len({key_of(profile, ""), key_of(other, ""), key_of(profile, "NVIDIA H100")}) == 3
    beside = with_values(profile, {"run.overlap": 1})
    sampled = with_values(beside, {"run.sampler_device": "cpu"})
    assert len({key_of(one, "") for one in (profile, beside, sampled)}) == 3


def test_nothing_and_damage_are_no_history(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "plan", "--history") == "no run here has a prediction; a run notes one when it begins\n"
    (place / "runs/torn").mkdir(parents=True)
    (place / "runs/torn/prediction.json").write_text("{")
    (place / "runs/no-store").mkdir()
    (place / "runs/no-store/prediction.json").write_text('{"step_s":1,"low":1,"high":1,"basis":"x","ram_bytes":1,'
        '"disk_bytes":1,"key":"k"}')  # fmt: skip
    assert list(outcomes(Path("runs"))) == [] and measured_before(Path("runs"), "k") is None
    assert LEAST_STEPS > 1


def test_a_host_that_is_too_small_is_refused_and_says_what_to_type(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.hours.room.ram_total", lambda: 100_000_000)
    words = ["--profile", "fake", "--run", "one"]
    text = said(capsys, "run", "--plain", *words, code=ExitCode.CUDA_OOM)
    assert "error: this machine is too small for profile 'fake': up to 160 MB of host memory are expected" in text
    assert "next:  python -m orchestrator run --run one --profile fake --set memory.on_small_card=warn" in text
    assert not Path("runs").exists()
    assert main(["plan", *words]) == ExitCode.CUDA_OOM
    capsys.readouterr()
    more = ["--set", 'memory.on_small_card="warn"', "--max-cycles", "1"]
    assert "memory: up to 160 MB of 100 MB RAM expected" in said(capsys, "run", "--plain", *words, *more)


@pytest.mark.parametrize(
    ("profile", "architecture", "measured_gib"),
    [("azr-0.5b", "qwen2.5-0.5b", 5.64), ("azr-3b-qlora", "qwen2.5-3b", 7.23), ("grpo-1.5b-8gb", "r1-qwen-1.5b", 4.34)],
)
def test_host_memory_is_at_least_what_a_worker_took_and_at_most_half_more(
    profile: str, architecture: str, measured_gib: float
) -> None:
    from orchestrator.hours.prediction import ram_of

    shaped = with_values(load_profile(profile).profile, {"model.path": "pocket", "model.random_init": architecture})
    verdict = judge(shaped, Machine((Card("NVIDIA H200", 139 * GIB),)))
    assert measured_gib <= ram_of(verdict) / GIB <= 1.5 * measured_gib


@pytest.mark.parametrize("machine", [Machine(()), Machine((Card("NVIDIA H200", 139 * GIB),))], ids=["CPU", "GPU"])
def test_a_validation_beside_training_needs_the_host_memory_of_one_more_worker(machine: Machine) -> None:
    from orchestrator.hours.prediction import ram_of

    shaped = {"model.path": "pocket", "model.random_init": "r1-qwen-1.5b"}
    alone, both, two = (
        ram_of(judge(with_values(load_profile("grpo-1.5b-8gb").profile, shaped | more), machine))
        for more in ({}, {"validation.overlap": 1}, {"run.gpus": 2})
    )
    assert both == two > alone
