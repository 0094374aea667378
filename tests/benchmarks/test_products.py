"""`python -m benchmarks products` measures correct products only."""

from __future__ import annotations

import pytest

from benchmarks import products


def test_without_a_gpu_it_times_the_plain_operations_and_their_error_is_rounding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert products.main(["--shape", "qwen2-tiny", "--layers", "2", "--rows", "3", "9"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()[:1] in ("3", "9")]
    assert [row[0] for row in rows] == ["3", "9"]
    for row in rows:
        assert float(row[-1]) < 1e-6
        assert all(float(cell) > 0 for cell in row[1:9])
