"""Entry point of every worker: `python -m workers` warms up, sends `ready`, and works on its spec.

A local worker starts without a task and waits for one. A worker that a scheduler starts has its task from the start.
"""

from __future__ import annotations

# ruff: noqa: E402 - ignore signals before any slow import: their default action ends the process
from workers import process

process.ignore_signals()

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import ExitCode
from state.crash import crash_point
from state.layout import AttemptDir
from workers import kinds
from workers.contract import (
    CONTROL_FD_VARIABLE,
    LIFELINE_FD_VARIABLE,
    MAILBOX_VARIABLE,
    RESTART_VARIABLE,
    TOKEN_VARIABLE,
    WARM_VARIABLE,
    Message,
    WorkerSpec,
)
from workers.control import Control, SocketLink
from workers.mailbox import FENCE_S, Mailbox, claim, ended_before, from_newest_checkpoint
from workers.memory.release import free_for_next
from workers.runtime import SpecError, carry_out, read_spec

if TYPE_CHECKING:
    from workers.sandbox import Sandbox

log = logging.getLogger("worker")


def main() -> int:
    process.set_up(logging.INFO, lifeline_variable=LIFELINE_FD_VARIABLE)
    token = os.environ.get(TOKEN_VARIABLE, "")
    if mailbox := os.environ.get(MAILBOX_VARIABLE, ""):
        return of_a_scheduler(AttemptDir(Path(mailbox)), token, int(os.environ.get(RESTART_VARIABLE) or 0))
    fd = process.inherited_fd(CONTROL_FD_VARIABLE)
    control = Control(SocketLink(fd) if fd is not None else None, token)
    sandbox = warmed_up(control)
    try:
        return wait_and_work(control, token, sandbox)
    finally:
        dismiss(control, sandbox)


def of_a_scheduler(directory: AttemptDir, token: str, restart: int) -> int:
    """Work on the attempt that the job was submitted for; exit if another copy has it or no work is left."""
    if not claim(directory, token, restart):
        log.info("another copy of this job has the attempt; this one touches nothing")
        return ExitCode.OK
    if restart:
        time.sleep(FENCE_S)
    if (code := ended_before(directory)) is not None:
        return code
    directory.result.unlink(missing_ok=True)  # from an earlier start that saved and stopped
    control = Control(Mailbox(directory, token, restart), token)
    sandbox = warmed_up(control)
    try:
        spec = read_spec(directory.spec, token)
        return work(from_newest_checkpoint(spec) if restart else spec, control, sandbox, restart)
    except SpecError as error:
        log.error("error: %s", error)
        return error.exit_code
    finally:
        dismiss(control, sandbox)


def warmed_up(control: Control) -> Sandbox | None:
    with process.importing():
        sandbox = kinds.worker_kind_named(os.environ.get(WARM_VARIABLE, "fake")).warm_up()
    crash_point("worker.before_ready")
    control.send(Message(type="ready"))
    return sandbox


def dismiss(control: Control, sandbox: Sandbox | None) -> None:
    control.close()
    crash_point("worker.leaving")
    if sandbox is not None:
        sandbox.close()


def wait_and_work(control: Control, token: str, sandbox: Sandbox | None) -> int:
    start = control.requests.start.get()
    if start is None:
        return ExitCode.OK
    try:
        spec = read_spec(Path(start.path), token)
    except SpecError as error:
        log.error("error: %s", error)
        return error.exit_code
    return work(spec, control, sandbox)


def work(spec: WorkerSpec, control: Control, sandbox: Sandbox | None, restart: int = 0) -> int:
    control.send(Message(type="started", step=spec.first_step))
    crash_point("worker.after_started")
    log.info(
        "cycle %d attempt %d started: %s, steps %d to %d",
        spec.cycle,
        spec.attempt,
        spec.role,
        spec.first_step,
        spec.end_step - 1,
    )
    job = kinds.worker_kind_named(spec.profile.run.worker).job(spec, sandbox)
    code = carry_out(spec, control, job, restart)
    free_for_next(spec, control, code)
    crash_point("worker.after_done")
    log.info("cycle %d attempt %d ended with %d", spec.cycle, spec.attempt, code)
    return code


if __name__ == "__main__":
    process.leave(main())
