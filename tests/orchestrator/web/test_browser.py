"""The page in a real Chromium: what a person sees at 390 and 1,400 pixels, reads by keyboard, and never runs.

LONGHAUL_PICTURES=DIR keeps the screenshots, to be looked at.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from state.layout import RunDir, web_token
from tests import browser
from tests.browser import Browser
from tests.builders import build_store
from tests.orchestrator.web.served import HOSTILE, Served, hostile_example, rollouts, served

pytestmark = pytest.mark.skipif(browser.program() is None, reason=browser.MISSING)

VIEWS = ("overview", "curves", "tasks", "rollouts", "events", "cycles", "compare")
SHOWN = {
    "overview": "document.querySelectorAll('.sentences li').length > 3 && document.querySelector('.plot path.line')",
    "curves": "document.querySelectorAll('.plot path.line').length > 8",
    "tasks": "document.querySelectorAll('article.task pre').length > 5",
    "rollouts": "document.querySelectorAll('article.pane').length === 2",
    "events": "document.querySelectorAll('.event').length > 3",
    "cycles": "document.querySelectorAll('tbody tr').length > 3",
    "compare": "document.querySelectorAll('tbody tr').length > 5 && document.querySelector('.plot path.line')",
}
"""What is there once a view is drawn."""
ENTERED = "['night', 'day'].includes(document.querySelector('h1')?.textContent)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run = build_store(folder / "night", cycles=6, steps=240)
    build_store(folder / "day", cycles=4, steps=80)
    hostile_example(run)
    rollouts(
        run, 6, 240,
        [{"text": f"{HOSTILE} so \\boxed{{42}}", "reward": 1.0, "is_correct": True}, {"text": HOSTILE, "reward": 0.0}],
        prompt=HOSTILE,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def page(runs: Path) -> Iterator[Served]:
    with served(runs) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.started() as found:
        yield found


@pytest.fixture
def seen(chromium: Browser, page: Served) -> Browser:
    """The page, entered by its link, on a desktop in light colours."""
    chromium.offline(False)
    chromium.size(1400, 900)
    chromium.scheme("light")
    chromium.events.clear()
    chromium.open("about:blank")
    chromium.open(page.url)
    chromium.wait(ENTERED)
    return chromium


def look(chromium: Browser, page: Served, view: str, run: str = "night") -> None:
    chromium.open(f"{page.base}/#/{run}/{view}")
    chromium.wait(f"document.querySelector('h1')?.textContent === {json.dumps(run)} && {SHOWN[view]}")


def change(run: RunDir, sql: str, *given: object) -> None:
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute(sql, given)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1400, 900)])
def test_every_view_fits_the_screen_and_draws_without_an_error(
    seen: Browser, page: Served, tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    seen.size(width, height, scale=2 if width < 500 else 1, phone=width < 500)
    seen.scheme(scheme)
    folder = Path(os.environ.get("LONGHAUL_PICTURES") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    for view in VIEWS:
        look(seen, page, view)
        assert seen.run("document.documentElement.scrollWidth <= innerWidth && innerWidth") == width, view
        cut = (
            "[...document.querySelectorAll('.tile .value, .card h3, .state')]"
            ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
        )
        assert seen.run(cut) == [], view
        seen.picture(folder / f"{view}-{width}-{scheme}.png", whole=True)
        assert (folder / f"{view}-{width}-{scheme}.png").stat().st_size > 10_000
    assert seen.troubles() == []


def test_text_of_a_model_never_runs_and_is_shown_as_it_is(seen: Browser, page: Served) -> None:
    for view in VIEWS:
        look(seen, page, view)
        assert seen.run("document.title").startswith("night: step"), view
        assert seen.run("document.querySelectorAll('main script, main img, main iframe').length") == 0, view
    look(seen, page, "rollouts")
    shown = seen.run("document.querySelector('.completion').textContent")
    assert "<script>document.title='owned'</script>" in shown
    assert "\u202e" not in seen.run("document.body.innerText")  # it would turn the rest of the line around
    assert seen.troubles() == []


def test_even_a_defect_of_the_page_could_run_nothing(seen: Browser) -> None:
    """What the policy refuses, tried from within the page."""
    with pytest.raises(browser.BrowserError, match="TrustedHTML"):
        seen.run("document.body.innerHTML = '<b>x</b>'")
    seen.run("window.ran = 0; window.made = document.createElement('script')")
    seen.run("(() => { try { made.append('window.ran = 1'); document.head.append(made) } catch { } })()")
    assert seen.run("window.ran") == 0
    with pytest.raises(browser.BrowserError, match=r"(?i)trusted|eval"):
        seen.run("new Function('return 1')()")
    assert seen.run("fetch('https://example.com/').then(() => 'sent', () => 'refused')") == "refused"


def test_what_a_link_opens_is_asked_for_once(page: Served) -> None:
    """A first answer that is thrown away costs a pause before the next."""
    with browser.started() as fresh:
        fresh.open(page.url)  # brings the token along
        fresh.wait(SHOWN["overview"])
        fresh.open("about:blank")
        before = len(fresh.requests())
        look(fresh, page, "overview")
        asked = [url.partition("/api/")[2].partition("?")[0] for url in fresh.requests()[before:] if "/api/" in url]
    assert sorted(asked) == ["run", "runs", "scores", "series"]


def test_nothing_is_asked_of_another_machine(seen: Browser, page: Served) -> None:
    for view in VIEWS:
        look(seen, page, view)
    assert {url for url in seen.requests() if not url.startswith((page.base, "about:", "data:"))} == set()


def test_the_token_stays_neither_in_the_address_nor_in_the_history(seen: Browser, page: Served) -> None:
    token = web_token(page.runs).read_text().strip()
    assert token not in seen.run("location.href")
    history = seen.call("Page.getNavigationHistory")["entries"]
    assert all(token not in entry["url"] for entry in history)
    assert token not in seen.run("document.cookie + JSON.stringify(localStorage)") and seen.run("document.cookie") == ""


def test_a_link_that_is_clicked_on_another_site_opens_the_page(chromium: Browser, page: Served) -> None:
    """A strict cookie is not sent along a redirect that another site began, so the link must not answer with one."""
    chromium.call("Network.clearBrowserCookies")
    chromium.open("data:text/html,<a id=x>x</a>")
    chromium.wait("document.getElementById('x')")
    chromium.run(f"document.getElementById('x').href = {json.dumps(page.url)}; document.getElementById('x').click()")
    chromium.wait(ENTERED)


def test_a_phone_with_a_wrong_token_reads_what_to_do(chromium: Browser, page: Served) -> None:
    chromium.call("Network.clearBrowserCookies")
    chromium.size(390, 844, scale=2, phone=True)
    chromium.open(f"{page.base}/?token=wrong")
    chromium.wait("document.querySelector('h1')?.textContent === 'This page needs its link'")
    assert "python -m orchestrator web" in chromium.run("document.body.innerText")
    assert chromium.run("document.documentElement.scrollWidth") == 390


def test_new_steps_appear_by_themselves(seen: Browser, page: Served) -> None:
    run = RunDir(page.runs / "night")
    look(seen, page, "overview")
    columns = "cycle, attempt, seq+1, 0, seconds, reward, loss, tokens, metrics, t_wall"
    change(run, f"INSERT INTO steps SELECT 241, {columns} FROM steps WHERE step=240")
    seen.run("document.dispatchEvent(new Event('visibilitychange'))")  # as if the page was looked at again
    seen.wait("document.querySelector('.hero-line').textContent.includes('Step 241')")
    change(run, "DELETE FROM steps WHERE step=241")


def test_a_lost_connection_is_told_and_the_page_goes_on_by_itself(seen: Browser, page: Served) -> None:
    look(seen, page, "overview")
    seen.offline(True)
    seen.run("dispatchEvent(new Event('online'))")
    seen.wait("!document.getElementById('banner').hidden")
    assert "does not answer" in seen.run("document.getElementById('banner').textContent")
    assert seen.run("document.querySelectorAll('.plot path.line').length") > 0  # what was there stays
    seen.offline(False)
    seen.run("dispatchEvent(new Event('online'))")
    seen.wait("document.getElementById('banner').hidden")


def test_a_server_that_was_restarted_is_found_again_and_a_new_token_is_told(chromium: Browser, tmp_path: Path) -> None:
    build_store(tmp_path / "night", cycles=6, steps=240)
    chromium.offline(False)
    chromium.size(1400, 900)
    with served(tmp_path) as first:
        port = first.port
        chromium.open(first.url)
        chromium.wait(SHOWN["overview"])
        first.stop()
        chromium.run("dispatchEvent(new Event('online'))")
        chromium.wait("!document.getElementById('banner').hidden")
    with served(tmp_path, port=port) as second:
        chromium.run("dispatchEvent(new Event('online'))")
        chromium.wait("document.getElementById('banner').hidden")
        second.stop()
    with served(tmp_path, "--new-token", port=port):
        chromium.run("dispatchEvent(new Event('online'))")
        chromium.wait("document.getElementById('banner').textContent.includes('no longer valid')")


def test_a_curve_is_read_by_the_keyboard_and_spoken(seen: Browser, page: Served) -> None:
    look(seen, page, "overview")
    seen.run("document.querySelector('.plot').focus()")
    label = seen.run("document.activeElement.getAttribute('aria-label')")
    assert label.startswith("Held-out accuracy, step 0 to 240: greedy 0.3") and "sampled" in label
    seen.key("End")
    seen.key("ArrowLeft")
    assert seen.run("document.querySelector('.chart .unseen').textContent").startswith("step 200, greedy ")
    seen.key("Escape")
    assert seen.run("document.querySelector('.chart .at').textContent") == ""


def test_every_control_has_a_name_and_is_reached_by_the_keyboard(seen: Browser, page: Served) -> None:
    for view in VIEWS:
        look(seen, page, view)
        nameless = (
            "[...document.querySelectorAll('button, a, input, select, [role=img], [role=progressbar]')]"
            ".filter(e => !e.closest('[hidden]') && e.checkVisibility()"
            " && !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label')?.textContent.trim()))"
            ".map(e => e.outerHTML)"
        )
        assert seen.run(nameless) == [], view
        assert seen.run("document.querySelectorAll('[tabindex]:not([tabindex=\"0\"]):not(main)').length") == 0, view


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_ground(seen: Browser, page: Served, scheme: str) -> None:
    """WCAG 2.2, AA: 4.5 to 1 for text, measured on what the browser computed."""
    seen.scheme(scheme)
    script = (Path(__file__).parent / "contrast.js").read_text()
    for view in VIEWS:
        look(seen, page, view)
        assert seen.run(script) == [], view


def test_colours_follow_the_system_until_they_are_chosen(seen: Browser, page: Served) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = seen.run(ground)
    seen.scheme("dark")
    dark = seen.run(ground)
    assert light != dark
    seen.run("document.querySelector('[data-theme-choice=light]').click()")
    assert seen.run(ground) == light
    seen.call("Page.reload")
    seen.wait(f"document.querySelector('.plot path.line') && {ground}")
    assert seen.run(ground) == light  # kept, and there before the first paint
    seen.run("document.querySelector('[data-theme-choice=system]').click()")
    assert seen.run(ground) == dark


def test_motion_stops_for_those_who_ask_for_it(seen: Browser, page: Served) -> None:
    assert seen.run("getComputedStyle(document.querySelector('.progress span')).transitionDuration") == "0s"
    seen.scheme("light", reduced_motion=False)
    assert seen.run("getComputedStyle(document.querySelector('.progress span')).transitionDuration") != "0s"


def test_runs_are_chosen_from_a_drawer_on_a_phone(seen: Browser, page: Served) -> None:
    seen.size(390, 844, scale=2, phone=True)
    look(seen, page, "overview")
    assert seen.run("getComputedStyle(document.getElementById('rail')).visibility") == "hidden"
    seen.run("document.getElementById('menu').click()")
    assert seen.run("document.getElementById('menu').getAttribute('aria-expanded')") == "true"
    seen.run("[...document.querySelectorAll('.runs a')].find(a => a.textContent.includes('day')).click()")
    seen.wait("document.getElementById('bar-name').textContent === 'day'")
    assert seen.run("document.getElementById('menu').getAttribute('aria-expanded')") == "false"


def test_two_runs_are_drawn_on_the_same_axes(seen: Browser, page: Served) -> None:
    look(seen, page, "compare")
    seen.run("[...document.querySelectorAll('.chip.run')].find(e => e.textContent === 'day').click()")
    seen.wait("document.querySelectorAll('.chart.wide .plot path.line').length === 2")
    seen.wait("document.body.textContent.includes('day - night: ')")


def test_any_metric_is_drawn_by_its_name(seen: Browser, page: Served) -> None:
    look(seen, page, "curves")
    seen.run("document.querySelector('input[type=search]').value = 'clip_fraction'")
    seen.run("document.querySelector('input[type=search]').dispatchEvent(new Event('input'))")
    seen.run("document.querySelector('.metric').click()")
    seen.wait("[...document.querySelectorAll('.chart h3')].some(e => e.textContent === 'clip_fraction')")


def test_a_metric_that_begins_late_has_its_band_where_its_line_is(seen: Browser) -> None:
    late = {"mean": [10, 11], "low": [9, 10], "high": [11, 12]}
    old = {"mean": [1, 2, 3], "low": [1, 2, 3], "high": [1, 2, 3]}
    common = {"key": "1.4.0", "width": 4, "read": 1}
    replies = [
        {**common, "first": 0, "settled": 3, "last": 12, "lines": {"a": old}},
        {**common, "first": 3, "settled": 5, "last": 20, "lines": {"a": late, "b": late}},
    ]
    lines = seen.run(
        f"(async () => {{ const replies = {json.dumps(replies)}, ask = window.fetch; try {{"
        " window.fetch = async () => new Response(JSON.stringify(replies.shift()));"
        " const series = new (await import('./series.js')).Series('night'); await series.all(['a', 'b']);"
        " return await series.all(['a', 'b']); } finally { window.fetch = ask; } })()"
    )
    assert lines["b"]["y"] == [None, None, None, 10, 11]
    assert (lines["b"]["low"], lines["b"]["high"]) == ([None, None, None, 9, 10], [None, None, None, 11, 12])


def test_a_run_without_rollouts_says_how_to_keep_some(seen: Browser, page: Served) -> None:
    seen.open(f"{page.base}/#/day/rollouts")
    seen.wait("document.body.textContent.includes('retention.keep_rollout_steps')")


def test_a_store_that_cannot_be_read_is_told_in_words(seen: Browser, page: Served, tmp_path: Path) -> None:
    broken = page.runs / "broken"
    broken.mkdir()
    (broken / "state.db").write_bytes(b"no database at all" * 100)
    seen.open(f"{page.base}/#/broken/overview")
    seen.wait("document.getElementById('banner').textContent.includes('is damaged')")
    assert "python -m orchestrator" in seen.run("document.getElementById('banner').textContent")
    (broken / "state.db").unlink()


def test_an_empty_folder_shows_how_to_begin(chromium: Browser, tmp_path: Path) -> None:
    with served(tmp_path / "runs") as page:
        chromium.open(page.url)
        chromium.wait("document.querySelector('h1')?.textContent === 'No run yet'")
        assert "python -m orchestrator run" in chromium.run("document.body.innerText")
