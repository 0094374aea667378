"""Writes requirements.lock: what `make setup` installed here, exact, with the sha256 of the files that Linux may take.

    .venv/bin/python scripts/lock.py > requirements.lock

`make setup LOCKED=1` then installs these and refuses any other file. PyTorch is left out: each machine has a build of
its own (+cpu, +cu...), which the lock of one machine would refuse on another.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import urllib.request
from collections.abc import Iterable

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

INDEX = "https://pypi.org/simple"
EXTRAS = frozenset({"dev"})
"""Of Longhaul, as scripts/setup.sh installs them."""
LEFT_OUT = frozenset({"torch", "longhaul"})
FITS = re.compile(r"-(py3|py2\.py3|cp311)-(none|cp311|abi3)-(any|.*linux.*)\.whl$|-cp3\d+-abi3-.*linux.*\.whl$")
BUILD = ("setuptools", "pip")
"""Also locked: they install Longhaul itself."""


def closure() -> dict[str, str]:
    """Name -> version of everything that Longhaul needs here, PyTorch and what only it needs left out."""
    found: dict[str, str] = {}
    waiting: list[tuple[str, frozenset[str]]] = [("longhaul", EXTRAS), *((name, frozenset[str]()) for name in BUILD)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name == "torch":
            continue
        about = importlib.metadata.distribution(name)
        if name not in LEFT_OUT:
            found[canonicalize_name(name)] = about.version
        waiting += ((needed.name, frozenset(needed.extras)) for needed in needs(about.requires or (), extras))
    return found


def needs(requires: Iterable[str], extras: frozenset[str]) -> list[Requirement]:
    """The requirements that hold for this Python and these extras."""
    parsed = map(Requirement, requires)
    return [
        one
        for one in parsed
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def hashes(name: str, version: str) -> list[str]:
    """sha256 of the version's wheels for this Python on Linux, or of its sources where it has none, by the index."""
    request = urllib.request.Request(f"{INDEX}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    mine = [one for one in files if re.search(rf"-{re.escape(version)}(-.*\.whl|\.tar\.gz|\.zip)$", one["filename"])]
    wheels = [one for one in mine if FITS.search(one["filename"])]
    return sorted({one["hashes"]["sha256"] for one in wheels or mine})


def main() -> int:
    print("# Made by scripts/lock.py from an environment with Python 3.11. PyTorch is pinned in constraints.txt.")
    for name, version in sorted(closure().items()):
        if not (known := hashes(name, version)):
            print(f"error: the index has no files of {name} {version}", file=sys.stderr)
            return 1
        print(f"{name}=={version} \\")
        print(" \\\n".join(f"    --hash=sha256:{one}" for one in known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
