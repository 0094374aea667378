"""The undisturbed run that every disturbed one is compared with; made once in each test process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from tests.faults.harness import scene
from tests.faults.invariants import Ending, check_invariants, ending


@dataclass(frozen=True)
class Clean:
    """How the run of `harness.KNOBS` ends, and how often each crash point is hit on the way."""

    ending: Ending
    hits: Counter[str]


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    folder = tmp_path_factory.mktemp("clean")
    with scene(folder / "run") as undisturbed:
        log = folder / "hits"
        master = undisturbed.start(env={"LONGHAUL_CRASHPOINT_LOG": str(log)})
        assert master.end() == 0, master.text()
        check_invariants(undisturbed)
        return Clean(ending(undisturbed), Counter(log.read_text().splitlines()))
