"""The fake worker proves the protocol: the same runtime and loop as the real one, without the arithmetic."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from profiles.errors import ExitCode
from profiles.schema import Profile
from tests.workers import harness as h
from workers.contract import CheckpointRef, Message, Outcome, WorkerSpec


@contextmanager
def worker_of(spec: WorkerSpec, **environment: str) -> Iterator[h.Worker]:
    worker = h.start(spec, **environment)
    try:
        yield worker
    finally:
        worker.close()


def seeded(root: Path, profile: Profile) -> CheckpointRef:
    root.mkdir(parents=True, exist_ok=True)
    spec = h.make_spec(root, profile, head=None, end_step=1, cycle=0)
    assert h.run(spec) == 0, h.log_of(spec)
    checkpoint = h.result_of(spec).checkpoint
    assert checkpoint is not None
    return checkpoint


def cycle(root: Path, profile: Profile, end_step: int = 9, **fields: object) -> WorkerSpec:
    return h.make_spec(root, profile, head=seeded(root, profile), end_step=end_step, **fields)  # type: ignore[arg-type]


SLOW = h.fake_profile("slow:0.05", every=1000)


def test_a_cycle_does_exactly_its_steps_and_ends_on_a_checkpoint_of_the_last(tmp_path: Path) -> None:
    h.trained(tmp_path, h.fake_profile(), steps=12)
    seed, first = tmp_path / "cycles/0000/attempt-1", tmp_path / "cycles/0001/attempt-1"
    assert [e.step for e in h.events_at(first, "step")] == list(range(1, 13))
    assert [e.step for e in h.events_at(first, "checkpoint")] == [5, 10, 12]
    assert [e.step for e in h.events_at(seed, "checkpoint")] == [0]
    assert [e.seq for e in h.events_at(first)] == list(range(1, len(h.events_at(first)) + 1))


def test_twenty_steps_from_step_21_are_the_steps_21_to_40(tmp_path: Path) -> None:
    """O1 of the algorithm's checklist: half-open intervals, no step is lost between cycles."""
    head = h.trained(tmp_path, h.fake_profile(every=1000), steps=20)
    spec = h.make_spec(tmp_path, h.fake_profile(every=1000), head=head, end_step=41, cycle=2)
    assert h.run(spec) == 0
    assert [e.step for e in h.events_of(spec, "step")] == list(range(21, 41))
    assert h.result_of(spec).last_step == 40


def test_equal_runs_end_on_equal_digests(tmp_path: Path) -> None:
    digests = {h.trained(tmp_path / name, h.fake_profile(), steps=7).digest for name in ("a", "b")}
    assert len(digests) == 1


def test_the_fake_is_ready_in_a_blink_and_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import workers.__main__, workers.fake, sys; assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=h.REPOSITORY, check=True)


def test_a_standby_that_is_stopped_before_it_began_leaves_with_0(tmp_path: Path) -> None:
    worker = h.spawn("x", tmp_path / "log")
    worker.wait_for("ready")
    worker.send("stop")
    assert worker.exit_code() == 0


@pytest.mark.parametrize("content", [b"{", b"{}", b'{"version": 1, "run_id": 3}'])
def test_a_spec_that_cannot_be_decoded_exits_64(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spec.json").write_bytes(content)
    worker = h.spawn("x", tmp_path / "log")
    worker.send("start", path=str(tmp_path / "spec.json"))
    assert worker.exit_code() == ExitCode.SPEC


def test_a_spec_of_another_contract_exits_65(tmp_path: Path) -> None:
    spec = h.make_spec(tmp_path, h.fake_profile(), head=None, end_step=1, version=2)
    assert h.run(spec) == ExitCode.VERSION


def test_a_message_of_another_contract_exits_65(tmp_path: Path) -> None:
    worker = h.spawn("x", tmp_path / "log")
    worker.send("checkpoint", v=2)
    assert worker.exit_code() == ExitCode.VERSION


def test_a_spec_for_another_attempt_exits_64(tmp_path: Path) -> None:
    h.make_spec(tmp_path, h.fake_profile(), head=None, end_step=1)
    worker = h.spawn("somebody else", tmp_path / "log")
    worker.send("start", path=str(tmp_path / "cycles/0001/attempt-1/spec.json"))
    assert worker.exit_code() == ExitCode.SPEC


def test_unknown_types_are_answered_and_other_tokens_dropped(tmp_path: Path) -> None:
    with worker_of(cycle(tmp_path, SLOW, end_step=2000)) as worker:
        worker.send("abort", attempt="an old attempt")
        worker.send_raw(b"this is no JSON\n")
        worker.send("dance", id=7)
        assert worker.wait_for("unsupported", id=7).reason == "dance"
        worker.send("abort")
        assert worker.exit_code() == ExitCode.ABORTED


def test_ten_checkpoint_requests_in_one_step_are_one_checkpoint(tmp_path: Path) -> None:
    profile = h.fake_profile("slow:0.5", every=1000)
    spec = cycle(tmp_path, profile, end_step=2000)
    with worker_of(spec) as worker:
        worker.wait_for_step(1)
        for number in range(1, 11):
            worker.send("checkpoint", id=number)
        replies = [worker.wait_for("checkpointed", id=number) for number in range(1, 11)]
        assert len({reply.manifest_sha256 for reply in replies}) == 1
        assert (tmp_path / replies[0].path / "MANIFEST.json").exists()
        worker.send("abort")
        assert worker.exit_code() == ExitCode.ABORTED
    assert len(h.events_of(spec, "checkpoint")) == 1


def test_a_stop_finishes_the_step_checkpoints_and_leaves_with_0(tmp_path: Path) -> None:
    spec = cycle(tmp_path, SLOW, end_step=2000)
    with worker_of(spec) as worker:
        worker.wait_for_step(1)
        worker.send("stop")
        worker.wait_for("done")
        assert worker.exit_code() == 0
    result = h.result_of(spec)
    assert result.outcome is Outcome.STOPPED
    assert result.checkpoint is not None and result.checkpoint.step == result.last_step > 0
    assert len(h.events_of(spec, "step")) == result.last_step


def test_a_stop_after_a_checkpoint_of_this_step_writes_no_second_one(tmp_path: Path) -> None:
    spec = cycle(tmp_path, h.fake_profile("slow:0.3", every=1), end_step=2000)
    with worker_of(spec) as worker:
        worker.wait_for("checkpointed", step=2)
        worker.send("stop")
        assert worker.exit_code() == 0
    steps = [event.step for event in h.events_of(spec, "checkpoint")]
    assert len(steps) == len(set(steps))
    assert h.result_of(spec).last_step == steps[-1]


def test_a_checkpoint_asked_for_before_the_start_is_remembered(tmp_path: Path) -> None:
    """E5: a request during start-up is not lost; the head, being of this very step, answers it."""
    spec = cycle(tmp_path, SLOW, end_step=2000)
    worker = h.spawn(spec.token, tmp_path / "log")
    worker.send("checkpoint", id=5)
    worker.send("start", path=str(tmp_path / spec.attempt_dir / "spec.json"))
    assert spec.head is not None
    assert worker.wait_for("checkpointed", id=5).manifest_sha256 == spec.head.checkpoint_id
    worker.close()


def test_usr1_and_int_do_not_end_a_worker_and_usr2_dumps_its_stacks(tmp_path: Path) -> None:
    spec = cycle(tmp_path, SLOW, end_step=2000)
    with worker_of(spec) as worker:
        worker.wait_for_step(1)
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGUSR2):
            worker.process.send_signal(number)
        worker.send("stop")
        assert worker.exit_code() == 0
    assert "Thread" in h.log_of(spec) and "most recent call first" in h.log_of(spec)


def test_the_worker_leaves_with_74_when_the_master_is_gone(tmp_path: Path) -> None:
    with worker_of(cycle(tmp_path, SLOW, end_step=2000)) as worker:
        worker.wait_for_step(1)
        os.close(worker.lifeline)
        worker.lifeline = -1
        assert worker.process.wait(5) == ExitCode.STORE


def test_a_worker_holds_no_file_of_its_master(tmp_path: Path) -> None:
    secret = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(secret, True)
    worker = h.spawn("x", tmp_path / "log")
    worker.wait_for("ready")
    links = {str(link.readlink()) for link in Path(f"/proc/{worker.process.pid}/fd").iterdir()}
    assert str(tmp_path) not in links
    worker.close()
    os.close(secret)


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
    seeded(root / "seeded", h.fake_profile(every=3))
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
    once = cycle(tmp_path / "once", h.fake_profile("nan:3", every=1))
    assert h.run(once) == 0
    assert [event.step for event in h.events_of(once, "not_finite")] == [3]
    thrice = cycle(tmp_path / "thrice", h.fake_profile("nan:3:3", every=1))
    assert h.run(thrice) == ExitCode.NOT_FINITE
    result = h.result_of(thrice)
    assert result.outcome is Outcome.FAILED and "3 times in a row" in result.error
    assert result.checkpoint is not None and result.checkpoint.step == 4


def test_n2_the_end_of_a_finite_source_is_an_outcome_with_a_checkpoint(tmp_path: Path) -> None:
    spec = cycle(tmp_path, h.fake_profile("exhausted:7", every=1000))
    assert h.run(spec) == 0
    result = h.result_of(spec)
    assert (result.outcome, result.last_step) == (Outcome.EXHAUSTED, 6)
    assert result.checkpoint is not None and result.checkpoint.step == 6
    assert len(h.events_of(spec, "exhausted")) == 1


def test_one_oom_is_retried_with_smaller_micro_batches_and_the_factor_is_kept(tmp_path: Path) -> None:
    spec = cycle(tmp_path, h.fake_profile("oom:3"))
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
    first = cycle(tmp_path, profile, end_step=5)
    assert h.run(first) == code
    second = h.make_spec(tmp_path, profile, head=h.newest_checkpoint(tmp_path), end_step=5, attempt=2)
    assert h.run(second) == 0
    assert h.result_of(second).last_step == 4


def test_a_failure_is_told_with_its_class_and_traceback(tmp_path: Path) -> None:
    spec = cycle(tmp_path, h.fake_profile("error:3"))
    assert h.run(spec) == ExitCode.INTERNAL
    assert "the fake trainer was asked to fail" in h.result_of(spec).error
    assert "Traceback" in h.log_of(spec)


def test_a_full_disk_in_staging_leaves_the_head_and_exits_73(tmp_path: Path) -> None:
    spec = cycle(tmp_path, h.fake_profile(every=3))
    assert h.run(spec, LONGHAUL_CRASHPOINT="ckpt.files_written:1:enospc") == ExitCode.DISK
    assert h.newest_checkpoint(tmp_path) == spec.head
    assert not list((tmp_path / "checkpoints").glob(".staging*"))


def test_a_changed_byte_in_the_head_is_refused_with_66(tmp_path: Path) -> None:
    spec = cycle(tmp_path, h.fake_profile())
    assert spec.head is not None
    (tmp_path / spec.head.path / "buffer.json").write_text("[]")
    assert h.run(spec) == ExitCode.INPUT
    assert "buffer.json" in h.result_of(spec).error


def test_a_head_of_another_step_is_refused(tmp_path: Path) -> None:
    head = seeded(tmp_path, h.fake_profile())
    spec = h.make_spec(tmp_path, h.fake_profile(), head=head, end_step=9, first_step=3)
    assert h.run(spec) == ExitCode.SPEC


def test_a_reseed_happens_once_and_is_told(tmp_path: Path) -> None:
    spec = cycle(tmp_path, h.fake_profile(), reseed=1)
    assert h.run(spec) == 0
    assert len(h.events_of(spec, "reseed")) == 1
    again = h.make_spec(tmp_path, h.fake_profile(), head=h.newest_checkpoint(tmp_path), end_step=12, cycle=2, reseed=1)
    assert h.run(again) == 0
    assert not h.events_of(again, "reseed")


def test_heartbeats_come_while_a_step_makes_no_progress(tmp_path: Path) -> None:
    with worker_of(cycle(tmp_path, h.fake_profile("no_progress:2"), end_step=5)) as worker:
        beats = [worker.wait_for("heartbeat", step=2) for _ in range(2)]
        assert beats[1].monotonic > beats[0].monotonic


@pytest.mark.parametrize("fault", ["hang_native:2", "ignore_term:2"])
def test_some_workers_only_end_by_kill(fault: str, tmp_path: Path) -> None:
    with worker_of(cycle(tmp_path, h.fake_profile(fault), end_step=5)) as worker:
        h.wait_until(lambda: len(h.events_at(tmp_path / "cycles/0001/attempt-1", "step")) == 1)
        time.sleep(0.2)  # let the fault set in: it gives no sign of it
        worker.send("abort")
        worker.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            worker.process.wait(0.7)


def test_validation_scores_the_head_and_writes_it_down(tmp_path: Path) -> None:
    head = h.trained(tmp_path, h.fake_profile(), steps=5)
    spec = h.make_spec(tmp_path, h.fake_profile(), head=head, end_step=6, role="validate")
    assert h.run(spec) == 0
    result = h.result_of(spec)
    assert result.checkpoint == head
    scores = result.validation["fake"]
    assert set(scores) == {"abd", "ded", "ind", "mean"}
    assert scores["mean"]["low"] < scores["mean"]["accuracy"] < scores["mean"]["high"]
    (event,) = h.events_of(spec, "validation")
    assert event.data["metrics"] == scores


def test_every_message_fits_the_contract(tmp_path: Path) -> None:
    spec = cycle(tmp_path, h.fake_profile(), end_step=4)
    with worker_of(spec) as worker:
        worker.wait_for("done")
        worker.process.wait(10)
        seen = {message.type for message in worker.messages}
        assert all(message.attempt == spec.token for message in worker.messages)
    assert {"ready", "started", "checkpointed", "event_hint", "done"} <= seen
    assert msgspec.json.decode(msgspec.json.encode(Message(type="ready")), type=Message) == Message(type="ready")
