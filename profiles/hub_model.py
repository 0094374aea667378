"""Names of models on the Hugging Face hub in `model.path`, and where huggingface_hub keeps their files.

huggingface_hub is slow to import, so this repeats its rules for the place of a snapshot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from profiles.built_in import BUILT_IN
from profiles.schema import Model

_NAME = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubModel(Struct, frozen=True):
    """revision: branch, tag or commit; empty for the newest."""

    repository: str
    revision: str = ""


def hub_model(path: str, *, is_known: bool = False) -> HubModel | None:
    """The model of the hub that `model.path` names; None if it names a folder.

    OWNER/NAME is a folder if there is one, or if its first part is a folder here: models/NAME is where our own profiles
    look. is_known: it was found on the hub before, so no folder matters.
    """
    found = _NAME.fullmatch(path)
    if not found or path in BUILT_IN:
        return None
    first = Path(path).parts[0]
    if not is_known and (Path(path).is_dir() or first == "models" or Path(first).is_dir()):
        return None
    return HubModel(found["repository"], found["revision"] or "")


def hub_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of huggingface_hub's downloads."""
    if named := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expandvars(named)).expanduser()
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{caches}/huggingface"
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def snapshot_of(repository: str, commit: str) -> Path:
    """The folder with the files of one commit."""
    return hub_cache() / f"models--{repository.replace('/', '--')}" / "snapshots" / commit


def directory_of(model: Model) -> Path:
    """The folder of the profile's model, whether it exists or not."""
    if known := BUILT_IN.get(model.path):
        return known.directory
    named = hub_model(model.path, is_known=True) if model.revision else None
    if named is not None:
        return snapshot_of(named.repository, model.revision)
    return Path(model.path).expanduser()
