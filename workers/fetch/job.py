"""One download: which commit a revision is, whether the disk has room, the files, and whether each is whole.

huggingface_hub does the work: it keeps what a broken transfer brought, and goes on from there.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import huggingface_hub as hub
from huggingface_hub import errors

from profiles.errors import ExitCode, LonghaulError
from state.durable import write_file
from workers.line_contract import Fetched, Fetching, FetchSpec, Note
from workers.lines import Say

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.py", "LICENSE*")
"""What a model directory needs. Weights in other formats stay where they are."""
OFFLINE = "HF_HUB_OFFLINE"
"""The variable by which huggingface_hub keeps to what is on this machine."""
TRIES = 3
GIB = 1 << 30
_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch(spec: FetchSpec, say: Say) -> None:
    """Says Fetching on the way, and Fetched at the end. Raises LonghaulError: INPUT if the hub does not give the model,
    DISK without room for it."""
    try:
        commit = spec.revision if spec.is_commit else _commit_of(spec)
        needed = _needed(spec, commit)
    except LonghaulError:
        raise
    except Exception as error:  # of the hub, of HTTP, of the network: what is here must do
        folder = _kept(spec)
        if folder is None:
            raise _not_here(spec, error) from error
        say(Note(f"{_why_unasked(error)}; {spec.repository} is taken as it is on this machine"))
        say(Fetched(str(folder), folder.name))
        return
    _refuse_small_disk(spec, sum(needed))
    folder = _downloaded(spec, commit, needed, say)
    _refuse_damage(spec, folder)
    if not spec.is_commit:
        _remember(folder, spec.revision or "main", commit)
    say(Fetched(str(folder), commit))


def _commit_of(spec: FetchSpec) -> str:
    try:
        found = hub.HfApi().model_info(spec.repository, revision=spec.revision or None, timeout=30)
    except errors.GatedRepoError as error:
        raise _refused(
            f"{spec.repository} is given only to those who accepted its terms",
            f"accept them at https://huggingface.co/{spec.repository}, then: hf auth login, then the same command",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise _refused(
            f"{spec.repository} has no revision {spec.revision} on the hub",
            f"see https://huggingface.co/{spec.repository}/tree/main, then set model.path to one that there is",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise _refused(
            f"there is no folder {spec.repository} here, and the hub has no such model, or does not show it to you",
            "set model.path to a folder or to OWNER/NAME of the hub (of a private model: hf auth login before)",
        ) from error
    return str(found.sha)


def _needed(spec: FetchSpec, commit: str) -> list[int]:
    """Bytes of each file that is still to be fetched."""
    plan: Any = hub.snapshot_download(spec.repository, revision=commit, allow_patterns=list(PATTERNS), dry_run=True)
    if not any(one.filename.endswith(".safetensors") for one in plan):
        raise _refused(
            f"{spec.repository} has no weights in safetensors on the hub",
            "set model.path to another model, or convert it: transformers' save_pretrained writes safetensors",
        )
    return [one.file_size for one in plan if one.will_download]


def _refuse_small_disk(spec: FetchSpec, needed: int) -> None:
    place = Path(hub.constants.HF_HUB_CACHE)
    place.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place).free
    begun = sum(size for _, size in _blobs(spec, ".incomplete"))
    if needed and needed - begun + GIB // 4 > free:
        raise LonghaulError(
            f"{spec.repository} needs {(needed - begun) / GIB:.1f} GiB more in {place}, and {free / GIB:.1f} are free",
            kept="nothing was started; what was fetched before stays",
            next_command=f"df -h {place}   (free some space), or the same command after: export HF_HOME=/a/larger/disk",
            exit_code=ExitCode.DISK,
        )


def _blobs(spec: FetchSpec, ending: str = "") -> list[tuple[Path, int]]:
    folder = Path(hub.constants.HF_HUB_CACHE) / f"models--{spec.repository.replace('/', '--')}" / "blobs"
    found = []
    for path in folder.glob(f"*{ending}"):
        with suppress(OSError):
            found.append((path, path.stat().st_size))
    return found


def _downloaded(spec: FetchSpec, commit: str, needed: Sequence[int], say: Say) -> Path:
    """The folder with all files. A transfer that breaks is taken up again where it ended."""
    total = sum(needed)
    before = sum(size for _, size in _blobs(spec)) - sum(size for _, size in _blobs(spec, ".incomplete"))
    failure: Exception | None = None
    for _ in range(TRIES):
        over = threading.Event()
        watch = threading.Thread(target=_report, args=(spec, before, total, over, say), daemon=True)
        watch.start()
        try:
            return Path(hub.snapshot_download(spec.repository, revision=commit, allow_patterns=list(PATTERNS)))
        except Exception as error:  # as above
            failure = error
        finally:
            over.set()
            watch.join()
    assert failure is not None
    raise LonghaulError(
        f"fetching {spec.repository} broke off {TRIES} times: {type(failure).__name__}: {str(failure)[:300]}",
        kept="what was fetched; it goes on from there",
        next_command="the same command, once the network is back",
        exit_code=ExitCode.INPUT,
    ) from failure


def _report(spec: FetchSpec, before: int, total: int, over: threading.Event, say: Say) -> None:
    while not over.wait(0.5):
        done = sum(size for _, size in _blobs(spec)) - before
        if total:
            say(Fetching(min(max(done, 0), total), total))


def _refuse_damage(spec: FetchSpec, folder: Path) -> None:
    """The hub names large files by the SHA-256 of their content. Those that are something else are deleted."""
    for path in sorted(folder.glob("*.safetensors")):
        blob = path.resolve()
        if not _SHA256.fullmatch(blob.name):
            continue
        with blob.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != blob.name:
            blob.unlink()
            path.unlink()
            raise _refused(f"{path.name} of {spec.repository} arrived damaged and was deleted", "the same command")


def _kept(spec: FetchSpec) -> Path | None:
    """The folder of an earlier download, if all of it is here."""
    try:
        found = hub.snapshot_download(
            spec.repository, revision=spec.revision or None, allow_patterns=list(PATTERNS), local_files_only=True
        )
    except Exception:  # as above
        return None
    return Path(found)


def _not_here(spec: FetchSpec, error: Exception) -> LonghaulError:
    name = spec.repository.partition("/")[2]
    at = f" --revision {spec.revision}" if spec.revision else ""
    what = f"{spec.repository} is not on this machine, and {_why_unasked(error)}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return _refused(what, f"unset {OFFLINE}, then the same command")
    return _refused(
        what,
        f"hf download {spec.repository}{at} --local-dir models/{name}   on a machine with a network, copy the folder "
        f"models/{name} here, then the same command with --set model.path=models/{name}",
    )


def _remember(folder: Path, revision: str, commit: str) -> None:
    """Write which commit a branch or tag had, as huggingface_hub does for downloads by such a name: without the hub,
    the name still finds the files. (huggingface_hub's documentation, "Understand caching": refs)"""
    ref = folder.parent.parent / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    write_file(ref, commit.encode())


def _why_unasked(error: Exception) -> str:
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"the hub was not asked, because {OFFLINE} is set"
    return f"the hub did not answer ({type(error).__name__})"


def _refused(what: str, next_command: str) -> LonghaulError:
    return LonghaulError(
        what, kept="everything; nothing was started", next_command=next_command, exit_code=ExitCode.INPUT
    )
