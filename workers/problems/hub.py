"""Reads data sets of the Hugging Face hub: `hf:owner/name[:config][@revision]`.

huggingface_hub brings the files of one commit, or finds them where it kept them; `datasets` (extra `hub`) reads them.
Both are imported here, and only when such a data set is requested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError

PREFIX = "hf:"
_NAME = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(:(?P<config>[^@:]+))?(@(?P<revision>[\w./-]+))?", re.ASCII)


class HubName(Struct, frozen=True):
    """config: part of the data set, "" for the only one. revision: branch, tag or commit; "" for the newest."""

    repository: str
    config: str = ""
    revision: str = ""


def hub_name(text: str) -> HubName:
    """Raises LonghaulError (INPUT) if it has another form."""
    if not (found := _NAME.fullmatch(text)):
        raise _refusal(text, "its form is hf:owner/name, hf:owner/name:config or hf:owner/name:config@revision")
    return HubName(found["repository"], found["config"] or "", found["revision"] or "")


def read_hub(text: str, split: str, revision: str = "") -> tuple[Iterator[dict[str, Any]], dict[str, str], str]:
    """The rows of a split, the columns that are left out with their kind, and the commit that was read.

    revision: the commit to read in place of the one that the name leads to. Raises LonghaulError (INPUT).
    """
    name = hub_name(text)
    try:
        hub, datasets = import_module("huggingface_hub"), import_module("datasets")
    except ImportError as error:
        why = f"reading data sets of the hub needs {error.name}"
        raise _refusal(text, why, 'pip install "longhaul[hub]"   then the same command') from error
    folder = _snapshot(hub, text, name, revision)
    try:
        table = datasets.load_dataset(str(folder), name.config or None, split=split)
    except Exception as error:  # the library raises exceptions of many others
        raise _refusal(text, f"{type(error).__name__}: {error}"[:500], f"ls -lL {folder}") from error
    kinds = {one: type(kind).__name__ for one, kind in table.features.items()}
    left_out = {one: kind for one, kind in kinds.items() if kind in ("Image", "Audio", "Video", "Pdf")}
    return iter(table.remove_columns(list(left_out))), left_out, folder.name


def _snapshot(hub: Any, text: str, name: HubName, revision: str) -> Path:
    """The folder with the files of one commit, whose name is the commit."""
    wanted = revision or name.revision
    try:
        return Path(hub.snapshot_download(name.repository, repo_type="dataset", revision=wanted or None))
    except Exception as error:  # of requests, of the hub, of the disk; all mean that the files are not here
        at = f" --revision {wanted}" if wanted else ""
        kept = Path(hub.constants.HF_HUB_CACHE) / f"datasets--{name.repository.replace('/', '--')}"
        raise _refusal(
            text,
            f"its files are not on this machine, and the hub did not give them ({type(error).__name__})",
            f"hf download --repo-type dataset {name.repository}{at}   on a machine with a network, "
            f"then copy its folder datasets--... to {kept}",
        ) from error


def _refusal(text: str, why: str, next_command: str = "") -> LonghaulError:
    return LonghaulError(
        f"the problems {text} cannot be used: {why}",
        kept="everything; nothing was started",
        next_command=next_command or "the same command with another name for --set data.tasks=...",
        exit_code=ExitCode.INPUT,
    )
