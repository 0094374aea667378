"""Launchers that come with the program: name in a profile -> MODULE:CLASS. (pure)"""

from __future__ import annotations

from collections.abc import Mapping

LAUNCHERS: Mapping[str, str] = {"local": "orchestrator.launchers.local:Local"}
