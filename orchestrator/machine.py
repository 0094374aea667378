"""Finds this machine's GPUs through the driver. Does not import torch, which would take seconds."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.footprint import GIB
from workers.contract import BY_BUS

COMMAND = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,memory.total,memory.used,compute_cap",
    "--format=csv,noheader,nounits",
)
TIMEOUT_S = 20.0
RESERVE_BYTES = int(0.3 * GIB)
"""Memory of a card that the driver withholds from programs."""
DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg", "/dev/kfd")
"""Signs of a GPU where `nvidia-smi` is missing. Without any of them, there is certainly no GPU."""
INDEX = re.compile(r"|-?[0-9]+")
"""A part of CUDA_VISIBLE_DEVICES that is a card's index, or means no card (`-1` or empty)."""


@dataclass(frozen=True)
class Card:
    """A GPU visible to workers."""

    name: str
    total_bytes: int
    used_bytes: int = 0
    """Used by other programs, such as a display or another run."""
    capability: tuple[int, int] | None = None
    """Compute capability; None if not reported."""

    @property
    def usable_bytes(self) -> int:
        return max(0, self.total_bytes - max(RESERVE_BYTES, self.used_bytes))


@dataclass(frozen=True)
class Machine:
    """cards: None if unknown, in which case the worker finds out. why: why there is no card."""

    cards: tuple[Card, ...] | None
    why: str = ""
    has_vllm: bool = False

    @property
    def card(self) -> Card | None:
        """The first card, which a worker uses."""
        return self.cards[0] if self.cards else None

    def card_for(self, gpus: int) -> Card | None:
        """Of the first `gpus` cards, the one with the least usable memory."""
        return min(self.cards[:gpus], key=lambda card: card.usable_bytes) if self.cards else None

    def lacks(self, gpus: int) -> bool:
        """Whether the machine is known to have fewer GPUs."""
        return self.cards is not None and len(self.cards) < gpus

    @property
    def has_no_gpu(self) -> bool:
        return self.cards == ()


def this_machine() -> Machine:
    """Ask the driver, which normally takes less than a second."""
    has_vllm = importlib.util.find_spec("vllm") is not None
    cards, why = _cards()
    return Machine(cards, why, has_vllm)


def _cards() -> tuple[tuple[Card, ...] | None, str]:
    try:
        answer = subprocess.run(COMMAND, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        return (None if any(Path(path).exists() for path in DEVICES) else ()), "nvidia-smi is not installed"
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"nvidia-smi failed: {error}"
    if answer.returncode:
        printed = (answer.stdout + answer.stderr).strip().splitlines()
        return (), f"nvidia-smi failed: {printed[0] if printed else f'exit code {answer.returncode}'}"
    found = visible(parse(answer.stdout), os.environ)
    if found is None:
        return None, "nvidia-smi cannot tell which card CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER put first"
    return found, "" if found else "CUDA_VISIBLE_DEVICES hides every GPU that nvidia-smi lists"


def parse(text: str) -> list[tuple[str, str, Card]]:
    """Index, uuid and card of each line of `nvidia-smi`. Unknown values count as zero. (pure)"""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) >= 5 and parts[3].isdigit():
            used = int(parts[4]) if parts[4].isdigit() else 0
            major, _, minor = "".join(parts[5:6]).partition(".")
            capability = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
            found.append((parts[0], parts[1], Card(parts[2], int(parts[3]) << 20, used << 20, capability)))
    return found


def visible(listed: Sequence[tuple[str, str, Card]], environment: Mapping[str, str]) -> tuple[Card, ...] | None:
    """The cards visible to a child process, in order, according to CUDA_VISIBLE_DEVICES (indices or uuids). (pure)

    None if that cannot be determined: for an unlisted name such as a MIG slice, or for an index among several cards if
    CUDA_DEVICE_ORDER changes their order.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    words = [index for index, _, _ in listed] if chosen is None else [part.strip() for part in chosen.split(",")]
    is_by_bus = environment.get("CUDA_DEVICE_ORDER", BY_BUS) == BY_BUS or len(listed) < 2
    found: list[Card] = []
    for word in words:
        matches = [(index, card) for index, uuid, card in listed if word == index or (word and uuid.startswith(word))]
        if not matches and INDEX.fullmatch(word):  # CUDA, too, stops at the first invalid index
            break
        if not matches or (word == matches[0][0] and not is_by_bus):
            return None
        found.append(matches[0][1])
    return tuple(found)
