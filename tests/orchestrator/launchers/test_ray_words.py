"""What Ray says of a job and what that means, a row each; what is sent; and dashboards that are none.

The rows marked "seen" are answers of a real head.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from orchestrator.launchers import ray
from orchestrator.launchers.batch import Refused, Unanswered
from orchestrator.launchers.job_end import Cause, Left, Seen, has_ended, meaning, waits_for
from orchestrator.launchers.ray import DEFAULT_ADDRESS, Ray, address_of, auth_token, request, script, seen_in
from orchestrator.schedule import NOT_ITS_FAULT
from profiles.errors import ExitCode
from profiles.launch import Launch
from profiles.schema import Profile, Run
from state.layout import AttemptDir
from tests.orchestrator.launchers import jobs_in_bash as bash
from workers.contract import Outcome, Result

KILL, TERM = -signal.SIGKILL, -signal.SIGTERM
NOTHING, UNCLAIMED = Left(), Left(is_claimed=False)
DONE = Left(Result(token="t", role="train", outcome=Outcome.DONE, exit_code=0, last_step=1))
SAVED = Left(msgspec.structs.replace(DONE.result, outcome=Outcome.STOPPED))
OUT_OF_MEMORY = Left(msgspec.structs.replace(DONE.result, outcome=Outcome.FAILED, exit_code=ExitCode.CUDA_OOM))


def answer(status: str, **more: object) -> str:
    return json.dumps({"type": "SUBMISSION", "submission_id": "t", "status": status, "entrypoint": "x", **more})


def failed(error_type: str | None, message: str = "Job failed.", code: int | None = None) -> str:
    return answer("FAILED", error_type=error_type, message=message, driver_exit_code=code)


EXITED = "JOB_ENTRYPOINT_COMMAND_ERROR"


@pytest.mark.parametrize(
    ("left", "said", "code", "cause"),
    [
        pytest.param(DONE, answer("SUCCEEDED"), 0, "", id="succeeded (seen)"),
        pytest.param(NOTHING, answer("SUCCEEDED"), ExitCode.INTERNAL, "", id="succeeded without a result"),
        pytest.param(UNCLAIMED, answer("SUCCEEDED"), ExitCode.CLUSTER, Cause.LAUNCH, id="succeeded, and never began"),
        pytest.param(DONE, failed(EXITED, code=0), 0, "", id="done, and Ray calls it failed (ray#65608)"),
        pytest.param(SAVED, failed("JOB_SUPERVISOR_ACTOR_DIED"), 0, "", id="saved, then its supervisor died"),
        pytest.param(OUT_OF_MEMORY, failed(EXITED, code=71), ExitCode.CUDA_OOM, "", id="failed with a result"),
        pytest.param(NOTHING, failed(EXITED, code=71), ExitCode.CUDA_OOM, "", id="failed with a code of ours"),
        pytest.param(NOTHING, failed(EXITED, code=137), KILL, "", id="its worker was killed (seen)"),
        pytest.param(NOTHING, failed(EXITED, code=-9), KILL, "", id="its script was killed"),
        pytest.param(UNCLAIMED, failed(EXITED, code=66), ExitCode.CLUSTER, Cause.LAUNCH, id="no such folder there"),
        pytest.param(
            NOTHING, failed("JOB_SUPERVISOR_ACTOR_DIED", "Job supervisor actor died: node"), ExitCode.NODE, Cause.NODE,
            id="its supervisor died, or its node",
        ),
        pytest.param(
            NOTHING,
            failed("JOB_SUPERVISOR_ACTOR_START_FAILURE", "Unexpected error occurred: failed to get job supervisor."),
            ExitCode.NODE, Cause.NODE, id="its supervisor is gone",
        ),
        pytest.param(NOTHING, failed(None), ExitCode.NODE, Cause.NODE, id="failed, and nobody says why"),
        pytest.param(
            UNCLAIMED, failed("RUNTIME_ENV_SETUP_FAILURE", "runtime_env setup failed"), ExitCode.CLUSTER, Cause.LAUNCH,
            id="its environment could not be made",
        ),
        pytest.param(
            UNCLAIMED, failed("JOB_SUPERVISOR_ACTOR_START_TIMEOUT"), ExitCode.CLUSTER, Cause.UNPLACED,
            id="no place for it within 15 minutes",
        ),
        pytest.param(NOTHING, answer("STOPPED"), TERM, Cause.CANCELLED, id="stopped by somebody (seen)"),
        pytest.param(SAVED, answer("STOPPED"), 0, Cause.CANCELLED, id="saved, then stopped by somebody"),
    ],
)  # fmt: skip
def test_what_the_end_of_a_job_of_ray_means(left: Left, said: str, code: int, cause: str) -> None:
    seen = seen_in(said)
    assert has_ended(seen)
    end = meaning(left, seen)
    assert (end.exit_code, end.cause) == (code, cause)


def test_a_job_that_this_master_stopped_is_killed() -> None:
    end = meaning(NOTHING, seen_in(answer("STOPPED")), is_killed=True)
    assert (end.exit_code, end.cause) == (KILL, "")


def test_a_lost_supervisor_and_a_long_wait_are_no_crashes() -> None:
    assert {Cause.NODE, Cause.UNPLACED} <= NOT_ITS_FAULT


def test_a_job_waits_in_ray_s_words_and_runs_in_none() -> None:
    waiting = seen_in(answer("PENDING", message="Job has not started yet. It may be waiting for resources.\nmore"))
    assert not has_ended(waiting)
    assert waits_for(waiting) == "pending (Job has not started yet. It may be waiting for resources.)"
    running = seen_in(answer("RUNNING", message="Job is currently running."))
    assert not has_ended(running) and waits_for(running) == ""


def test_the_last_line_of_a_job_s_log_says_why_it_failed() -> None:
    seen = seen_in(failed(EXITED, "Job entrypoint command failed with exit code 66:\na\ncd: /x: No such", code=66))
    assert seen == Seen("FAILED", 66, reason="cd: /x: No such")


@pytest.mark.parametrize("rubbish", ["", "<html>", "[]", "{}", '{"status": 7}', '{"status": "RESTING"}', "null"])
def test_an_answer_that_is_none_is_no_end(rubbish: str) -> None:
    with pytest.raises(Unanswered):
        seen_in(rubbish)


# --- what is sent ------------------------------------------------------------------------------------------------


def test_a_job_asks_for_what_the_profile_says(tmp_path: Path) -> None:
    launch = Launch(cpus_per_node=8, memory_gb=64)
    found = request(Profile(name="x", run=Run(gpus=4, device="cuda"), launch=launch), "t", AttemptDir(tmp_path))
    assert found == {
        "entrypoint": f"exec bash {tmp_path}/job.bash", "submission_id": "t",
        "entrypoint_num_cpus": 8, "entrypoint_num_gpus": 4, "entrypoint_memory": 64 * 2**30,
    }  # fmt: skip
    sampled = Run(device="cuda", worker="grpo", overlap=1, sampler_device="cuda:1")
    assert request(Profile(name="x", run=sampled), "t", AttemptDir(tmp_path))["entrypoint_num_gpus"] == 2


def test_a_job_without_wishes_still_asks_for_a_cpu_so_that_it_need_not_run_on_the_head(tmp_path: Path) -> None:
    found = request(Profile(name="x", run=Run(device="cpu")), "t", AttemptDir(tmp_path))
    assert (found["entrypoint_num_cpus"], found["entrypoint_num_gpus"]) == (1, 0)


def test_a_job_of_verl_leaves_the_gpus_to_verl(tmp_path: Path) -> None:
    run = Run(gpus=4, device="cuda", worker="verl")
    assert request(Profile(name="x", run=run), "t", AttemptDir(tmp_path))["entrypoint_num_gpus"] == 0


def rendered(folder: Path) -> str:
    profile = Profile(name="x", launch=Launch(setup=("export EXTRA=1",)))
    environment = {"PATH": os.environ["PATH"], "ODD": "a 'b' $c"}
    command = ("/bin/sh", "-c", 'echo "$ODD $EXTRA"; exit 71')
    return script(profile, "t", command, environment, AttemptDir(folder), str(folder))


def test_the_script_runs_the_worker_and_keeps_its_exit_code(tmp_path: Path) -> None:
    folder = tmp_path / "a folder; with $signs"
    folder.mkdir()
    (folder / "job.bash").write_text(rendered(folder))
    assert subprocess.run(["bash", folder / "job.bash"], check=False).returncode == 71
    assert (folder / "worker.log").read_text() == "a 'b' $c 1\n"
    assert (folder / "job.exit").read_text() == "71\n"
    if shutil.which("shellcheck") is not None:
        subprocess.run(["shellcheck", "--severity=warning", folder / "job.bash"], check=True)


def test_setup_changes_what_the_worker_gets_and_not_whose_attempt_it_has(tmp_path: Path) -> None:
    profile = Profile(name="x", launch=Launch(setup=(bash.CHANGED,)))
    text = script(profile, "t", bash.SHOWN, bash.environment(tmp_path), AttemptDir(tmp_path), "/")
    assert bash.ran(text, tmp_path).stdout == ""
    assert (tmp_path / "worker.log").read_text() == "/opt/cuda/bin /opt/cuda t\n"


@pytest.mark.parametrize(
    ("address", "environment", "found"),
    [
        ("https://head/ray/", {"RAY_ADDRESS": "http://other:1"}, "https://head/ray"),
        ("", {"RAY_API_SERVER_ADDRESS": "http://a:1", "RAY_ADDRESS": "http://b:1"}, "http://a:1"),
        ("", {"RAY_ADDRESS": "http://b:1"}, "http://b:1"),
        ("", {"RAY_ADDRESS": "head:6379"}, DEFAULT_ADDRESS),
        ("", {}, DEFAULT_ADDRESS),
    ],
)
def test_the_dashboard_is_found_as_ray_finds_it(address: str, environment: dict[str, str], found: str) -> None:
    assert address_of(address, environment) == found


def test_the_token_is_found_where_ray_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert auth_token() == ""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("of-a-file\n")
    assert auth_token() == "of-a-file"
    (tmp_path / "other").write_text("of-another")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "other"))
    assert auth_token() == "of-another"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-the-environment")
    assert auth_token() == "of-the-environment"


# --- dashboards that are none ------------------------------------------------------------------------------------


@contextmanager
def dashboard(answer_with: Callable[[socket.socket], None]) -> Iterator[Ray]:
    """A server that treats each connection so, and a driver that asks it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    end, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=treat, args=(end,), daemon=True).start()

        def treat(end: socket.socket) -> None:
            with end:
                try:
                    end.recv(65536)
                    answer_with(end)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield Ray(Profile(name="x", launch=Launch(launcher="ray", address=address)))
        server.shutdown(socket.SHUT_RDWR)


def http(status: str, text: str) -> Callable[[socket.socket], None]:
    return lambda end: end.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())


@pytest.mark.parametrize(
    "rubbish",
    [
        http("200 OK", "<html>a page</html>"),
        http("404 Not Found", "<html>nginx</html>"),
        http("500 Internal Server Error", "Traceback: \nno agent"),
        http("302 Found", ""),
        lambda end: end.sendall(b"\x00\xff\xfe" * 100),
        lambda end: end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        lambda end: None,
    ],
    ids=["a page", "another server's 404", "an error", "a redirect", "bytes", "no text", "silence"],
)
def test_rubbish_is_no_answer(rubbish: Callable[[socket.socket], None]) -> None:
    with dashboard(rubbish) as driver, pytest.raises(Unanswered):
        driver.final("t")


def test_only_ray_s_own_words_mean_that_a_job_is_unknown() -> None:
    with dashboard(http("404 Not Found", "Job t does not exist")) as driver:
        assert driver.final("t") == Seen("")
        assert driver.find("t") == ""


def test_a_wrong_token_is_refused_and_said() -> None:
    said = http("403 Forbidden", "Forbidden: Invalid authentication token")
    with dashboard(said) as driver, pytest.raises(Refused, match="RAY_AUTH_TOKEN or ~"):
        driver.final("t")


def test_nobody_at_the_address_is_no_answer() -> None:
    with dashboard(http("200 OK", "")) as driver:
        pass
    with pytest.raises(Unanswered, match="no answer from http://127"):
        driver.final("t")


def test_an_address_of_the_environment_that_is_no_url_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://[head:8265")
    with pytest.raises(Unanswered, match=r"no answer from http://\[head:8265: "):
        Ray(Profile(name="x")).final("t")


def drip(end: socket.socket) -> None:
    end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    for _ in range(100):
        end.sendall(b" ")
        time.sleep(0.1)


@pytest.mark.parametrize("hang", [lambda end: time.sleep(10), drip], ids=["hangs", "a byte now and then"])
def test_a_head_that_hangs_is_no_answer_in_time(
    hang: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "PATIENCE_S", 0.5)
    with dashboard(hang) as driver:
        began = time.monotonic()
        with pytest.raises(Unanswered):
            driver.final("t")
        assert time.monotonic() - began < 3


def test_a_waiting_job_that_was_stopped_counts_as_ended_though_ray_has_it_wait() -> None:
    with dashboard(http("200 OK", answer("PENDING"))) as driver:
        assert not has_ended(driver.final("t"))
        driver.signal("t", signal.SIGKILL)
        assert has_ended(driver.final("t"))


def test_a_second_submission_of_one_id_is_the_first_one(tmp_path: Path) -> None:
    said = "ValueError: Job with submission_id t already exists. Please use a different submission_id."
    with dashboard(http("500 Internal Server Error", said)) as driver:
        assert driver._submit({}, "t") == "t"
