"""The libraries of a profile, tried as doctor tries them: what is missing is named with its remedy."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from profiles.load import load_profile, resolved_json
from profiles.schema import Adapter, Model, Optimizer, Profile
from tests.workers.torch_settings import torch_as_it_was
from workers import selftest
from workers.azr.update import PolicyUpdate

NF4 = Profile(name="q", model=Model(path="m", quantization="nf4"), adapter=Adapter(rank=8, implementation="peft"))
FULL = Profile(name="f", model=Model(path="m"), optimizer=Optimizer(kind="adamw8bit"))
PLAIN = Profile(name="p", model=Model(path="m"), adapter=Adapter(rank=8, implementation="own"))


@pytest.fixture(autouse=True)
def leave_torch_as_it_was() -> Iterator[None]:
    with torch_as_it_was():
        yield


def test_a_process_tries_all_of_them_and_takes_a_step_in_four_bits() -> None:
    """On a CPU bitsandbytes has the same code in slow."""
    profile = load_profile("azr-3b-qlora-debug", ["adapter.implementation=peft"]).profile
    command = [sys.executable, "-m", "workers.selftest"]
    done = subprocess.run(command, input=resolved_json(profile), capture_output=True, timeout=120, check=False)
    found = {check["name"]: check for check in map(json.loads, done.stdout.splitlines())}
    assert list(found) == ["cuda", "peft", "bitsandbytes", "triton", "self-test"], done.stderr[-2000:]
    assert done.returncode == 0 and {check["state"] for check in found.values()} <= {"ok", "warn"}
    assert found["self-test"]["detail"].startswith("4 bits, adapter (peft), rollouts, backward, adamw: in ")


@pytest.mark.parametrize(
    ("profile", "needed"),
    [
        pytest.param(NF4, {"peft": True, "bitsandbytes": True}, id="QLoRA"),
        pytest.param(FULL, {"peft": False, "bitsandbytes": True}, id="moments in 8 bits"),
        pytest.param(PLAIN, {"peft": False, "bitsandbytes": False}, id="an adapter of our own"),
        pytest.param(Profile(name="x"), {"peft": False, "bitsandbytes": False}, id="neither"),
    ],
)
def test_which_libraries_a_profile_needs(profile: Profile, needed: dict[str, bool]) -> None:
    assert selftest.needed_libraries(profile) == needed


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in names else find(name, *a))


def test_a_library_that_is_missing_fails_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "bitsandbytes", "peft")
    states = {check["name"]: check["state"] for check in selftest.libraries(NF4)}
    assert states == {"peft": "fail", "bitsandbytes": "fail"}
    assert all("pip install -c constraints.txt" in check["fix"] for check in selftest.libraries(NF4))
    assert {check["state"] for check in selftest.libraries(PLAIN)} == {"ok"}


def test_without_optional_libraries_the_step_is_taken_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "bitsandbytes", "peft")
    check = selftest.whole_path(NF4)
    assert check["state"] == "ok" and check["detail"].startswith("float32, adapter (own), rollouts, backward, adamw")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_fails_only_where_one_is_asked_for() -> None:
    profile = load_profile("azr-0.5b").profile
    assert selftest.cuda(profile)["state"] == "fail" and "make setup" in selftest.cuda(profile)["fix"]
    assert selftest.cuda(PLAIN)["state"] == "ok"


def test_a_step_that_goes_wrong_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "bitsandbytes", "peft")
    monkeypatch.setattr(PolicyUpdate, "apply", lambda *_: (True, {"mismatch_max": 0.0}))
    assert selftest.whole_path(PLAIN)["detail"].endswith("no gradient has reached the adapter")

    def broken(*_: Any) -> Any:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr(PolicyUpdate, "apply", broken)
    check = selftest.whole_path(PLAIN)
    assert check["state"] == "fail" and check["detail"].endswith("RuntimeError: first") and check["fix"]
