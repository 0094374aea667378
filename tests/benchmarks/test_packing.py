"""`python -m benchmarks packing`: a packed row takes less memory than its mask."""

from __future__ import annotations

import re

import pytest

from benchmarks import packing


def test_a_row_is_packed_and_its_mask_made_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert packing.main(["--small"]) == 0
    found = re.findall(r"^ +([\d,]+) +[\d.]+, ([\d.]+) +[\d.]+, ([\d.]+) +[\d.]+, ([\d.]+)$",
                       capsys.readouterr().out, re.MULTILINE)  # fmt: skip
    assert [tokens for tokens, *_ in found] == ["107"]
