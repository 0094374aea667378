"""Real learning: the pocket model of word problems by the profile that ships, scored on computations it never saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.load import load_profile
from profiles.schema import Profile
from tests.workers import harness as h
from tests.workers.grpo.test_grpo_worker import leave_torch_as_it_was as leave_torch_as_it_was
from tests.workers.grpo.test_grpo_worker import metrics_of, trained
from tests.workers.test_azr_worker import checkpoint_of
from workers.contract import CheckpointRef
from workers.control import Control
from workers.grpo.kind import job
from workers.intervals import wilson
from workers.pocket.word_problems.problems import main as write
from workers.runtime import carry_out

STEPS = 40
EACH = 60
"""Held-out problems of each number of operations."""


def profile_of(problems: Path, **grpo: Any) -> Profile:
    settings = {
        "run.threads": 1, "data.tasks": str(problems), "grpo.groups_per_step": 8,
        "grpo.sent.enabled": True, "grpo.sent.samples": 4,
        "grpo.sent.min_steps": 10, "grpo.sent.max_steps": 20, "validation.examples_per_task": EACH,
    } | {f"grpo.{name}": value for name, value in grpo.items()}  # fmt: skip
    return load_profile("pocket-grpo", [f"{key}={json.dumps(value)}" for key, value in settings.items()]).profile


def validated(root: Path, profile: Profile, head: CheckpointRef) -> dict[str, dict[str, float]]:
    spec = h.make_spec(root, profile, head=head, end_step=head.step + 1, role="validate", cycle=head.step)
    carry_out(spec, Control(None, spec.token), job(spec))
    result = h.result_of(spec)
    assert result.validation, result.error
    return result.validation["words"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sampled_accuracy_rises_beyond_its_interval_with_entropy_mask_and_curriculum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(["--count", "96"])
    (tmp_path / "problems.jsonl").write_text(capsys.readouterr().out)
    profile = profile_of(tmp_path / "problems.jsonl", entropy_mask="percentile")
    start = checkpoint_of(trained(tmp_path / "run", profile))
    end = checkpoint_of(trained(tmp_path / "run", profile, STEPS, head=start))
    before, after = (validated(tmp_path / "run", profile, head)["mean"] for head in (start, end))
    samples = 3 * EACH
    assert (
        wilson(after["sampled_accuracy"] * samples, samples)[0]
        > wilson(before["sampled_accuracy"] * samples, samples)[1]
    )
    steps = metrics_of(tmp_path / "run")
    assert {step["stage"] for step in steps} >= {1.0, 2.0}
    assert all(0.4 < step["kept_tokens"] < 0.8 for step in steps if "kept_tokens" in step)
