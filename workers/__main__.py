"""Entry of every worker: `python -m workers` starts without a task, warms up, says `ready`, and waits for its spec."""

from __future__ import annotations

# ruff: noqa: E402 - signals come before every import that takes time: their default action is death
from workers import process

process.ignore_signals()

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import ExitCode
from state.crash import crash_point
from workers.contract import (
    CONTROL_FD_VARIABLE,
    LIFELINE_FD_VARIABLE,
    TOKEN_VARIABLE,
    Message,
    Result,
    WorkerSpec,
)
from workers.control import Control
from workers.runtime import Attempt, SpecError, carry_out, read_spec

if TYPE_CHECKING:
    from workers.sandbox import Sandbox

WARM_VARIABLE = "LONGHAUL_WARM"
"""What to import before a spec is known: `azr`, `grpo`, or `fake` for the durability trainer, which needs nothing."""

log = logging.getLogger("worker")


def main() -> int:
    lifeline = process.inherited_fd(LIFELINE_FD_VARIABLE)
    if lifeline is not None:
        process.watch_lifeline(lifeline)
    process.die_with_parent()
    process.dump_on_usr2()
    process.offer_to_oom_killer()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    token = os.environ.get(TOKEN_VARIABLE, "")
    control = Control(process.inherited_fd(CONTROL_FD_VARIABLE), token)
    with process.importing():
        sandbox = warm_up(os.environ.get(WARM_VARIABLE, "fake"))
    crash_point("worker.before_ready")
    control.send(Message(type="ready"))
    try:
        return wait_and_work(control, token, sandbox)
    finally:
        control.close()
        if sandbox is not None:
            sandbox.close()


def warm_up(kind: str) -> Sandbox | None:
    """Start the zygotes, then import what takes long. The zygotes come first: they must not hold a copy of torch."""
    if kind == "grpo":
        from workers.grpo import warm

        warm.start()
    if kind != "azr":
        return None
    from workers.azr.warm import start

    return start()


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
    log.info("cycle %d attempt %d started: %s, steps %d to %d", spec.cycle, spec.attempt, spec.role, spec.first_step,
             spec.end_step - 1)  # fmt: skip
    code = carry_out(spec, control, job_of(spec, sandbox))
    crash_point("worker.after_done")
    log.info("cycle %d attempt %d ended with %d", spec.cycle, spec.attempt, code)
    return code


def job_of(spec: WorkerSpec, sandbox: Sandbox | None) -> Callable[[Attempt], Result]:
    """What the profile and the role ask for. Modules are imported when they are chosen."""
    from workers import train, validate

    if spec.profile.run.worker == "fake":
        from workers.fake import FakeTrainer, fake_suites

        if spec.role == "validate":
            return lambda attempt: validate.validate(attempt, fake_suites(attempt))
        return lambda attempt: train.train(attempt, FakeTrainer(attempt))
    if spec.profile.run.worker == "grpo":
        from workers.grpo import warm

        return warm.job(spec)
    from workers.azr.warm import job

    return job(spec, sandbox)


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(exit_code)  # tearing a tensor library down takes longer than the hand-over may
