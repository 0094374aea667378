"""What the end of verl's log says about how a job ended."""

from __future__ import annotations

import pytest

from profiles.errors import ExitCode
from workers.verl.ends import end_of

RAY = "\x1b[36m(WorkerDict pid=4711)\x1b[0m "
DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."


@pytest.mark.parametrize(
    ("log", "code", "what"),
    [
        (f"{RAY}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", ExitCode.CUDA_OOM, "2 GiB"),
        (
            f"{RAY}torch.OutOfMemoryError: CUDA out of memory.\n{DIED}\nRuntimeError: NCCL error: unhandled cuda error",
            ExitCode.CUDA_OOM,
            "OutOfMemory",
        ),
        (
            "workers.verl.digests.SyncMismatch: weights did not arrive at the rollout engine 1: rank 0: x differs",
            ExitCode.SYNC,
            "engine 1",
        ),
        (f"{DIED}\nThe actor is dead because its node has died. Node Id: 3f", ExitCode.NODE, "its node has died"),
        ("ray.exceptions.NodeDiedError: the node was lost", ExitCode.NODE, "NodeDied"),
        ("raylet: node 10.0.0.3 has been marked dead: missed too many heartbeats", ExitCode.NODE, "marked dead"),
        (f"{RAY}torch.AcceleratorError: CUDA error: an illegal memory access", ExitCode.GPU, "illegal memory"),
        ("OSError: [Errno 28] No space left on device", ExitCode.DISK, "No space"),
        (f"{DIED}\n\tclass_name: WorkerDict", ExitCode.ENGINE, "exit code 1; ray.exceptions.ActorDiedError"),
        ("FileNotFoundError: model_world_size_4_rank_0.pt", ExitCode.ENGINE, "model_world_size_4"),
        (f"{RAY}ModuleNotFoundError: No module named 'watchfiles.main'", ExitCode.INPUT, "No module named 'watchfiles"),
        (f"{RAY}ModuleNotFoundError: No module named 'x'\n{DIED}", ExitCode.ENGINE, "ActorDiedError"),
        ("", ExitCode.ENGINE, "exit code 1; its log names no error"),
    ],
)
def test_the_cause_is_read_from_the_log(log: str, code: ExitCode, what: str) -> None:
    end = end_of(1, f"step:1 - loss: 0.1\n{log}\n")
    assert end.code == code and what in end.what and "\x1b" not in end.what and end.advice


def test_a_missing_module_is_named_in_the_command() -> None:
    end = end_of(1, "ModuleNotFoundError: No module named 'watchfiles.main'")
    assert end.advice.startswith("pip install watchfiles ")


def test_a_driver_that_was_killed_says_its_signal() -> None:
    assert end_of(-9, "").what.startswith("signal 9")


def test_a_long_line_is_cut() -> None:
    assert len(end_of(1, "RuntimeError: " + "x" * 10_000).what) < 400
