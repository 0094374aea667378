"""What tests of self-play ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workers.sandbox import Limits, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """For whole attempts in this process, which set torch up: afterwards it is as it was."""
    from tests.workers.torch_settings import torch_as_it_was

    with torch_as_it_was(), Sandbox(Limits(allow_weak=True), jobs=1) as box:
        yield box
