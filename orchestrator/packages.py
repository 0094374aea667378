"""Packages that pyproject.toml lists: is one missing, a command says so before it does anything.

A ModuleNotFoundError later on is a fault of ours, and stays loud.
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
    "jinja2": "jinja2",
}
"""Name in Python -> name of the package."""
OWN = ("msgspec", "psutil", "sqlite_utils", "rich")
"""What the master's side imports; all else belongs to workers."""
NEEDS = {
    "doctor": ("msgspec", "psutil"),  # it tells of the others itself, among its other checks
    **dict.fromkeys(("status", "top", "stop", "checkpoint", "report", "recover"), OWN),
}
"""Command -> what it cannot do without; commands that are not named start workers, and need all."""


def check(command: str) -> None:
    """Raises LonghaulError (INPUT) where a package is missing that the command needs."""
    missing = [PACKAGES[name] for name in NEEDS.get(command, tuple(PACKAGES)) if find_spec(name) is None]
    if not missing:
        return
    raise LonghaulError(
        f"not installed: {', '.join(missing)}, which `{command}` needs",
        kept="nothing was started and nothing changed",
        next_command="make setup   (then .venv/bin/python -m orchestrator; if that changes nothing: make clean setup)",
        exit_code=ExitCode.INPUT,
    )
