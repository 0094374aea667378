"""A reward of one's own: one file, and self-play trains on it in either role and counts it under its name."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from profiles.schema import Azr
from state.layout import RunDir
from tests import REPOSITORY
from tests.extending import example
from tests.workers import harness as h
from tests.workers.azr.small import said, triplet
from tests.workers.azr.test_steps import DOUBLE, ONE_TASK, Play, right
from tests.workers.rewards.even_sum import EvenSum
from workers.azr.rows import Row
from workers.azr.selfplay import SelfPlay
from workers.azr.trainer import AzrTrainer
from workers.contract import Outcome
from workers.control import Control
from workers.cycle.train import train
from workers.rewards.of_profile import NO_PARTS, RoleRewards
from workers.runtime import carry_out
from workers.sandbox import Limits, Sandbox

BOTH = RoleRewards(solve=(EvenSum(),), propose=(EvenSum(),))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(allow_weak=True), jobs=1) as box:
        yield box


def rows_of(directory: Path, sandbox: Sandbox, own: RoleRewards) -> list[Row]:
    answers = {"propose ded": lambda n: said(triplet(DOUBLE, "'u'")), "solve ded": right(2)}
    play = Play(directory, sandbox, answers, **ONE_TASK)
    return SelfPlay(play.tools, play.buffers, lambda stage: nullcontext(), own).collect(1).rows


@pytest.mark.parametrize(
    ("own", "roles"),
    [(BOTH, {"solve", "propose"}), (RoleRewards(solve=(EvenSum(),)), {"solve"}), (NO_PARTS, set())],
)
def test_its_number_is_added_in_the_roles_that_have_it(
    own: RoleRewards, roles: set[str], tmp_path: Path, sandbox: Sandbox
) -> None:
    before = rows_of(tmp_path / "before", sandbox, NO_PARTS)
    for row, plain in zip(rows_of(tmp_path / "after", sandbox, own), before, strict=True):
        even = 0.5 * (sum(row.completion_ids) % 2 == 0)
        assert row.own_rewards == ({"even": even} if row.role in roles else {})
        assert plain.reward is not None and row.reward == plain.reward + (even if row.role in roles else 0)


def trained(root: Path, sandbox: Sandbox, own: RoleRewards) -> tuple[list[dict[str, float]], bytes]:
    """Metrics of the steps after seeding, and the weights at the end."""
    root.mkdir()
    profile = h.tiny_profile(azr=Azr(tasks=("ded",), proposals_per_task=4, group_size=4))
    for cycle, end in ((0, 1), (1, 3)):
        head = h.newest_checkpoint(root) if cycle else None
        spec = h.make_spec(root, profile, head=head, end_step=end, cycle=cycle)
        carry_out(spec, Control(None, spec.token), lambda attempt: train(attempt, AzrTrainer(attempt, sandbox, own)))
        assert h.result_of(spec).outcome is Outcome.DONE, h.result_of(spec).error
    steps = [event.data for event in h.events_at(RunDir(root).attempt(1, 1, "train").path, "step")]
    return steps, (root / h.newest_checkpoint(root).path / "model.safetensors").read_bytes()


def test_a_reward_of_one_file_is_trained_on_and_counted(tmp_path: Path, sandbox: Sandbox) -> None:
    steps, weights = trained(tmp_path / "own", sandbox, BOTH)
    plain_steps, plain_weights = trained(tmp_path / "plain", sandbox, NO_PARTS)
    assert all(0 < step["reward/even"] < 0.5 for step in steps)
    assert not any("reward/even" in step for step in plain_steps)
    assert weights != plain_weights


def test_it_touches_one_file() -> None:
    path = REPOSITORY / "tests/workers/rewards/even_sum.py"
    imported = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "typing", "workers.rewards.reward"}
    folders = ("profiles", "state", "workers", "orchestrator")
    code = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    assert [path for path in code if "even_sum" in path.read_text(encoding="utf-8").lower()] == []


def test_the_example_of_the_how_to_is_judged_in_both_roles(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_rewards.py").write_text(example("A reward as a class"))
    monkeypatch.syspath_prepend(tmp_path)
    short = importlib.import_module("my_rewards").Short()
    for row in rows_of(tmp_path, sandbox, RoleRewards(solve=(short,), propose=(short,))):
        assert row.own_rewards == {"short": pytest.approx(0.1 * (1 - len(row.completion_ids) / 1000))}
