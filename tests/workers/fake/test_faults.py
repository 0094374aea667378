"""Kills, faults and forgotten state of the fake worker: the next attempt ends like an unbroken one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from profiles.errors import ExitCode
from tests.workers import harness as h
from workers.contract import Outcome

CRASHES = [
    "worker.before_ready:1",
    "worker.after_started:1",
    "worker.rollouts_half:3",
    "worker.rollouts_done:3",
    "worker.before_update:3",
    "worker.after_update:3",
    "ckpt.staging_created:1",
    "ckpt.files_written:2",
    "ckpt.manifest_written:2",
    "ckpt.before_rename:2",
    "ckpt.after_rename:2",
    "durable.before_rename:1",
    "worker.after_done:1",
]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded run and, beside it, the same run trained 8 steps without any disturbance."""
    root = tmp_path_factory.mktemp("fake")
    h.seeded(root / "seeded", h.fake_profile(every=3))
    shutil.copytree(root / "seeded", root / "whole")
    spec = h.make_spec(root / "whole", h.fake_profile(every=3), head=h.newest_checkpoint(root / "whole"), end_step=9)
    assert h.run(spec) == 0
    return root


@pytest.mark.parametrize("point", CRASHES)
def test_a_worker_killed_at_any_point_and_resumed_ends_like_an_unbroken_one(
    point: str, unbroken: Path, tmp_path: Path
) -> None:
    root, profile = tmp_path / "run", h.fake_profile(every=3)
    shutil.copytree(unbroken / "seeded", root)
    first = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=9)
    worker = h.spawn(first.token, root / "log", LONGHAUL_CRASHPOINT=f"{point}:kill")
    worker.send("start", path=str(root / first.attempt_dir / "spec.json"))
    assert worker.exit_code() == -signal.SIGKILL
    second = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=9, attempt=2)
    assert h.run(second) == 0, h.log_of(second)
    assert h.newest_checkpoint(root).digest == h.newest_checkpoint(unbroken / "whole").digest


def steps_without_times(root: Path) -> list[tuple[int, dict[str, float]]]:
    found: dict[int, dict[str, float]] = {}
    for directory in sorted(root.glob("cycles/0001/attempt-*")):
        for event in h.events_at(directory, "step"):
            found[event.step] = {k: v for k, v in event.data.items() if not k.startswith(("seconds", "rss", "peak"))}
    return sorted(found.items())


def test_metrics_of_a_broken_run_equal_those_of_an_unbroken_one(unbroken: Path, tmp_path: Path) -> None:
    root, profile = tmp_path / "run", h.fake_profile("kill:5", every=3)
    shutil.copytree(unbroken / "seeded", root)
    first = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=9)
    assert h.run(first) == -signal.SIGKILL
    second = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=9, attempt=2)
    assert h.run(second) == 0
    assert steps_without_times(root) == steps_without_times(unbroken / "whole")


@pytest.mark.parametrize("name", ["weights.json", "optimizer.json", "rng.json", "buffer.json", "progress.json"])
def test_mutation_every_registered_item_is_needed_for_an_exact_resume(
    name: str, unbroken: Path, tmp_path: Path
) -> None:
    """Drop one item from what is restored: the comparison with the unbroken run must fail."""
    root, profile = tmp_path / "run", h.fake_profile("kill:5", every=3)
    shutil.copytree(unbroken / "seeded", root)
    h.run(h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=9))
    second = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=9, attempt=2)
    program = h.without_restoring(name)
    code = h.run(second, program=program)
    is_equal = code == 0 and h.newest_checkpoint(root).digest == h.newest_checkpoint(unbroken / "whole").digest
    assert not is_equal


def test_rollouts_of_a_finished_generation_are_reused(unbroken: Path, tmp_path: Path) -> None:
    root, profile = tmp_path / "run", h.fake_profile("kill:5", every=3)
    shutil.copytree(unbroken / "seeded", root)
    first = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=9)
    h.run(first)
    second = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=9, attempt=2)
    h.run(second)
    assert "step 4: rollouts of an earlier attempt are reused" in h.log_of(second)


def test_n1_a_single_nan_is_skipped_and_three_in_a_row_end_with_76(tmp_path: Path) -> None:
    once = h.cycle(tmp_path / "once", h.fake_profile("nan:3", every=1))
    assert h.run(once) == 0
    assert [event.step for event in h.events_of(once, "not_finite")] == [3]
    thrice = h.cycle(tmp_path / "thrice", h.fake_profile("nan:3:3", every=1))
    assert h.run(thrice) == ExitCode.NOT_FINITE
    result = h.result_of(thrice)
    assert result.outcome is Outcome.FAILED and "3 times in a row" in result.error
    assert result.checkpoint is not None and result.checkpoint.step == 4


def test_n2_the_end_of_a_finite_source_is_an_outcome_with_a_checkpoint(tmp_path: Path) -> None:
    spec = h.cycle(tmp_path, h.fake_profile("exhausted:7", every=1000))
    assert h.run(spec) == 0
    result = h.result_of(spec)
    assert (result.outcome, result.last_step) == (Outcome.EXHAUSTED, 6)
    assert result.checkpoint is not None and result.checkpoint.step == 6
    assert len(h.events_of(spec, "exhausted")) == 1


def test_one_oom_is_retried_with_smaller_micro_batches_and_the_factor_is_kept(tmp_path: Path) -> None:
    spec = h.cycle(tmp_path, h.fake_profile("oom:3"))
    assert h.run(spec) == 0
    assert [event.step for event in h.events_of(spec, "oom_retry")] == [3]
    progress = json.loads((tmp_path / h.newest_checkpoint(tmp_path).path / "progress.json").read_text())
    assert progress["shrinks"] == 1


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("oom:3:2", ExitCode.CUDA_OOM),
        ("enospc:3", ExitCode.DISK),
        ("eio:3", ExitCode.DISK),
        ("error:3", ExitCode.INTERNAL),
        ("exit:3:42", 42),
        ("kill:3", -signal.SIGKILL),
    ],
)
def test_every_fault_has_its_exit_code_and_the_next_attempt_goes_on(fault: str, code: int, tmp_path: Path) -> None:
    profile = h.fake_profile(fault, every=1)
    first = h.cycle(tmp_path, profile, end_step=5)
    assert h.run(first) == code
    second = h.make_spec(tmp_path, profile, head=h.newest_checkpoint(tmp_path), end_step=5, attempt=2)
    assert h.run(second) == 0
    assert h.result_of(second).last_step == 4


def test_a_failure_is_told_with_its_class_and_traceback(tmp_path: Path) -> None:
    spec = h.cycle(tmp_path, h.fake_profile("error:3"))
    assert h.run(spec) == ExitCode.INTERNAL
    assert "the fake trainer was asked to fail" in h.result_of(spec).error
    assert "Traceback" in h.log_of(spec)


def test_a_full_disk_in_staging_leaves_the_head_and_exits_73(tmp_path: Path) -> None:
    spec = h.cycle(tmp_path, h.fake_profile(every=3))
    assert h.run(spec, LONGHAUL_CRASHPOINT="ckpt.files_written:1:enospc") == ExitCode.DISK
    assert h.newest_checkpoint(tmp_path) == spec.head
    assert not list((tmp_path / "checkpoints").glob(".staging*"))


def test_a_changed_byte_in_the_head_is_refused_with_66(tmp_path: Path) -> None:
    spec = h.cycle(tmp_path, h.fake_profile())
    assert spec.head is not None
    (tmp_path / spec.head.path / "buffer.json").write_text("[]")
    assert h.run(spec) == ExitCode.INPUT
    assert "buffer.json" in h.result_of(spec).error


def test_a_head_of_another_step_is_refused(tmp_path: Path) -> None:
    head = h.seeded(tmp_path, h.fake_profile())
    spec = h.make_spec(tmp_path, h.fake_profile(), head=head, end_step=9, first_step=3)
    assert h.run(spec) == ExitCode.SPEC


def test_a_reseed_happens_once_and_is_told(tmp_path: Path) -> None:
    spec = h.cycle(tmp_path, h.fake_profile(), reseed=1)
    assert h.run(spec) == 0
    assert len(h.events_of(spec, "reseed")) == 1
    again = h.make_spec(tmp_path, h.fake_profile(), head=h.newest_checkpoint(tmp_path), end_step=12, cycle=2, reseed=1)
    assert h.run(again) == 0
    assert not h.events_of(again, "reseed")


def test_heartbeats_come_while_a_step_makes_no_progress(tmp_path: Path) -> None:
    with h.worker_of(h.cycle(tmp_path, h.fake_profile("no_progress:2"), end_step=5)) as worker:
        beats = [worker.wait_for("heartbeat", step=2) for _ in range(2)]
        assert [beat.step for beat in beats] == [2, 2]


@pytest.mark.parametrize("fault", ["hang_native:2", "deaf:2"])
def test_some_workers_only_end_by_kill(fault: str, tmp_path: Path) -> None:
    with h.worker_of(h.cycle(tmp_path, h.fake_profile(fault), end_step=5)) as worker:
        h.wait_until(lambda: len(h.events_at(tmp_path / "cycles/0001/attempt-1", "step")) == 1)
        time.sleep(0.2)  # let the fault set in: it gives no sign of it
        worker.send("abort")
        worker.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            worker.process.wait(0.7)
