"""Identity of a base model: which files an adapter was trained on."""

from __future__ import annotations

import hashlib
from pathlib import Path

from workers.models.file_hashes import sha256_of


def base_sha256(directory: Path) -> str:
    """Hash of weights, config and tokenizer."""
    found = hashlib.sha256()
    for path in sorted([*directory.glob("*.safetensors"), directory / "config.json", directory / "tokenizer.json"]):
        found.update(f"{path.name} {sha256_of(path)}\n".encode())
    return found.hexdigest()
