"""Self-play with rollouts whose log-probs are NaN: not judged, not trained on, and three such steps end the attempt."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.errors import ExitCode
from profiles.schema import Optimizer
from tests.workers import harness as h
from tests.workers import test_azr_worker as worker
from tests.workers.azr.small import Scripted, said, triplet
from tests.workers.azr.test_steps import DOUBLE, ONE_TASK, Play, cell, rewards_of, right
from workers.azr.rows import Collected
from workers.cycle import rollout_file
from workers.rollout.engine import Request, Rollout
from workers.rollout.engine import Sampling as How
from workers.sandbox import Limits, Sandbox

leave_torch_as_it_was = worker.leave_torch_as_it_was


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(allow_weak=True), jobs=1) as box:
        yield box


def spoil(monkeypatch: pytest.MonkeyPatch, call: int, places: set[int]) -> None:
    """The rollouts at these places of the engine's call get a NaN."""
    said, calls = Scripted.generate, []

    def generate(self: Scripted, requests: Sequence[Request], sampling: How) -> list[Rollout]:
        found = said(self, requests, sampling)
        calls.append(1)
        if len(calls) != call:
            return found
        return [
            replace(one, log_probs=(*one.log_probs[1:], math.nan)) if place in places else one
            for place, one in enumerate(found)
        ]

    monkeypatch.setattr(Scripted, "generate", generate)


def test_a_proposal_of_no_policy_is_not_paid_and_its_row_can_be_written(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, 1, {0})
    answers = {"propose ded": lambda n: said(triplet(DOUBLE, "'u'")), "solve ded": right(2)}
    collected = Play(tmp_path, sandbox, answers, **ONE_TASK).step()
    (row,) = cell(collected, "propose", "ded")
    assert (row.reward, row.log_probs) == (None, ())
    assert collected.metrics["rollouts_not_finite"] == 1
    assert Collected.of(json.loads(json.dumps(collected.records(), allow_nan=False))) == collected


def test_answers_of_no_policy_are_not_judged_and_have_no_say_in_the_solve_rate(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, 2, {0, 7})  # of 8 answers the first 2 are right
    answers = {"propose ded": lambda n: said(triplet(DOUBLE, "'u'")), "solve ded": right(2)}
    collected = Play(tmp_path, sandbox, answers, **ONE_TASK | {"train_on_estimates": True}).step()
    rows = cell(collected, "solve", "ded")
    assert rewards_of(rows) == [None, 1, -0.5, -0.5, -0.5, -0.5, -0.5, None]
    assert [row.log_probs == () for row in rows] == [reward is None for reward in rewards_of(rows)]
    assert [one.solve_rate for one in collected.found] == [1 / 6]
    assert rewards_of(cell(collected, "propose", "ded")) == [pytest.approx(5 / 6)]
    assert collected.metrics["rollouts_not_finite"] == collected.metrics["rows_dropped"] == 2


def test_a_policy_broken_by_an_update_ends_the_attempt_with_its_own_code_and_is_never_saved(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    profile = h.tiny_profile(optimizer=Optimizer(micro_batch_size=16, warmup_steps=0, learning_rate=1e30))
    head = worker.checkpoint_of(worker.do(h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0), sandbox))
    for attempt in (1, 2):  # the second replays what the first has written
        spec = h.make_spec(tmp_path, profile, head=head, end_step=9, attempt=attempt)
        result = worker.do(spec, sandbox)
        assert (result.exit_code, result.checkpoint) == (ExitCode.NOT_FINITE, head), result.error
        assert "not finite 3 times in a row" in result.error
        told = [one.data["rollouts_not_finite"] for one in h.events_of(spec, "step")]
        assert told[0] == 0 and all(count > 0 for count in told[1:])
        assert [one.data["in_row"] for one in h.events_of(spec, "not_finite")][-3:] == [1, 2, 3]
    spec = h.make_spec(tmp_path, profile, head=head, end_step=3, cycle=2)
    result = worker.do(spec, sandbox)
    assert result.exit_code == ExitCode.NOT_FINITE and "is never saved" in result.error
    lines = (tmp_path / "cycles/0002/rollouts/step-000002.jsonl").read_bytes()
    assert b"NaN" not in lines and b"[null" not in lines
    header = rollout_file.Header(**json.loads(lines.splitlines()[0]))
    records = rollout_file.read(tmp_path / "cycles/0002/rollouts/step-000002.jsonl", header)
    assert records is not None and not any(row.log_probs for row in Collected.of(records).rows)
