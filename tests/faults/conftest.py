"""The undisturbed run that every disturbed one is compared with; made once in each test process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.faults.harness import faults, scene
from tests.faults.invariants import Ending, check_invariants, ending
from tests.faults.table import TRIED


@dataclass(frozen=True)
class Clean:
    """How the run of `harness.KNOBS` ends, and how often each crash point is hit on the way."""

    ending: Ending
    hits: Counter[str]


@pytest.fixture(autouse=True)
def tried(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Says how many faults a test made: those that it names in `harness.faults`, or one."""
    faults.clear()
    yield
    record_property(TRIED, max(1, len(faults)))


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    folder = tmp_path_factory.mktemp("clean")
    with scene(folder / "run") as undisturbed:
        log = folder / "hits"
        master = undisturbed.start(env={"LONGHAUL_CRASHPOINT_LOG": str(log)})
        assert master.end() == 0, master.text()
        check_invariants(undisturbed)
        return Clean(ending(undisturbed), Counter(log.read_text().splitlines()))
