"""docs/reliability.md names each kind of fault, and each kind has tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.faults.table import ROWS, Case, Row, cases_of, line

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
    assert (
        line(Row("kill", "a line", "nothing", "test_a::"), cases) == "| kill | 8 | 7 | a line | nothing | `test_a` |\n"
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault)
def test_each_kind_of_fault_has_tests_and_stands_on_the_page(row: Row) -> None:
    names = [
        f"{path.stem}::{name}"
        for path in (REPOSITORY / "tests/faults").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
    assert any(re.search(row.tests, name) for name in names)
    assert f"| {row.fault} |" in (REPOSITORY / "docs/reliability.md").read_text()
