"""doctor: each check, its result and its remedy; its exit code is the one that a run would end with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import doctor
from orchestrator.commands.doctor import closing, line
from orchestrator.doctor import Finding
from orchestrator.machine import Card, Machine
from profiles.errors import ExitCode
from profiles.footprint import GIB
from profiles.load import load_profile
from profiles.schema import Profile, Sandbox


def profile(**sandbox: Any) -> Profile:
    return Profile(name="mine", sandbox=Sandbox(**sandbox))


def layers(*missing: str) -> list[dict[str, Any]]:
    names = ("landlock", "seccomp", "userns", "netns")
    return [{"name": name, "holds": name not in missing, "reason": "tried"} for name in names]


@pytest.mark.parametrize(
    ("missing", "knobs", "failed"),
    [
        pytest.param((), {}, [], id="all hold"),
        pytest.param(("netns",), {}, [], id="not required"),
        pytest.param(("seccomp",), {}, ["sandbox seccomp"], id="required"),
        pytest.param(("userns",), {"require": ("userns",)}, ["sandbox userns"], id="required by this profile"),
        pytest.param(
            ("landlock", "seccomp"), {"require": ()}, ["sandbox landlock", "sandbox seccomp"], id="one of them always"
        ),
        pytest.param(("landlock",), {"require": ()}, [], id="the other one holds"),
        pytest.param(("landlock", "seccomp"), {"allow_weak": True}, [], id="the profile takes the risk"),
    ],
)
def test_a_missing_layer_fails_where_a_run_would_refuse(
    missing: tuple[str, ...], knobs: dict[str, Any], failed: list[str]
) -> None:
    findings = list(doctor.judge_layers(layers(*missing), profile(**knobs)))
    assert [finding.check for finding in findings if finding.state == "fail"] == failed
    assert all(finding.exit_code == ExitCode.PERMISSION for finding in findings if finding.state == "fail")
    assert [finding.check.split()[1] for finding in findings if finding.state != "ok"] == list(missing)
    assert all(finding.fix for finding in findings if finding.state != "ok")


def test_this_machine_is_examined_without_leaving_a_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orchestrator", "doctor", "--runs", str(tmp_path / "runs"), "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    findings = json.loads(answer.stdout)
    checks = {finding["check"]: finding for finding in findings}
    assert checks["python"]["state"] == checks["packages"]["state"] == checks["disk"]["state"] == "ok"
    assert {"sandbox landlock", "sandbox seccomp", "sandbox netns"} <= set(checks)
    failed = [finding["exit_code"] for finding in findings if finding["state"] == "fail"]
    assert answer.returncode == (failed[0] if failed else 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["azr-0.5b", "pocket"])
def test_a_login_node_is_not_asked_for_the_gpus_and_the_sandbox_of_workers_elsewhere(name: str, tmp_path: Path) -> None:
    elsewhere = load_profile(name, ["launch.launcher=slurm"]).profile
    checks = [finding.check for finding in doctor.examine(elsewhere, tmp_path)]
    assert set(checks) <= {"python", "packages", "sqlite", "disk", "locks", "space", "workers"}
    assert checks[-1] == "workers"


def test_a_folder_that_cannot_be_written_fails_with_its_remedy() -> None:
    (finding,) = doctor.disk(Path("/proc/self/runs"))
    assert finding.state == "fail"
    assert finding.exit_code in (ExitCode.DISK, ExitCode.PERMISSION)
    assert "/proc" in finding.detail
    assert finding.fix


@pytest.mark.parametrize(
    ("version", "state"),
    [((3, 10, 9), "fail"), ((3, 11, 0), "ok"), ((3, 14, 1), "ok"), ((3, 15, 0), "warn")],
)
def test_an_old_python_fails_and_one_that_was_not_tested_is_a_warning(version: tuple[int, ...], state: str) -> None:
    assert doctor.python_version(version).state == state


def test_little_memory_is_a_warning() -> None:
    assert [doctor.memory(mib).state for mib in (500, 4096)] == ["warn", "ok"]


@pytest.mark.parametrize(("device", "state"), [("cuda", "fail"), ("cpu", "ok"), ("auto", "ok")])
def test_no_driver_fails_only_where_a_gpu_is_asked_for(
    device: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor.gpu(device)
    assert (finding.state, finding.exit_code) == (state, ExitCode.GPU if state == "fail" else ExitCode.OK)


def test_each_finding_is_a_line_with_its_remedy_below() -> None:
    bad = Finding("disk", "fail", "read-only \x1b[2J", "remount it", ExitCode.DISK)
    text = line(bad)
    assert text.startswith("FAIL  disk")
    assert "\x1b" not in text
    assert text.splitlines()[1].strip() == "-> remount it"
    assert "1 of 1 checks failed: it cannot run" in closing([bad], "it cannot run", "run it")


def test_fewer_gpus_than_the_profile_asks_for_are_a_failure() -> None:
    machine = Machine((Card("one", 24 * GIB),))
    findings = list(doctor.card(load_profile("azr-3b-qlora", ["run.gpus=2"]).profile, machine))
    assert [(one.check, one.state, one.exit_code) for one in findings[:1]] == [("gpus", "fail", ExitCode.GPU)]
    sampled = load_profile("azr-3b-qlora", ["run.overlap=1", "run.sampler_device=cuda:1"]).profile
    (two, *_) = doctor.card(sampled, machine)
    assert two.detail == "1 of 2 required by run.sampler_device" and two.fix.endswith("--set run.sampler_device=")
    on_cpu = load_profile("azr-3b-qlora-debug", ["run.gpus=2"]).profile
    assert not list(doctor.card(on_cpu, Machine(())))


def test_the_gpu_s_memory_is_compared_with_the_profile() -> None:
    mine = load_profile("azr-0.5b").profile

    def states(gigabytes: float, profile: Profile = mine) -> list[tuple[str, ExitCode]]:
        machine = Machine((Card("small", int(gigabytes * GIB)),))
        return [(finding.state, finding.exit_code) for finding in doctor.card(profile, machine)]

    assert states(24) == [("ok", ExitCode.OK)]
    assert states(8) == [("fail", ExitCode.CUDA_OOM)]
    assert states(8, load_profile("azr-0.5b", ["memory.on_small_card=warn"]).profile) == [("warn", ExitCode.OK)]
    assert list(doctor.card(mine, Machine(()))) == [] == list(doctor.card(load_profile("pocket").profile, Machine(())))
    (finding,) = doctor.card(mine, Machine((Card("small", 8 * GIB),)))
    assert "--set optimizer.micro_batch_size=" in finding.fix


def test_a_library_that_fails_has_the_exit_code_that_a_run_would_have() -> None:
    lines = [
        json.dumps({"name": name, "state": state, "detail": "d", "fix": "f"})
        for name, state in (("cuda", "fail"), ("peft", "fail"), ("triton", "warn"), ("self-test", "fail"), ("x", "ok"))
    ]
    found = {finding.check: finding for finding in doctor.judge_libraries([*lines, "greetings", "[1]", '{"name": 1}'])}
    assert {name: one.exit_code for name, one in found.items()} == {
        "cuda": ExitCode.GPU, "peft": ExitCode.INPUT, "triton": ExitCode.OK, "self-test": ExitCode.INTERNAL,
        "x": ExitCode.OK,
    }  # fmt: skip
    assert found["triton"].state == "warn"


def test_libraries_are_not_tried_for_what_needs_none() -> None:
    assert [list(doctor.libraries(load_profile(name).profile)) for name in ("pocket", "fake")] == [[], []]


def test_a_process_that_dies_while_it_tries_the_libraries_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    died = (
        sys.executable,
        "-c",
        "import os, sys; sys.stderr.write('half a word\\n'); sys.stderr.flush(); os._exit(42)",
    )
    monkeypatch.setattr(doctor, "LIBRARIES_COMMAND", died)
    (finding,) = doctor.libraries(load_profile("azr-3b-qlora-debug").profile)
    assert finding.state == "fail" and "ended with 42: half a word" in finding.detail
