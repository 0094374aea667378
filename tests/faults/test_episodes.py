"""GRPO on episodes under the real master: what a step keeps of them, and what a kill or a failure leads to."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.faults import harness
from tests.faults.harness import Master, Scene, scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DOCUMENT = (REPOSITORY / "docs/environments.md").read_text(encoding="utf-8")
(PLAY,) = re.findall(r"^```toml\n# play.toml\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
SETTINGS = (
    "run.max_cycles=1",
    "run.steps_per_cycle=3",
    "run.checkpoint_every=1",
    "run.threads=1",
    "retry.backoff_s=0.01",
    "grpo.groups_per_step=4",
    "grpo.group_size=4",
    "optimizer.row_tokens=512",
    'validation.suites=["held-out"]',
    "validation.examples_per_task=6",
)
MOODY = """
class Moody:
    def reset(self, row):
        self.number = row["number"]
        return [{"role": "user", "content": "Ben has ? apples.\\n"}]
    def step(self, messages, reply):
        if self.number % 2:
            raise RuntimeError("not today")
        return [], float(len(reply) % 3), True
    @staticmethod
    def rows():
        return [{"number": number} for number in range(40)]
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "PATIENCE_S", 280.0)


def command(run: Scene, *more: str) -> list[str]:
    profile = run.root / "play.toml"
    profile.parent.mkdir(parents=True, exist_ok=True)
    profile.write_text(PLAY)
    options = [part for setting in (*SETTINGS, *more) for part in ("--set", setting)]
    return [sys.executable, "-m", "orchestrator", "run", "--plain", "--profile", str(profile),
            "--run", run.name, "--runs", str(run.root / "runs"), *options]  # fmt: skip


def first_step(run: Scene, master: Master) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows and the facts of the first step, while its cycle runs."""
    path = run.run.rollout_file(1, 1)
    master.wait_for(path.exists)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    (facts,) = (one for one in records if "metrics" in one)
    return [one for one in records if "completion_ids" in one], facts


def digest(run: Scene) -> str:
    return str(run.one("SELECT digest FROM checkpoints JOIN runs ON head=checkpoint_id"))


def environments() -> list[psutil.Process]:
    """Processes that play episodes, of this test."""
    me = psutil.Process()
    return [one for one in me.children(recursive=True) if "workers.environments.host" in " ".join(_command(one))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_an_environment_or_a_worker_that_is_killed_changes_nothing_at_the_end(tmp_path: Path) -> None:
    with scene(tmp_path / "unbroken") as run:
        run.launch_and_end(command(run), code=0)
        unbroken = digest(run)
    with scene(tmp_path / "disturbed") as run:
        master = run.launch(command(run), "worker.before_update:3:kill")
        rows, step = first_step(run, master)
        said = [row for row in rows if row.get("is_own")]
        assert said and all(not all(row["is_own"]) and row["turns"] > 1 for row in said)
        assert all(len(row["log_probs"]) == sum(row["is_own"]) for row in said)
        assert step["metrics"]["turns_mean"] > 1 and "reward/environment" in step["metrics"]
        for one in environments():
            one.send_signal(signal.SIGKILL)
        assert master.end() == 0, master.text()
        assert [state for state, *_ in run.attempts()] == ["failed", "succeeded"]
        assert digest(run) == unbroken
    assert environments() == []


def test_an_environment_that_fails_ends_the_run_or_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(MOODY)
    moody = (f"grpo.environment.name={tmp_path / 'moody.py'}:Moody", "grpo.reward.solved_at=1.0")
    with scene(tmp_path / "run") as run:
        master = run.launch(command(run, *moody))
        assert master.end() == ExitCode.REWARD, master.text()
        assert "failed in an episode of row" in master.text() and "not today" in master.text()
    with scene(tmp_path / "skipped") as run:
        master = run.launch(command(run, *moody, "grpo.reward.on_error=skip"))
        rows, step = first_step(run, master)
        failed = [row for row in rows if row.get("failure")]
        assert failed and step["metrics"]["rollouts_not_judged"] == len(failed)
        assert master.end() == 0, master.text()
        assert "have no reward and were left out" in master.text()
