"""Whether a resumed run repeats an unbroken one bit for bit, and if not, why. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profiles.worker_kinds import kind_of_stored

BIT_EXACT, STATE_EXACT = "bit-exact", "state-exact"


def exactness(profile: Mapping[str, Any], versions: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """(BIT_EXACT or STATE_EXACT, the reason).

    profile: resolved, as stored. versions: as reported by each started train worker, oldest first. State-exact means
    that every input of the next step is the same, but kernels may round differently.
    """
    run = profile.get("run", {})
    if kind_of_stored(profile).has_own_engine:
        return STATE_EXACT, "another program trains: weights, moments and data go on, rollouts are drawn anew"
    if not run.get("deterministic", True):
        return STATE_EXACT, "run.deterministic is false: kernels may round differently after each resume"
    if profile.get("sampling", {}).get("engine") == "vllm":
        return STATE_EXACT, "vLLM's rollouts also depend on what its process has sampled and cached before"
    if versions:
        first, last = versions[0], versions[-1]
        changed = [
            f"{name} {first.get(name, 'none')} -> {last.get(name, 'none')}"
            for name in sorted({*first, *last})
            if first.get(name) != last.get(name)
        ]
        if changed:
            return STATE_EXACT, f"versions changed since the run began: {', '.join(changed)}"
    return BIT_EXACT, "run.deterministic is true, and the machine and versions are the same as at the start"
