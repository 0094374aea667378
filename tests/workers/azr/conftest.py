"""What tests of self-play ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workers.sandbox import Limits, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """For whole attempts in this process, which set torch up: afterwards it is as it was."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with Sandbox(Limits(allow_weak=True), jobs=1) as box:
        yield box
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
