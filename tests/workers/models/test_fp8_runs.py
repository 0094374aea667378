"""Self-play whose updates multiply in 8 bits: what a worker reports, that it falls back, that resume is exact."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from profiles.schema import Adapter, Model, Optimizer, Profile
from tests.workers import harness as h
from tests.workers.test_azr_worker import do
from tests.workers.test_azr_worker import leave_torch_as_it_was as leave_torch_as_it_was  # a fixture
from tests.workers.test_azr_worker import sandbox as sandbox  # a fixture
from workers.contract import Outcome
from workers.models import fp8_check
from workers.sandbox import Sandbox

STEPS = 3


def profile(*, fp8: bool = True) -> Profile:
    return h.tiny_profile(
        adapter=Adapter(rank=4, alpha=8.0),
        model=Model(dtype="bfloat16", gradient_checkpointing=True, fp8=fp8),
        optimizer=Optimizer(micro_batch_size=16, warmup_steps=0, learning_rate=1e-2),
    )


def seeded(root: Path, of: Profile, sandbox: Sandbox) -> Path:
    root.mkdir()
    do(h.make_spec(root, of, head=None, end_step=1, cycle=0), sandbox)
    return root


def trained(root: Path, of: Profile, sandbox: Sandbox, *, end_step: int = STEPS + 1, attempt: int = 1) -> str:
    """The digest of the last checkpoint."""
    spec = h.make_spec(root, of, head=h.newest_checkpoint(root), end_step=end_step, attempt=attempt)
    assert do(spec, sandbox).outcome is Outcome.DONE, h.result_of(spec).error
    return h.newest_checkpoint(root).digest


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_resumed_run_decides_as_the_first_attempt_did_and_ends_with_its_bytes(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp8_check, "BOUND", 1.0)  # this model is small and trained: the real bound is near
    whole, broken = (seeded(tmp_path / name, profile(), sandbox) for name in ("whole", "broken"))
    expected = trained(whole, profile(), sandbox)
    trained(broken, profile(), sandbox, end_step=2)
    assert trained(broken, profile(), sandbox, attempt=2) == expected
    attempts = [whole / "cycles/0001/attempt-1", *(broken / f"cycles/0001/attempt-{number}" for number in (1, 2))]
    steps = [event.data for attempt in attempts for event in h.events_at(attempt, "step")]
    assert len(steps) == 2 * STEPS and all(one["fp8/used"] == 1.0 for one in steps)
    assert len({one["fp8/gradient_off"] for one in steps}) == 1 and 0.2 < steps[0]["fp8/gradient_off"] < 0.7
    path = h.events_at(attempts[0], "path")[0].data
    assert path["trainer_off"] < path["bound"] and "updates are computed in 8 bits" in path["text"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_falls_back_ends_with_the_weights_of_one_in_bfloat16(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp8_check, "BOUND", 0.001)
    found = {}
    for name, of in (("fp8", profile()), ("bfloat16", profile(fp8=False))):
        root = seeded(tmp_path / name, replace(of, name="same"), sandbox)
        trained(root, replace(of, name="same"), sandbox)
        found[name] = (root / h.newest_checkpoint(root).path / "adapter_model.safetensors").read_bytes()
    assert found["fp8"] == found["bfloat16"]
    attempt = tmp_path / "fp8/cycles/0001/attempt-1"
    assert all(event.data["fp8/used"] == 0.0 for event in h.events_at(attempt, "step"))
    warnings = [event.data["text"] for event in h.events_at(attempt, "warning")]
    assert any("are accepted: updates are computed in bfloat16" in text for text in warnings)
