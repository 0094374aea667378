"""`python -m benchmarks attention` measures correct results only."""

from __future__ import annotations

import re

import pytest

from benchmarks import attention


def test_each_case_is_timed_and_compared_with_float64(capsys: pytest.CaptureFixture[str]) -> None:
    assert attention.main([]) == 0
    found = re.findall(r"^(.+?) +(\d+) +[\d,]+ / [\d,]+ +[\d,]+ / [\d,]+ +[\d,]+ / [\d,]+ +(\S+)$",
                       capsys.readouterr().out, re.MULTILINE)  # fmt: skip
    assert [name for name, *_ in found] in (
        [case.name for case in attention.CASES],
        [case.name for case in attention.SMALL],
    )
    assert all(0 < float(error) < 0.02 for *_, error in found)
