"""What each node tells `doctor --cluster`: its facts, and the lines in which they travel. Does not import torch.

The facts go to standard output, because a node without the shared directory has to be heard too. A scheduler may break
a line of more than a kibibyte among those of other nodes, so a report is cut into short numbered lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

MARK = "NODE"
PIECE = 700
"""Characters of a report in one line."""
EXCLUSIVE_FILES = 100
"""Files that all nodes try to create, of which one node may win each."""
MARKER = "marker"
"""File that the master writes before the job, with the check's token in it."""
SHARED = "shared"
"""Folder of the check's directory for what the nodes write there together."""


class Gpu(Struct, frozen=True):
    """A GPU as the driver lists it. ecc: uncorrected errors since the start of the machine; -1: not counted."""

    index: str
    uuid: str
    pci: str
    name: str
    total_mb: int
    used_mb: int
    driver: str
    ecc: int = -1


class Pong(Struct, frozen=True):
    """An answer by one file to another, measured by the host that asked. ahead_s: that host's clock against ours, less
    half of the round trip."""

    host: int
    round_trip_s: float
    ahead_s: float


class RankFacts(Struct, frozen=True):
    """One rank of the all-reduce. Speeds are GB/s; 0: not measured.

    wrong: elements of the sum that were wrong. reduce: of the all-reduce. inside, between: the best exchange with a
    neighbour on the same host, and on another.
    """

    rank: int
    wrong: int
    reduce: float
    inside: float = 0.0
    between: float = 0.0


class NodeFacts(Struct, omit_defaults=True):
    """What is known of one node; each report of a node replaces its earlier one."""

    host: int
    node: str
    nodes: str = ""
    """Of the whole job, in Slurm's short form; empty: there is no scheduler."""
    stage: str = "started"
    """What it did last: started, files, node, ranks, done."""
    versions: dict[str, str] = {}
    gpus: list[Gpu] = []
    gpu_error: str = ""
    cards: list[str] = []
    """Index or UUID of the GPU that each rank of this host is given."""
    xids: list[str] = []
    """Faults of GPUs in the kernel's log, where it may be read."""
    directory_error: str = ""
    """Why the run's directory cannot be read here, or is another one."""
    write_error: str = ""
    free_bytes: int = -1
    model_fault: str = ""
    server_fault: str = ""
    present: list[int] = []
    """Hosts whose files this one has seen."""
    pongs: list[Pong] = []
    reads: int = 0
    """Of a file that another host replaced again and again."""
    torn: int = 0
    """Of those, how many found no file, or parts of two."""
    won: list[int] = []
    """Files that this host created exclusively."""
    locks: dict[str, str] = {}
    """Kind of lock -> `excluded`, `granted` although another host held it, or the system's error."""
    ranks: list[RankFacts] = []
    """Told by host 0 for all."""


def lines_of(facts: NodeFacts, number: int) -> Iterator[str]:
    """A report as lines. number: counts the reports of this node, from 1."""
    text = json.dumps(msgspec.to_builtins(facts))
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    for at, piece in enumerate(pieces):
        yield f"{MARK} {facts.host} {number} {at} {len(pieces)} {piece}"


def reports_in(lines: Iterable[str]) -> dict[int, NodeFacts]:
    """Host -> its newest whole report. Other lines, and reports with a line missing, are passed over."""
    pieces: dict[tuple[int, int], dict[int, str]] = {}
    sizes: dict[tuple[int, int], int] = {}
    for line in lines:
        words = line.rstrip("\n").split(" ", 5)
        if len(words) != 6 or words[0] != MARK or not all(word.isdigit() for word in words[1:5]):
            continue
        host, number, at, size = map(int, words[1:5])
        pieces.setdefault((host, number), {})[at] = words[5]
        sizes[host, number] = size
    found: dict[int, NodeFacts] = {}
    for (host, number), parts in sorted(pieces.items()):
        if len(parts) == sizes[host, number]:
            with suppress(msgspec.MsgspecError):
                found[host] = msgspec.json.decode("".join(parts[at] for at in sorted(parts)), type=NodeFacts)
    return found
