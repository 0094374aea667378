"""Whether a resume would repeat a run bit for bit, and why not. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BIT_EXACT, STATE_EXACT = "bit-exact", "state-exact"


def exactness(profile: Mapping[str, Any], versions: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """(BIT_EXACT or STATE_EXACT, the reason in words).

    profile: resolved, as stored. versions: what each train worker that started reported, oldest first.
    state-exact: every input of the next step is the same, but kernels may round differently.
    """
    run = profile.get("run", {})
    if not run.get("deterministic", True):
        return STATE_EXACT, "run.deterministic is false: kernels may differ in rounding from one resume to the next"
    if profile.get("sampling", {}).get("engine") == "vllm":
        return STATE_EXACT, "rollouts by vLLM also depend on what its process has drawn and cached before"
    if versions:
        first, last = versions[0], versions[-1]
        changed = [
            f"{name} {first.get(name, 'none')} -> {last.get(name, 'none')}"
            for name in sorted({*first, *last})
            if first.get(name) != last.get(name)
        ]
        if changed:
            return STATE_EXACT, f"versions changed since the run began: {', '.join(changed)}"
    return BIT_EXACT, "run.deterministic is true, and machine and versions are those that the run began with"
