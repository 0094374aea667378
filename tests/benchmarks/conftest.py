"""The tiny model that contenders of `benchmarks.grpo` read, and a process that is left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.contenders import workload


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    workload.write_model("tiny", directory)
    return directory


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """A contender sets up the process that it has for itself."""
    was = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(was)
