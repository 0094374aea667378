"""What counts as growth in a run of very many cycles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.soak import Sample, cpu_ms, growing, table

FLAT = [Sample(1000 * n + 65, 600.0 * n, 22.0 * n, 60 << 20, 30, 3, 1_000_000 * n, 900) for n in range(6)]


def changed(**last: float) -> list[Sample]:
    return [*FLAT[:-1], replace(FLAT[-1], **last)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param(FLAT, [], id="the store alone"),
        pytest.param(changed(memory_bytes=70 << 20), ["memory_bytes"], id="memory"),
        pytest.param(changed(descriptors=40), ["descriptors"], id="descriptors"),
        pytest.param(changed(threads=9), ["threads"], id="threads"),
        pytest.param(changed(entries=8000), ["entries"], id="directory entries"),
        pytest.param(changed(cpu_s=22.0 * 4 + 40.0), ["cpu_ms"], id="CPU per cycle"),
        pytest.param(FLAT[:3], [], id="too few to say"),
        pytest.param([*FLAT, *FLAT[1:], changed(entries=8000)[-1]], [], id="one sample amid a clean-up"),
    ],
)
def test_what_grows(samples: list[Sample], expected: list[str]) -> None:
    assert [line.split()[0] for line in growing(samples)] == expected


def test_cpu_is_counted_for_each_cycle_of_a_window() -> None:
    assert cpu_ms(FLAT[0], FLAT[1]) == pytest.approx(22.0)
    assert "22.0" in table(FLAT)
