"""A worker that waits for its task has imported what its profile needs, and has opened no GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace

from profiles.schema import Model, Optimizer, Profile, Run
from tests import REPOSITORY
from workers.contract import NEEDS_VARIABLE, Need, needs_of

PLAIN = Profile(name="test", run=Run(device="cpu"))


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        pytest.param(PLAIN, [], id="a model of its own precision on a CPU"),
        pytest.param(replace(PLAIN, model=Model(quantization="nf4")), [Need.BITSANDBYTES], id="4 bits"),
        pytest.param(replace(PLAIN, optimizer=Optimizer(kind="adamw8bit")), [Need.BITSANDBYTES], id="8-bit moments"),
        pytest.param(replace(PLAIN, run=Run(device="cuda")), [Need.GPU], id="a GPU"),
        pytest.param(replace(PLAIN, run=Run(device="auto")), [Need.GPU], id="a GPU where there is one"),
    ],
)
def test_what_a_worker_needs_follows_from_its_profile(profile: Profile, expected: list[Need]) -> None:
    assert needs_of(profile) == expected


WAITING = """
import sys
from workers.early_imports import import_early
import_early()
import torch
before = set(sys.modules)
import bitsandbytes
late = sorted(name for name in set(sys.modules) - before if not name.startswith("bitsandbytes"))
print(len(late), torch.cuda.is_initialized())
"""


@pytest.mark.parametrize(("needs", "is_early"), [(Need.BITSANDBYTES, True), ("", False)])
def test_what_bitsandbytes_imports_is_there_before_the_task(needs: str, is_early: bool) -> None:
    pytest.importorskip("bitsandbytes")
    done = subprocess.run(
        [sys.executable, "-c", WAITING],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), NEEDS_VARIABLE: needs},
        capture_output=True,
        text=True,
        check=True,
    )
    late, is_initialized = done.stdout.split()
    assert (int(late) < 50) == is_early and is_initialized == "False"


def test_what_is_not_installed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from workers import early_imports

    monkeypatch.setenv(NEEDS_VARIABLE, "gpu")
    monkeypatch.setitem(early_imports.MODULES, Need.GPU, ("no_such_module",))
    early_imports.import_early()
