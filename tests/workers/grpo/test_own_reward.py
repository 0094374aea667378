"""A user's own reward: one file is enough for GRPO to train on it and count it under its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers import harness as h
from tests.workers.grpo.small import sums, write_problems
from tests.workers.grpo.test_grpo_worker import metrics_of, plain_profile
from tests.workers.rewards.even_sum import EvenSum
from tests.workers.test_azr_worker import checkpoint_of, forget_everything
from workers.contract import CheckpointRef, Outcome
from workers.control import Control
from workers.cycle.train import train
from workers.grpo.trainer import GrpoTrainer
from workers.runtime import carry_out


def test_a_reward_of_one_file_is_trained_on_and_counted(tmp_path: Path) -> None:
    profile = plain_profile(write_problems(tmp_path / "sums.jsonl", sums(12)))
    root, head = tmp_path / "run", None
    root.mkdir()
    heads: list[CheckpointRef] = []
    for cycle, end in ((0, 1), (1, 4)):
        forget_everything()
        spec = h.make_spec(root, profile, head=head, end_step=end, cycle=cycle)
        carry_out(spec, Control(None, spec.token), lambda attempt: train(attempt, GrpoTrainer(attempt, [EvenSum()])))
        result = h.result_of(spec)
        assert result.outcome is Outcome.DONE, result.error
        heads.append(head := checkpoint_of(result))
    steps = metrics_of(root)
    assert len(steps) == 3
    for step in steps:
        assert step["reward"] == pytest.approx(step["reward/correct"] + step["reward/even"])
    assert any(0 < step["reward/even"] < 0.5 and not step["update_skipped"] for step in steps)
    assert heads[0].digest != heads[1].digest
