"""Built-in launchers: name in a profile -> MODULE:CALLABLE. (pure)"""

from __future__ import annotations

from collections.abc import Mapping

LAUNCHERS: Mapping[str, str] = {
    "local": "orchestrator.launchers.local:Local",
    "ray": "orchestrator.launchers.ray:launcher",
    "slurm": "orchestrator.launchers.slurm:launcher",
}
