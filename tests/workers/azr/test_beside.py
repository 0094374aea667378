"""Self-play drawn beside an update: with which weights and tasks, how it is corrected, and that a resume is exact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from profiles.schema import Azr, Data, Profile
from tests.workers import harness as h
from tests.workers.azr.test_finite_source import PROGRAMS, done
from tests.workers.data.given import line, write
from tests.workers.grpo.test_beside import Failing
from tests.workers.grpo.test_segments import log_probs_of, model_before
from workers.azr.rows import Collected
from workers.azr.trainer import AzrTrainer
from workers.contract import CheckpointRef
from workers.control import Control
from workers.cycle.progress import Progress
from workers.runtime import Attempt
from workers.sandbox import Sandbox

STEPS = 4


def beside(**changes: Any) -> Profile:
    """A checkpoint after each step."""
    found = h.tiny_profile(every=1, **changes)
    return replace(found, run=replace(found.run, overlap=1))


def trained(root: Path, profile: Profile, sandbox: Sandbox) -> CheckpointRef:
    root.mkdir()
    head = done(h.make_spec(root, profile, head=None, end_step=1, cycle=0), sandbox)
    return done(h.make_spec(root, profile, head=head, end_step=STEPS + 1), sandbox)


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> Path:
    root = tmp_path_factory.mktemp("beside") / "run"
    trained(root, beside(), sandbox)
    return root


def collected(root: Path, step: int) -> Collected:
    (path,) = root.glob(f"cycles/*/rollouts/step-{step:06d}.jsonl")
    return Collected.of([json.loads(text) for text in path.read_text().splitlines()[1:-1]])


def checkpoint(root: Path, step: int) -> Path:
    (found,) = root.glob(f"checkpoints/*s{step:06d}*")
    return found


def metrics_of(root: Path) -> list[dict[str, Any]]:
    return [event.data for event in h.events_at(root / "cycles/0001/attempt-1", "step")]


# --- what is drawn ---------------------------------------------------------------------------------------------------


def test_rollouts_keep_the_log_probs_of_the_weights_before_the_last_update(overlapped: Path) -> None:
    moved = 0.0
    for step in range(1, STEPS + 1):
        drawing, training = (model_before(overlapped, max(1, one)) for one in (step - 1, step))
        for row in collected(overlapped, step).rows:
            own = log_probs_of(drawing, row)  # type: ignore[arg-type]  # it reads what rows of both kinds have
            torch.testing.assert_close(torch.tensor(row.log_probs).double(), own, atol=1e-4, rtol=0)
            moved = max(moved, float((log_probs_of(training, row) - own).abs().max()))  # type: ignore[arg-type]
    assert moved > 1e-3  # or the other weights would have done


def test_a_step_knows_the_tasks_that_the_step_before_it_found(
    overlapped: Path, tmp_path: Path, sandbox: Sandbox
) -> None:
    """A trainer with the weights before that step's update and the buffers after it draws the same, bit for bit."""
    mixed = tmp_path / "mixed"
    shutil.copytree(checkpoint(overlapped, 1), mixed)
    shutil.copy(checkpoint(overlapped, 2) / "buffers.jsonl", mixed / "buffers.jsonl")
    assert (mixed / "buffers.jsonl").read_bytes() != (checkpoint(overlapped, 1) / "buffers.jsonl").read_bytes()
    spec = h.make_spec(tmp_path, h.tiny_profile(), head=h.newest_checkpoint(overlapped), end_step=STEPS + 2)
    trainer = AzrTrainer(Attempt(spec, Control(None, "")), sandbox)
    trainer.build(mixed)
    registry = trainer.registry(Progress())
    registry.load(mixed)
    found = Collected.of(json.loads(json.dumps(trainer.collect(3))))
    drawn = collected(overlapped, 3)
    assert drawn.is_older and not found.is_older
    assert (found.rows, found.found, found.retired) == (drawn.rows, drawn.found, drawn.retired)


def test_older_tokens_get_importance_weights_and_say_nothing_of_the_engine(overlapped: Path) -> None:
    first, *others = metrics_of(overlapped)
    assert first["mismatch_tokens"] > 0 and first["mismatch_mean"] < 1e-4 and first["tis_weight"] == pytest.approx(1)
    assert "older_share" not in first
    for step in others:
        assert step["older_share"] == 1 and step["mismatch_tokens"] == 0
        assert {"mismatch_mean", "mismatch_max", "mismatch_kl"}.isdisjoint(step)
        assert abs(step["tis_weight"] - 1) > 1e-6


# --- a resume --------------------------------------------------------------------------------------------------------


def assert_same_bits_from_each_checkpoint(root: Path, profile: Profile, sandbox: Sandbox) -> None:
    whole = trained(root, profile, sandbox)
    saved = h.events_at(root / "cycles/0001/attempt-1", "checkpoint")
    assert [event.step for event in saved] == [1, 2, 3, STEPS]
    for attempt, event in enumerate(saved[:-1], start=2):
        shutil.rmtree(root / "cycles/0001/rollouts")  # or a resumed attempt would read them
        head = CheckpointRef(step=event.step, **event.data)
        resumed = done(h.make_spec(root, profile, head=head, end_step=STEPS + 1, attempt=attempt), sandbox)
        assert resumed.digest == whole.digest


def test_a_run_ends_in_the_same_bits_from_each_of_its_checkpoints(tmp_path: Path, sandbox: Sandbox) -> None:
    profile = beside()
    several = replace(profile, optimizer=replace(profile.optimizer, updates_per_step=2))
    assert_same_bits_from_each_checkpoint(tmp_path / "run", several, sandbox)


def test_a_run_that_draws_from_a_copy_ends_in_the_bits_of_one_that_does_not(tmp_path: Path, sandbox: Sandbox) -> None:
    """Also from each of its checkpoints."""
    found = beside()
    profile = replace(found, optimizer=replace(found.optimizer, updates_per_step=2))
    sampled = replace(profile, run=replace(profile.run, sampler_device="cpu"))
    assert_same_bits_from_each_checkpoint(tmp_path / "sampled", sampled, sandbox)
    trained(tmp_path / "alone", profile, sandbox)
    ours, theirs = (
        [event.data["digest"] for event in h.events_at(tmp_path / name / "cycles/0001/attempt-1", "checkpoint")]
        for name in ("sampled", "alone")
    )
    assert ours == theirs and len(ours) == STEPS


def test_so_does_a_run_on_a_file_of_tasks_which_come_in_its_order(tmp_path: Path, sandbox: Sandbox) -> None:
    source = write(tmp_path / "t.jsonl", *(line(program, "'uvw'") for program in PROGRAMS))
    profile = beside(azr=Azr(proposals_per_task=2, group_size=2, seed_tasks=50), data=Data(tasks=str(source)))
    assert_same_bits_from_each_checkpoint(tmp_path / "run", profile, sandbox)
    asked = []
    for overlap in (0, 1):
        root = tmp_path / str(overlap)
        trained(root, replace(profile, run=replace(profile.run, overlap=overlap)), sandbox)
        asked.append([[row.prompt_ids for row in collected(root, step).rows] for step in range(1, STEPS + 1)])
    assert asked[0] == asked[1]


def test_memory_that_runs_out_in_the_thread_halves_the_rollouts_and_repeats_them(
    overlapped: Path, tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    Failing(torch.OutOfMemoryError("CUDA out of memory")).install(monkeypatch)
    trained(tmp_path / "run", beside(), sandbox)
    (retry,) = h.events_at(tmp_path / "run/cycles/0001/attempt-1", "oom_retry")
    assert retry.data["phase"] == "rollout"
    for step in range(1, STEPS + 1):
        ours, theirs = (collected(root, step) for root in (tmp_path / "run", overlapped))
        assert [row.completion_ids for row in ours.rows] == [row.completion_ids for row in theirs.rows]
        assert ours.found == theirs.found
