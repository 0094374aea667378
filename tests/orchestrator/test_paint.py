"""Lines are painted as rich paints them, of an exact width."""

from __future__ import annotations

import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from orchestrator.display.paint import Painter

STYLES = st.sampled_from(["", "dim", "bold", "#2fae71", "bold #f0902a"])
TEXTS = st.text(st.sampled_from("ab ━▁語é"), max_size=12)
CONSOLE = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80)


@st.composite
def lines(draw: st.DrawFn) -> Text:
    """As tiles make them: parts appended, some of them with parts of their own."""
    line = Text(draw(TEXTS), draw(STYLES))
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            line.append(draw(TEXTS), draw(STYLES))
        else:
            line.append_text(Text(draw(TEXTS), draw(STYLES)).append(draw(TEXTS), draw(STYLES)))
    return line


def characters(ansi: str) -> list[tuple[str, frozenset[str]]]:
    """Each character with the codes that it is shown with."""
    shown, codes = [], set[str]()
    for code, character in re.findall(r"\x1b\[([\d;]*)m|(.)", ansi):
        if character:
            shown.append((character, frozenset(codes)))
        elif code in ("", "0"):
            codes = set()
        else:
            codes |= {re.sub("38;2;", "rgb ", code)} if "38;2" in code and ";" in code[:2] else {code}
    return shown


def by_rich(line: Text, width: int) -> str:
    whole = Text(end="").append_text(line)
    segments = Segment.adjust_line_length(list(whole.render(CONSOLE)), width, style=Style.null())
    return "".join(
        (segment.style or Style.null()).render(segment.text, color_system=ColorSystem.TRUECOLOR) for segment in segments
    )


@given(lines(), st.integers(1, 60))
def test_it_looks_as_rich_draws_it_and_has_the_width(line: Text, width: int) -> None:
    painted = Painter(CONSOLE, ColorSystem.TRUECOLOR).paint(line.copy(), width)
    assert characters(painted) == characters(by_rich(line, width))
    assert cell_len(re.sub(r"\x1b\[[\d;]*m", "", painted)) == width


def test_a_terminal_without_colours_gets_none() -> None:
    assert Painter(CONSOLE, None).paint(Text("abc", "bold #2fae71"), 5) == "abc  "
