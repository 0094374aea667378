"""Entry of every worker: `python -m workers` starts without a task, warms up, says `ready`, and waits for its spec."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import ExitCode
from state.crash import crash_point
from workers import kinds
from workers.contract import (
    CONTROL_FD_VARIABLE,
    LIFELINE_FD_VARIABLE,
    TOKEN_VARIABLE,
    Message,
)
from workers.control import Control
from workers.runtime import SpecError, carry_out, read_spec

if TYPE_CHECKING:
    from workers.sandbox import Sandbox

WARM_VARIABLE = "LONGHAUL_WARM"
"""The kind of worker that is expected, whose imports are made before a spec is known."""

log = logging.getLogger("worker")


def main() -> int:
    process.set_up(logging.INFO, lifeline_variable=LIFELINE_FD_VARIABLE)
    token = os.environ.get(TOKEN_VARIABLE, "")
    control = Control(process.inherited_fd(CONTROL_FD_VARIABLE), token)
    with process.importing():
        sandbox = kinds.worker_kind_named(os.environ.get(WARM_VARIABLE, "fake")).warm_up()
    crash_point("worker.before_ready")
    control.send(Message(type="ready"))
    try:
        return wait_and_work(control, token, sandbox)
    finally:
        control.close()
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
    control.send(Message(type="started", id=start.id, step=spec.first_step))
    crash_point("worker.after_started")
    log.info(
        "cycle %d attempt %d started: %s, steps %d to %d",
        spec.cycle,
        spec.attempt,
        spec.role,
        spec.first_step,
        spec.end_step - 1,
    )
    code = carry_out(spec, control, kinds.worker_kind_named(spec.profile.run.worker).job(spec, sandbox))
    crash_point("worker.after_done")
    log.info("cycle %d attempt %d ended with %d", spec.cycle, spec.attempt, code)
    return code


if __name__ == "__main__":
    process.leave(main())
