"""How much memory there is, in a container too."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from orchestrator import ram
from orchestrator.ram import Group, left_in, ram_available, ram_total

GIB = 1 << 30


def group(folder: Path, limit: str, used: int, cached: int | None) -> Group:
    """Of a control group in `folder`."""
    (folder / "max").write_text(f"{limit}\n")
    (folder / "current").write_text(f"{used}\n")
    if cached is not None:
        (folder / "stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 7\n")
    return Group(folder / "max", folder / "current", folder / "stat", "inactive_file")


@pytest.mark.parametrize(
    ("limit", "used", "cached", "expected"),
    [
        pytest.param(str(4 * GIB), 3 * GIB, 0, GIB, id="what is below the limit"),
        pytest.param(str(4 * GIB), 3 * GIB, 2 * GIB, 3 * GIB, id="cached files make room"),
        pytest.param(str(4 * GIB), 3 * GIB, None, GIB, id="not told what is cached"),
        pytest.param(str(4 * GIB), 5 * GIB, 0, 0, id="over the limit"),
        pytest.param("max", 3 * GIB, 0, None, id="no limit"),
    ],
)
def test_what_a_control_group_has_left(
    tmp_path: Path, limit: str, used: int, cached: int | None, expected: int | None
) -> None:
    assert left_in(group(tmp_path, limit, used, cached)) == expected


def test_the_machine_or_the_group_whichever_has_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "GROUPS", (group(tmp_path, str(1 << 20), 0, 0),))
    assert (ram_total(), ram_available()) == (1 << 20, 1 << 20)
    monkeypatch.setattr(ram, "GROUPS", (group(tmp_path, str(1 << 60), 0, 0),))
    assert ram_total() == psutil.virtual_memory().total and 0 < ram_available() < ram_total()
