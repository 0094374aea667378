"""The sandbox: runs programs that a model wrote, one fresh and sealed process each.

Cheap to import (no torch). docs/sandbox.md has the threat model, the layers and the measured figures.
"""

from workers.sandbox.limits import Limits
from workers.sandbox.pool import Sandbox
from workers.sandbox.result import Case, Result, Status

__all__ = ["Case", "Limits", "Result", "Sandbox", "Status"]
