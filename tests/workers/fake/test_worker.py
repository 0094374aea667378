"""The fake worker proves the protocol: the same runtime and loop as the real one, without the arithmetic."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from profiles.errors import ExitCode
from tests import REPOSITORY
from tests.workers import harness as h
from workers.contract import Message, Outcome

SLOW = h.fake_profile("slow:0.05", every=1000)


def test_a_cycle_does_exactly_its_steps_and_ends_on_a_checkpoint_of_the_last(tmp_path: Path) -> None:
    h.trained(tmp_path, h.fake_profile(), steps=12)
    seed, first = tmp_path / "cycles/0000/attempt-1", tmp_path / "cycles/0001/attempt-1"
    assert [e.step for e in h.events_at(first, "step")] == list(range(1, 13))
    assert [e.step for e in h.events_at(first, "checkpoint")] == [5, 10, 12]
    assert [e.step for e in h.events_at(seed, "checkpoint")] == [0]
    assert [e.seq for e in h.events_at(first)] == list(range(1, len(h.events_at(first)) + 1))


def test_O1_twenty_steps_from_step_21_are_the_steps_21_to_40(tmp_path: Path) -> None:
    """Half-open intervals: no step is lost between cycles."""
    head = h.trained(tmp_path, h.fake_profile(every=1000), steps=20)
    spec = h.make_spec(tmp_path, h.fake_profile(every=1000), head=head, end_step=41, cycle=2)
    assert h.run(spec) == 0
    assert [e.step for e in h.events_of(spec, "step")] == list(range(21, 41))
    assert h.result_of(spec).last_step == 40


def test_equal_runs_end_on_equal_digests(tmp_path: Path) -> None:
    digests = {h.trained(tmp_path / name, h.fake_profile(), steps=7).digest for name in ("a", "b")}
    assert len(digests) == 1


def test_the_fake_is_ready_in_a_blink_and_imports_no_torch(tmp_path: Path) -> None:
    heavy = {"torch", "numpy", "transformers"}
    code = f"import sys, workers.__main__, workers.fake.kind; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)


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
    with h.worker_of(h.cycle(tmp_path, SLOW, end_step=2000)) as worker:
        worker.send("abort", attempt="an old attempt")
        worker.send_raw(b"this is no JSON\n")
        worker.send("dance", id=7)
        assert worker.wait_for("unsupported", id=7).reason == "dance"
        worker.send("abort")
        assert worker.exit_code() == ExitCode.ABORTED


def test_ten_checkpoint_requests_in_one_step_are_one_checkpoint(tmp_path: Path) -> None:
    profile = h.fake_profile("slow:0.5", every=1000)
    spec = h.cycle(tmp_path, profile, end_step=2000)
    with h.worker_of(spec) as worker:
        worker.wait_for_step(1)
        for number in range(1, 11):
            worker.send("checkpoint", id=number)
        replies = [worker.wait_for("checkpointed", id=number) for number in range(1, 11)]
        assert len({reply.path for reply in replies}) == 1
        assert (tmp_path / replies[0].path / "MANIFEST.json").exists()
        worker.send("abort")
        assert worker.exit_code() == ExitCode.ABORTED
    assert len(h.events_of(spec, "checkpoint")) == 1


def test_a_stop_finishes_the_step_checkpoints_and_leaves_with_0(tmp_path: Path) -> None:
    spec = h.cycle(tmp_path, SLOW, end_step=2000)
    with h.worker_of(spec) as worker:
        worker.wait_for_step(1)
        worker.send("stop")
        worker.wait_for("done")
        assert worker.exit_code() == 0
    result = h.result_of(spec)
    assert result.outcome is Outcome.STOPPED
    assert result.checkpoint is not None and result.checkpoint.step == result.last_step > 0
    assert len(h.events_of(spec, "step")) == result.last_step


def test_a_stop_after_a_checkpoint_of_this_step_writes_no_second_one(tmp_path: Path) -> None:
    spec = h.cycle(tmp_path, h.fake_profile("slow:0.3", every=1), end_step=2000)
    with h.worker_of(spec) as worker:
        worker.wait_for("checkpointed", step=2)
        worker.send("stop")
        assert worker.exit_code() == 0
    steps = [event.step for event in h.events_of(spec, "checkpoint")]
    assert len(steps) == len(set(steps))
    assert h.result_of(spec).last_step == steps[-1]


def test_a_checkpoint_asked_for_before_the_start_is_remembered(tmp_path: Path) -> None:
    """E5: a request during start-up is not lost; the head, being of this very step, answers it."""
    spec = h.cycle(tmp_path, SLOW, end_step=2000)
    worker = h.spawn(spec.token, tmp_path / "log")
    worker.send("checkpoint", id=5)
    worker.send("start", path=str(tmp_path / spec.attempt_dir / "spec.json"))
    assert spec.head is not None
    assert worker.wait_for("checkpointed", id=5).path == spec.head.path
    worker.close()


def test_term_usr1_and_int_do_not_end_a_worker_and_usr2_dumps_its_stacks(tmp_path: Path) -> None:
    spec = h.cycle(tmp_path, SLOW, end_step=2000)
    with h.worker_of(spec) as worker:
        worker.wait_for_step(1)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGUSR2):
            worker.process.send_signal(number)
        # Frames are read without a lock: a thread that a message wakes meanwhile can end the process.
        h.wait_until(lambda: "Current thread" in h.log_of(spec))  # the main one, and the last that is told
        worker.send("stop")
        assert worker.exit_code() == 0
    assert "Thread" in h.log_of(spec) and "most recent call first" in h.log_of(spec)


def test_the_worker_leaves_with_74_when_the_master_is_gone(tmp_path: Path) -> None:
    with h.worker_of(h.cycle(tmp_path, SLOW, end_step=2000)) as worker:
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
    spec = h.cycle(tmp_path, h.fake_profile(), end_step=4)
    with h.worker_of(spec) as worker:
        worker.wait_for("done")
        worker.process.wait(10)
        seen = {message.type for message in worker.messages}
        assert all(message.attempt == spec.token for message in worker.messages)
    assert {"ready", "started", "checkpointed", "event_hint", "done"} <= seen
    assert msgspec.json.decode(msgspec.json.encode(Message(type="ready")), type=Message) == Message(type="ready")
