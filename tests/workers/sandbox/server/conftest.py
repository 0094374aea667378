"""One server for the tests that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.sandbox.server.served import Served, served

pytest.importorskip("starlette", reason='the extra is not installed: pip install "longhaul[server]"')


@pytest.fixture(scope="package")
def server() -> Iterator[Served]:
    with served("--jobs", "2") as found:
        yield found
