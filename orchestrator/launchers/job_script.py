"""What the job scripts of all schedulers have in common. (pure)"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from profiles.errors import ExitCode


def common(token: str, environment: Mapping[str, str], setup: Sequence[str], root: str) -> dict[str, str | int]:
    """Values of a script's template by name, quoted for the shell. environment: variables to add to the job's own.
    setup: lines of shell to run first. root: directory to start in."""
    return {
        "token": token,
        "path": shlex.quote(environment.get("PATH", "/usr/bin:/bin")),
        "root": shlex.quote(root),
        "input": int(ExitCode.INPUT),
        "setup": "".join(f"{line}\n" for line in setup),
        "environment": " ".join(shlex.quote(f"{name}={value}") for name, value in sorted(environment.items())),
    }
