"""The process that sends messages, from the master's side: started, heard, and told when the run ends.

It looks at the store by itself, so nothing here waits for it before the run has ended, and none of its failures affects
the run.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from orchestrator.launchers.environment import PROXIES, without_master
from orchestrator.line_worker import start
from profiles.notify import Notify
from state import durable
from state.history import History
from state.layout import RunDir
from workers.line_contract import Error, Note, NotifySpec, read_line

MODULE = "workers.notify"
PATIENCE_S = 10.0
"""For the last messages, once the run has ended. The process goes on by itself after that."""
GOODBYE = b"."


def environment_for(notify: Notify) -> dict[str, str]:
    """The common environment, the variable that holds URLs, and those that the command is to get. Nobody else gets
    them.

    The process does not carry the run's mark: a master that finds it, still sending for one that was killed, leaves it
    alone.
    """
    names = {notify.urls_env, *notify.pass_env, *PROXIES} & set(os.environ)
    return without_master("command", "notify") | {name: os.environ[name] for name in names}


@contextmanager
def notified(run: RunDir, history: History, notify: Notify, say: Callable[[str], None]) -> Iterator[None]:
    """Tell a person what happens inside the block, if [notify] says how. history: before the run goes on."""
    process = _started(run, history, notify, say) if notify.is_used else None
    try:
        yield
    finally:
        if process is not None:
            _part(process, say)


def _started(
    run: RunDir, history: History, notify: Notify, say: Callable[[str], None]
) -> subprocess.Popen[bytes] | None:
    spec = NotifySpec(
        store=str(run.store.resolve()),
        folder=str(run.notify.resolve()),
        name=run.name,
        run_id=history.run_id,
        notify=notify,
        was_state=history.state,
        was_changed_at=history.heartbeat_at,
    )
    try:
        durable.make_dir(run.notify)
        with (run.notify / "notify.log").open("ab") as log:
            process = start(MODULE, log, environment_for(notify))
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        process.stdin.flush()
    except Exception as error:
        say(f"messages cannot be sent; the run goes on without them: {error}\n")
        return None
    return process


def _part(process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    """Say goodbye, wait a little for the last messages, and show what went wrong. What is left it sends by itself."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(OSError):
        process.stdin.write(GOODBYE)
        process.stdin.close()
    for line in _said(process):
        with suppress(msgspec.ValidationError):
            match read_line(line):
                case Note(text=text) | Error(what=text):
                    say(f"notify: {text}\n")
    process.stdout.close()
    process.poll()


def _said(process: subprocess.Popen[bytes]) -> list[bytes]:
    """All that it says until it ends, or until we have waited long enough."""
    assert process.stdout is not None
    fd, ends, text = process.stdout.fileno(), time.monotonic() + PATIENCE_S, b""
    while select.select([fd], [], [], max(0.0, ends - time.monotonic()))[0]:
        got = os.read(fd, 65536)
        if not got:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            break
        text += got
    return text.splitlines()
