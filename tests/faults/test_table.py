"""docs/reliability.md names each kind of fault, and each kind has tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.faults.table import ROWS, Case, Row, cases_of, line, newer

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.faults.test_a" name="test_x[1]">
  <properties><property name="tried" value="7"/></properties>
</testcase>
<testcase classname="tests.faults.test_a" name="test_x[2]"><failure message="no"/></testcase>
<testcase classname="tests.faults.test_a" name="test_x[3]"><skipped message="no strace"/></testcase>
</testsuite></testsuites>"""


def test_results_are_read_without_those_that_were_skipped(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    assert cases_of(tmp_path / "junit.xml") == [Case("test_a::test_x[1]", 7, True), Case("test_a::test_x[2]", 1, False)]


def test_a_fault_that_was_not_survived_is_counted() -> None:
    cases = [Case("test_a::test_x[1]", 7, True), Case("test_a::test_x[2]", 1, False), Case("test_b::test_y", 1, True)]
    row = Row("kill", "a line", "nothing", "test_a::")
    assert line(row, cases, "2026-01-02") == "| kill | 8 | 7 | a line | nothing | `test_a` | 2026-01-02 |"


@pytest.mark.parametrize(
    ("now", "before", "is_now"),
    [
        pytest.param((9, 9), (8, 8), True, id="the run that tried more"),
        pytest.param((8, 8), (1_200, 1_200), False, id="not one that tried less"),
        pytest.param((8, 7), (1_200, 1_200), True, id="but the one in which something was lost"),
        pytest.param((8, 8), None, True, id="the first"),
    ],
)
def test_which_run_a_row_shows(now: tuple[int, int], before: tuple[int, int] | None, is_now: bool) -> None:
    first, second = (
        one and f"| kill | {one[0]:,} | {one[1]:,} | sees | lost | `test_a` | when |" for one in (now, before)
    )
    assert newer(first or "", second or "") == (first if is_now else second)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault)
def test_each_kind_of_fault_has_tests_and_stands_on_the_page(row: Row) -> None:
    names = [
        f"{path.stem}::{name}"
        for path in (REPOSITORY / "tests/faults").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
    function, _, _ = row.tests.partition(r".*\[")  # of parameters the files say nothing
    assert any(re.search(function, name) for name in names)
    assert f"| {row.fault} |" in (REPOSITORY / "docs/reliability.md").read_text()
