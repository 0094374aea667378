"""The sandbox: runs model-written programs, each in a fresh, sealed process.

Cheap to import (no torch). docs/sandbox.md describes the threat model, the layers and the measurements.
"""

from workers.sandbox.limits import Budget, Limits
from workers.sandbox.pool import Sandbox
from workers.sandbox.result import Case, Result, Script, ScriptResult, Statements, Status

__all__ = ["Budget", "Case", "Limits", "Result", "Sandbox", "Script", "ScriptResult", "Statements", "Status"]
