"""A launcher of one's own: workers of this machine that yield to everything else on it. docs/extending.md shows it."""

import shutil
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.launchers.launcher import Handle, Life, Order, Started
from orchestrator.launchers.local import Local
from profiles.schema import Profile


class Nice:
    """As `local`, with `nice` in front of the command. It execs, so the process id stays the worker's."""

    def __init__(self, profile: Profile) -> None:
        self._local = Local(profile)

    def start(self, order: Order) -> Started:
        nice = shutil.which("nice")
        if nice is None:
            raise FileNotFoundError("there is no program `nice`")
        return self._local.start(replace(order, command=(nice, "-n", "19", *order.command)))

    def poll(self, handle: Handle) -> Life:
        return self._local.poll(handle)

    def signal(self, handle: Handle, number: int) -> None:
        self._local.signal(handle, number)

    def wait(self, handle: Handle, seconds: float | None = None) -> Life:
        return self._local.wait(handle, seconds)

    def adopt(self, owner: str, handles: Sequence[Handle]) -> list[Handle]:
        return self._local.adopt(owner, handles)
