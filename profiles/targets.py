"""Translates `adapter.targets` to the names that a model has. (pure)"""

from __future__ import annotations

from collections.abc import Collection

from profiles.description import FUSED, MLP, Architecture


def own_targets(architecture: Architecture, targets: Collection[str]) -> tuple[str, ...]:
    """The targets, with layers that this model computes as one named as that one, so that a profile's seven usual names
    fit every model. Names of only some of them stay as they are, and are refused as unknown.

    Where all layers of the MLP are named and it has no gate, that name is left out.
    """
    found = list(dict.fromkeys(targets))
    for fused, parts in FUSED.items():
        if fused in architecture.fused and parts <= set(found):
            found = [name for name in found if name not in parts] + ([] if fused in found else [fused])
    if not architecture.has_gate and set(found) >= MLP:
        found.remove("gate_proj")
    return tuple(found)


def refusal(unknown: Collection[str], known: Collection[str]) -> tuple[str, str]:
    """What is said of targets that a model does not have, and what to type."""
    names = ", ".join(sorted(known))
    together = "".join(
        f"; {', '.join(sorted(parts))} together stand for {fused}"
        for fused, parts in FUSED.items()
        if fused in known and parts & set(unknown)
    )
    what = f"adapter.targets names {', '.join(unknown)}, which this model does not have; its linear layers are {names}"
    return what + together, f"set adapter.targets to some of {names}"
