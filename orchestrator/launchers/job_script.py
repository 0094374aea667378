"""What the job scripts of all schedulers have in common. (pure)"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from orchestrator.launchers.environment import MARKS
from profiles.errors import ExitCode

SITE = """\
# `module` is a function that only login shells have. The user's own profile is left out: it may export secrets.
[ ! -r /etc/profile ] || . /etc/profile
"""


def common(token: str, environment: Mapping[str, str], setup: Sequence[str], root: str) -> dict[str, str | int]:
    """Values of a script's template by name, quoted for the shell. environment: variables to add to the job's own.
    setup: lines of shell to run first, which may change all of them but MARKS. root: directory to start in."""
    exported = {name: value for name, value in environment.items() if name.isidentifier() and name not in MARKS}
    return {
        "token": token,
        "site": SITE if setup else "",
        "exported": _assigned({"PATH": "/usr/bin:/bin", **exported}),
        "root": shlex.quote(root),
        "input": int(ExitCode.INPUT),
        # What others wrote, such as `conda activate`, may read variables that are not set.
        "setup": "".join(f"{line}\n" for line in ("set +u", *setup, "set -u")) if setup else "",
        "fixed": _assigned({name: value for name, value in environment.items() if name not in exported}),
    }


def _assigned(variables: Mapping[str, str]) -> str:
    """Arguments for `export` or `env`."""
    return " ".join(f"{shlex.quote(name)}={shlex.quote(value)}" for name, value in sorted(variables.items()))
