"""Pages of the dashboard: what keys open, scroll, search and close, and what is left for the run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.display.browse import Browser, Entry, Page


def content(name: str, term: str) -> Sequence[Entry]:
    lines = [f"{name} {number}" for number in range(100)]
    return [Entry((line,)) for line in lines if term in line]


def page_of(browser: Browser) -> Page:
    page = browser.page(content)
    assert page is not None
    return page


def browser(*keys: str, total: int = 100, room: int = 10, asks_to_leave: bool = False) -> Browser:
    made = Browser(asks_to_leave=asks_to_leave)
    for key in keys:
        made.extent = (total, room)
        made.press([key])
    return made


@pytest.mark.parametrize(("key", "name"), [("?", "explain"), ("e", "events"), ("s", "samples"), ("m", "metrics")])
def test_a_key_opens_its_page_and_closes_it(key: str, name: str) -> None:
    assert browser(key).name == name
    assert browser(key, key).name == browser(key, "q").name == browser(key, "escape").name == ""


def test_a_page_leads_to_another() -> None:
    assert browser("e", "m").name == "metrics"


@pytest.mark.parametrize(
    ("keys", "down"),
    [
        (("m",), 0),
        pytest.param(("m", "down", "j"), 2, id="by lines"),
        pytest.param(("m", "page-down", " ", "up"), 17, id="by screens, with a line in common"),
        pytest.param(("m", "end", "down", "down"), 90, id="not beyond the end"),
        pytest.param(("m", "G", "g", "up"), 0, id="nor the beginning"),
        pytest.param(("e",), -1, id="events open at the newest"),
        pytest.param(("e", "up"), 89, id="and go back from there"),
        pytest.param(("e", "up", "end"), -1, id="at the end they follow what is new"),
    ],
)
def test_pages_scroll(keys: tuple[str, ...], down: int) -> None:
    assert page_of(browser(*keys)).down == down


def test_a_search_narrows_the_page_while_it_is_typed_and_escape_ends_it() -> None:
    made = browser("m", "/", "9")
    assert page_of(made).keys == "search: 9▏" and len(page_of(made).entries) == 19
    made.press(["8", "backspace", "7", "enter"])
    assert page_of(made).title == "metrics with '97'" and len(page_of(made).entries) == 1
    made.press(["escape"])
    assert len(page_of(made).entries) == 100
    assert page_of(browser("m", "/", "z", "enter")).entries == (Entry(("nothing found",), "dim"),)


def test_letters_of_a_search_steer_nothing() -> None:
    made = browser("e", "/")
    assert made.press(["p", "v", "q", "+"]) == []
    assert made.term == "pvq+"
    assert made.press(["ctrl-x"]) == ["ctrl-x"]


def test_keys_for_the_run_work_on_a_page_too() -> None:
    assert browser("e").press(["p"]) == ["p"]
    assert browser().press(["+", "+"]) == ["+", "+"]


def test_q_asks_and_only_its_answers_leave_or_stop() -> None:
    asked = browser("q", asks_to_leave=True)
    assert [entry.lines[0][0] for entry in page_of(asked).entries] == ["l", "s", "a"]
    assert browser("q", asks_to_leave=True).press(["l"]) == ["leave"]
    assert browser("q", asks_to_leave=True).press(["s"]) == ["stop"]
    assert browser("q", asks_to_leave=True).press(["p"]) == [], "any other key only closes the question"
    assert browser("e", "q", asks_to_leave=True).name == "", "on a page it goes back"
    assert browser().press(["q"]) == ["q"], "`top` leaves at once"


@given(
    st.lists(st.sampled_from(["?", "e", "s", "m", "/", "q", "up", "down", "end", "home", " ", "b", "x", "enter", "l"]))
)
def test_no_keys_scroll_out_of_the_page(keys: list[str]) -> None:
    made = browser(*keys, asks_to_leave=True)
    assert -1 <= made.down <= 90
