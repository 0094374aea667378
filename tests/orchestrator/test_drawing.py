"""Words, glyphs, tables and the arrangement of tiles: pure, so their tables are here."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from orchestrator.display.arrange import arrange
from orchestrator.display.columns import Column, fit, table
from orchestrator.display.glyphs import bar, chart, resample, sparkline
from orchestrator.display.wording import among, duration, harmless, pairs, points, size
from orchestrator.report.svg import nice_ticks


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.84, "0.8 s"), (9.97, "10 s"), (59.6, "1 m 00 s"), (185, "3 m 05 s"), (7_800, "2 h 10 m"), (273_600, "3 d 04 h"),
     (-5, "0.0 s"), (None, "?"), (float("nan"), "?")],
)  # fmt: skip
def test_durations(seconds, words) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("num_bytes", "words"), [(512, "512 B"), (999_600, "1 MB"), (48_200_000, "48 MB"), (1_900_000_000, "1.9 GB")]
)
def test_sizes(num_bytes, words) -> None:
    assert size(num_bytes) == words


@pytest.mark.parametrize(("change", "words"), [(0.517, "+52"), (-0.031, "-3"), (0.001, "±0"), (None, "")])
def test_points(change, words) -> None:
    assert points(change) == words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 'text'", "plain 'text'"),
        ("\x1b[31mred", "␛[31mred"),
        ("a\nb\tc\r", "a⏎b c␍"),
        ("\x9b2J", "�2J"),
        ("a\u202eb\u200bc", "a�b�c"),
        ("\ud800", "�"),
        ("\x7f", "␡"),
        ("ünï 漢字 ✓", "ünï 漢字 ✓"),
    ],
)
def test_text_that_could_steer_a_terminal_becomes_visible(text, shown) -> None:
    assert harmless(text) == shown


@given(st.text())
def test_no_text_keeps_a_control_character(text) -> None:
    assert harmless(text).isprintable() or all(c.isprintable() or c.isspace() for c in harmless(text))
    assert not set(harmless(text)) & set(map(chr, [*range(32), *range(127, 160)]))
    harmless(text).encode("utf-8")


@pytest.mark.parametrize(
    ("given", "wanted", "shown"),
    [
        ("'uv'", "'vu'", [("'uv'", "'vu'")]),
        ("'a'\n'b'", "'x'\n'y'", [("'a'", "'x'"), ("'b'", "'y'")]),
        ("'a'\n'b'", "'x'", [("'a'⏎'b'", "'x'")]),
    ],
)
def test_an_induction_task_has_a_pair_on_each_line(given, wanted, shown) -> None:
    assert pairs(given, wanted) == shown


@pytest.mark.parametrize(
    ("runs", "text", "told"),
    [
        ("runs", "python -m orchestrator run", "python -m orchestrator run"),
        ("./runs", "python -m orchestrator run", "python -m orchestrator run"),
        ("/a", "python -m orchestrator status --run x", "python -m orchestrator status --runs /a --run x"),
        ("my runs", "then: python -m orchestrator run", "then: python -m orchestrator run --runs 'my runs'"),
        ("/a", "python -m orchestrator data --help", "python -m orchestrator data --help"),
        ("/a", "tail -n 40 worker.log", "tail -n 40 worker.log"),
    ],
)
def test_commands_that_are_told_name_the_folder_of_all_runs_where_it_is_another(
    runs: str, text: str, told: str
) -> None:
    assert among(Path(runs), text) == told


def test_a_sparkline_grows_from_the_lowest_to_the_highest_block() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"


def test_equal_values_are_flat_even_where_their_means_differ_in_the_last_bit() -> None:
    assert set(sparkline([0.95] * 100, 7)) == {"▁"}


@given(st.lists(st.floats(-1e6, 1e6)), st.integers(0, 50))
def test_a_sparkline_has_exactly_its_width(values, width) -> None:
    assert len(sparkline(values, width)) == width


@given(st.lists(st.floats(0, 1), min_size=1), st.integers(1, 30))
def test_resampling_keeps_the_range(values, width) -> None:
    thinned = resample(values, width)
    assert len(thinned) == min(width, len(values))
    assert min(values) - 1e-9 <= min(thinned) and max(thinned) <= max(values) + 1e-9


@pytest.mark.parametrize(("share", "done"), [(0, ""), (0.5, "━━"), (0.6, "━━╸"), (1, "━━━━"), (7, "━━━━"), (-1, "")])
def test_a_bar_is_full_at_one(share, done) -> None:
    assert bar(share, 4) == (done, "─" * (4 - len(done)))


def test_a_chart_draws_a_rising_line_from_corner_to_corner() -> None:
    cells = chart([[(0, 0.0), (10, 1.0)]], 4, 2, (0, 10), (0.0, 1.0))
    assert [[who for _, who in row] for row in cells] == [[-1, -1, 0, 0], [0, 0, -1, -1]]


@given(st.integers(20, 300), st.integers(3, 120))
def test_tiles_cover_the_terminal_exactly(width, height) -> None:
    bands = arrange(width, height)
    for band in bands:
        stacks = [sum(place.height for place in column) for column in band.columns]
        assert len(set(stacks)) == 1
        assert sum(column[0].width for column in band.columns) == width
        assert all(place.width == column[0].width for column in band.columns for place in column)
        assert all(place.height > 0 for column in band.columns for place in column)
    assert sum(sum(place.height for place in band.columns[0]) for band in bands) == height


def columns() -> list[Column[str]]:
    return [
        Column("name", 5, lambda row, _width: Text(row)),
        Column("rare", 9, lambda _row, _width: Text("x"), rank=2),
        Column("spark", 4, lambda _row, width: Text("#" * width), rank=1, flex=True),
    ]


@pytest.mark.parametrize(
    ("width", "kept"),
    [(30, [("name", 5), ("rare", 9), ("spark", 14)]), (15, [("name", 5), ("spark", 9)]), (6, [("name", 5)])],
)
def test_a_narrow_table_loses_its_least_important_columns(width, kept) -> None:
    assert [(column.title, column.width) for column in fit(columns(), width)] == kept


def test_cells_are_cut_to_their_column() -> None:
    assert table(columns(), ["a long name"], 15)[1].plain == "a lon #########"


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.25, 0.5, 0.75, 1]), (3, 3, [3, 3.25, 3.5, 3.75, 4]), (0, 1200, [0, 500, 1000, 1500])],
)
def test_axes_have_round_numbers(low, high, ticks) -> None:
    assert nice_ticks(low, high) == ticks


@pytest.mark.parametrize(
    ("low", "high"), [(1e17, 1e17), (-1.7e308, 1.7e308), (1.7e308, 1.7e308), (0.0, math.inf), (math.nan, 1.0)]
)
def test_the_largest_numbers_have_axes_too(low, high) -> None:
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 10 and all(math.isfinite(tick) for tick in ticks) and ticks[0] < ticks[-1]
