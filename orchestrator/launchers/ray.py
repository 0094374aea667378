"""Ray, as `batch` uses a scheduler: the jobs of its dashboard's REST interface. Nothing here imports Ray.

A job's submission id is its attempt's token, and Ray refuses a second job with the same id.
"""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from orchestrator.launchers.batch import PATIENCE_S, Batch, Refused, Unanswered, of_a_job
from orchestrator.launchers.job_end import Seen
from orchestrator.launchers.job_script import common
from orchestrator.launchers.launcher import Order
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of
from state import durable, python
from state.layout import AttemptDir

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
MAX_ANSWER_BYTES = 16 * 2**20
MAX_REASON = 300

SCRIPT = """\
#!/bin/bash
# Attempt {token}, written by longhaul. Not `set -e`: the exit code must reach the end of this script.
{site}set -u
export {exported}
cd {root} || exit {input}
{setup}env {fixed} {command} >> {log} 2>&1
code=$?
echo "$code" > {job_end}
exit "$code"
"""

CANNOT_START = {
    "RUNTIME_ENV_SETUP_FAILURE",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
    "JOB_ENTRYPOINT_COMMAND_START_ERROR",
}
"""`error_type` of jobs whose command never ran. START_FAILURE is also that of a running job without supervisor."""


def launcher(profile: Profile) -> Batch:
    return Batch(Ray(profile), profile.launch.poll_s)


class Ray:
    """A `Scheduler`."""

    name = "Ray"

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._address = address_of(profile.launch.address, os.environ)
        self.check = f"curl {self._address}/api/version"
        self._stopped: set[str] = set()
        """Jobs that this master stopped. Ray cannot stop a job that waits for resources: it does so once the job has
        them, and calls it pending until then."""

    def prepare(self, order: Order, directory: AttemptDir) -> Callable[[], str]:
        token = order.handle.token
        environment = of_a_job(order.environment, directory, without="RAY_")
        text = script(self._profile, token, order.command, environment, directory, python.ROOT)
        durable.write_file(directory.job_script, text.encode())
        body = request(self._profile, token, directory)
        return lambda: self._submit(body, token)

    def _submit(self, body: Mapping[str, Any], token: str) -> str:
        status, answer = self._ask("POST", "/api/jobs/", msgspec.json.encode(body))
        if status != 200 and f"{token} already exists" not in answer:  # if it does, an earlier try was heard
            said = (answer.strip().splitlines() or [""])[-1][:MAX_REASON]
            raise (Refused if status == 400 else Unanswered)(f"{self._address} answers {status}: {said}")
        return token

    def find(self, token: str) -> str:
        return token if self.final(token).state else ""

    def listed(self, jobs: Sequence[str]) -> Mapping[str, Seen]:
        """Asks for each of this run's jobs, one or two: Ray's own list has everybody's since the cluster began."""
        return {job: self.final(job) for job in jobs}

    def final(self, job: str) -> Seen:
        status, answer = self._ask("GET", f"/api/jobs/{job}")
        if status == 404 and f"{job} does not exist" in answer:
            return Seen("")
        if status != 200:
            raise Unanswered(f"{self._address} answers {status}: {answer.strip()[:MAX_REASON]}")
        seen = seen_in(answer)
        return Seen("CANCELLED") if seen.state == "PENDING" and job in self._stopped else seen

    def signal(self, job: str, number: int) -> None:
        """Ray passes on no signal but the end: TERM to all of the job's processes, and KILL after 3 seconds."""
        if number == signal.SIGKILL:
            self._stopped.add(job)
            self._ask("POST", f"/api/jobs/{job}/stop")

    def never_starts(self, job: str, seen: Seen) -> bool:
        return False  # Ray gives up by itself after 15 minutes: UNPLACED

    def silent(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return ()  # Ray's nodes have names of its own, and it sees a dead one within seconds

    def failed(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """None: Ray itself leaves out nodes that it has lost."""
        return ()

    def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
        """Status and text of the answer. Raises Refused if the token is wrong, Unanswered if there is no answer."""
        status, answer = answer_of(self._address, method, path, body, auth_token())
        if status in (401, 403):
            raise Refused(
                f"{self._address} answers {status}, {answer.strip()[:MAX_REASON]}; it wants the cluster's token in "
                "RAY_AUTH_TOKEN or ~/.ray/auth_token"
            )
        return status, answer


# --- requests and answers (pure but for `answer_of` and `auth_token`) ------------------------------------------------


def address_of(address: str, environment: Mapping[str, str]) -> str:
    """URL of the dashboard: of the profile, or as Ray's own commands find it."""
    named = [address, environment.get("RAY_API_SERVER_ADDRESS", ""), environment.get("RAY_ADDRESS", "")]
    found = [one for one in named if one.startswith(("http://", "https://"))]
    return (found[0] if found else DEFAULT_ADDRESS).rstrip("/")


def auth_token() -> str:
    """The token of the user's clusters, where Ray itself looks for it; empty: none."""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", "") or Path.home() / ".ray" / "auth_token"
    with suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text().strip()
    return ""


def answer_of(address: str, method: str, path: str, body: bytes, token: str) -> tuple[int, str]:
    """Status and text of one HTTP answer. Raises Unanswered if there is none within PATIENCE_S in all."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        url = urlsplit(address)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=PATIENCE_S)
        connection.connect()
        # The timeout of a socket is one of each read, and a head may send a byte now and then.
        timer = threading.Timer(PATIENCE_S, _hang_up, [connection.sock])
        timer.daemon = True
        timer.start()
        try:
            connection.request(method, url.path + path, body or None, headers)
            answer = connection.getresponse()
            text = answer.read(MAX_ANSWER_BYTES)
        finally:
            timer.cancel()
            connection.close()
        return answer.status, text.decode()
    except TimeoutError as error:
        raise Unanswered(f"no answer from {address} within {PATIENCE_S:g} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unanswered(f"no answer from {address}: {error or error.__class__.__name__}") from error


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def request(profile: Profile, token: str, directory: AttemptDir) -> dict[str, Any]:
    """Body of a job's submission."""
    launch, run = profile.launch, profile.run
    # An engine such as verl asks Ray for its GPUs itself. A job that asks for nothing at all is placed on the head.
    gpus = 0 if run.device == "cpu" or worker_kind_of(profile).has_own_engine else run.cards
    found: dict[str, Any] = {
        "entrypoint": f"exec bash {shlex.quote(str(directory.job_script.resolve()))}",
        "submission_id": token,
        "entrypoint_num_cpus": launch.cpus_per_node or 1,
        "entrypoint_num_gpus": gpus,
    }
    return found | ({"entrypoint_memory": launch.memory_gb * 2**30} if launch.memory_gb else {})


def script(
    profile: Profile,
    token: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: AttemptDir,
    root: str,
) -> str:
    """The text of the job script. environment: variables to add to the job's own. root: directory to start in."""
    return SCRIPT.format(
        **common(token, environment, profile.launch.setup, root),
        command=shlex.join(command),
        log=shlex.quote(str(directory.log.resolve())),
        job_end=shlex.quote(str(directory.job_end.resolve())),
    )


class _Job(msgspec.Struct):
    """What is read of Ray's JobDetails."""

    status: str
    message: str | None = None
    error_type: str | None = None
    driver_exit_code: int | None = None


def seen_in(answer: str) -> Seen:
    """Ray's account of a job, in the words of `job_end`. Raises Unanswered if it is none."""
    try:
        job = msgspec.json.decode(answer, type=_Job)
    except msgspec.MsgspecError as error:
        raise Unanswered(f"Ray says {answer[:200]!r}") from error
    lines = (job.message or "").strip().splitlines() or [""]
    match job.status:
        case "PENDING":
            return Seen("PENDING", reason=lines[0][:MAX_REASON])
        case "RUNNING":
            return Seen("RUNNING")
        case "SUCCEEDED":
            return Seen("COMPLETED")
        case "STOPPED":
            return Seen("CANCELLED")
        case "FAILED":
            return _failed(job, lines)
    raise Unanswered(f"Ray calls the job {job.status[:50]!r}")


def _failed(job: _Job, lines: Sequence[str]) -> Seen:
    first, last = lines[0][:MAX_REASON], lines[-1][:MAX_REASON]
    kind, code = job.error_type or "", job.driver_exit_code
    if kind == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT":
        return Seen("UNPLACED", reason=first)
    if code is not None:
        return Seen("FAILED", max(code, 0), max(-code, 0), last)
    if kind in CANNOT_START and "failed to get job supervisor" not in first:
        return Seen("FAILED", 1, reason=last)
    return Seen("NODE_FAIL", reason=first)
