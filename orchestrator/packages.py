"""Checks before a command starts that the packages it needs are installed.

A later ModuleNotFoundError is a bug and keeps its traceback.
"""

from __future__ import annotations

from importlib.util import find_spec

from profiles.errors import ExitCode, LonghaulError

PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "safetensors": "safetensors",
    "numpy": "numpy",
    "msgspec": "msgspec",
    "psutil": "psutil",
    "sqlite_utils": "sqlite-utils",
    "rich": "rich",
    "yaml": "pyyaml",
    "jinja2": "jinja2",
    "regex": "regex",
    "watchdog": "watchdog",
}
"""Import name -> package name."""
OWN = ("msgspec", "psutil", "sqlite_utils", "rich")
"""Packages that the orchestrator imports; workers need the rest."""
OF_FILES = ("backup", "restore", "archive", "prune")
NEEDS = {
    "doctor": ("msgspec", "psutil"),  # its own checks report the others
    **dict.fromkeys(("status", "top", "stop", "checkpoint", "report", "recover", "web", *OF_FILES), OWN),
    **dict.fromkeys(("plan", "completion", "service", "notify"), (*OWN, "yaml")),
}
"""Command -> packages it needs. Commands not listed start workers and need all."""


def check(command: str) -> None:
    """Raises LonghaulError (INPUT) if a package that the command needs is missing."""
    missing = [PACKAGES[name] for name in NEEDS.get(command, tuple(PACKAGES)) if find_spec(name) is None]
    if not missing:
        return
    raise LonghaulError(
        f"not installed: {', '.join(missing)}, which `{command}` needs",
        kept="nothing was started or changed",
        next_command="make setup   (then .venv/bin/python -m orchestrator; if that changes nothing: make clean setup)",
        exit_code=ExitCode.INPUT,
    )
