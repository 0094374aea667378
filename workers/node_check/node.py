"""What one node has: versions, GPUs and their health, the model's files, disk, and the way to the code server."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from profiles.errors import LonghaulError
from profiles.hub_model import directory_of
from profiles.schema import Profile
from profiles.verl import OWN_SERVER
from profiles.worker_kinds import worker_kind_of
from state.weights import model_fault
from workers.memory.cards import card_of
from workers.node_contract import MARKER, Gpu, NodeFacts

PACKAGES = ("torch", "transformers", "longhaul", "ray", "verl", "vllm")
NCCL = "nvidia-nccl-"
"""Beginning of the package of NCCL, whose name ends with the version of CUDA."""
QUERY = "index,uuid,pci.bus_id,name,memory.total,memory.used,driver_version,ecc.errors.uncorrected.volatile.total"
COMMAND_S = 30.0
XID = "NVRM: Xid"
PROGRAM_S = 5.0


def examine(facts: NodeFacts, place: Path, token: str) -> None:
    """Fill in what does not need the profile. place: the check's directory, which this node may lack."""
    facts.versions = versions()
    facts.gpus, facts.gpu_error = gpus()
    facts.xids = xids()
    facts.directory_error = directory_error(place, token)
    if facts.directory_error:
        return
    facts.write_error = write_error(place / f"written-{facts.host}")
    facts.free_bytes = shutil.disk_usage(place).free


def examine_for(profile: Profile, facts: NodeFacts, environment: Mapping[str, str]) -> None:
    """Fill in what this profile needs of a node."""
    facts.cards = [card_of(place, environment) for place in range(profile.run.gpus)]
    facts.model_fault = fault_of_model(profile)
    facts.server_fault = fault_of_server(profile.verl.code_server)


def versions() -> dict[str, str]:
    """Of Python, and of each package that is installed. Nothing is imported."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    for one in metadata.distributions():
        if (name := one.metadata["Name"] or "").startswith(NCCL):
            found["nccl"] = one.version
    return found


def gpus() -> tuple[list[Gpu], str]:
    """The GPUs that the driver shows this process, and why there are none."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except FileNotFoundError:
        return [], "no nvidia-smi"
    except (OSError, subprocess.SubprocessError) as error:
        return [], f"nvidia-smi failed: {error}"
    if answer.returncode:
        said = (answer.stdout + answer.stderr).strip().splitlines()
        return [], f"nvidia-smi failed: {said[0] if said else answer.returncode}"
    return parsed(answer.stdout), ""


def parsed(text: str) -> list[Gpu]:
    """(pure) The lines of QUERY; a figure that the driver does not know counts as none."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(QUERY.split(",")):
            index, uuid, pci, name, total, used, driver, ecc = parts
            found.append(Gpu(index, uuid, pci, name, _number(total, 0), _number(used, 0), driver, _number(ecc, -1)))
    return found


def _number(text: str, unknown: int) -> int:
    return int(text) if text.isdigit() else unknown


def xids() -> list[str]:
    """The last faults of GPUs in the kernel's log; none where it may not be read."""
    try:
        said = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=COMMAND_S, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip()[:200] for line in said.splitlines() if XID in line][-3:]


def directory_error(place: Path, token: str) -> str:
    """Why this is not the directory that the master wrote to; empty if it is."""
    try:
        found = (place / MARKER).read_text()
    except FileNotFoundError:
        return "is not there" if not place.is_dir() else "is another one: the master's file is not in it"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if found == token else "is another one: the master's file has other contents"


def write_error(path: Path) -> str:
    try:
        with path.open("wb") as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def fault_of_model(profile: Profile) -> str:
    """The first bad file of the profile's model, and why; empty if there is none or no model is read."""
    if not worker_kind_of(profile).uses_model or profile.model.random_init != "off":
        return ""
    return " ".join(model_fault(directory_of(profile.model))).strip()


def fault_of_server(url: str) -> str:
    """Why the code server of that URL does not judge programs, as this node sees it. Empty if it does, and if the
    worker starts its own."""
    if url in ("", OWN_SERVER):
        return ""
    from workers.verl.code_server import check

    try:
        check(url, PROGRAM_S)
    except LonghaulError as error:
        return error.what
    return ""
