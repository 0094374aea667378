"""report.html: one file, no remote resource, and no text in it that could become markup or script."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sqlite3
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.commands import report as command
from orchestrator.report.axes import Axis, Clock, on_axis
from orchestrator.report.curves import seconds_of_parts, throughput, what_a_point_is
from orchestrator.report.escaping import embedded
from orchestrator.report.facts import POINTS_SHOWN, read_facts
from orchestrator.report.page import write_report
from orchestrator.report.svg import Chart, Line, draw
from profiles.metrics import QUANTILES
from state.layout import RunDir
from state.series import Thinned
from tests.builders import a_series, build_store, step_facts

HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e\"'&"


class Page(HTMLParser):
    """Elements, attributes and text of a page, as a browser would take them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        self.text[tag] = self.text.get(tag, "") + data


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return build_store(tmp_path / "night", cycles=6, steps=120)


def set_profile(db: sqlite3.Connection, profile: str) -> None:
    db.execute("UPDATE runs SET profile=?, profile_sha256=?", [profile, hashlib.sha256(profile.encode()).hexdigest()])


def html_of(run: RunDir) -> str:
    return write_report(run).read_text()


def test_the_story_of_a_run_is_on_the_page(run: RunDir) -> None:
    html = html_of(run)
    for part in (
        "night", "profile pocket", "stopped", "asked to stop", "0.307 → 0.590", "10 % → 63 %", "Held-out: deduction",
        "Proposer&#x27;s reward", "Buffers", "Step time", "b = c.swapcase()".replace("b = c", "c = b"), "101 – 120",
        "checkpoints/c000006-s000120", "steps_per_cycle",
    ):  # fmt: skip
        assert part in html, part
    assert html.count("<polyline") >= 3 * 20
    assert html.count("<polygon") == 3 * (4 + 3), "intervals of four scores, and parts of a step, over three axes"


def test_nothing_is_fetched_from_anywhere(run: RunDir) -> None:
    html = html_of(run)
    page = Page(html)
    assert "http://" not in html and "https://" not in html and "url(" not in html and "@import" not in html
    assert not {"src", "href", "srcset", "data", "action"} & {name for name, _ in page.attributes}
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)


def test_the_policy_allows_this_script_alone(run: RunDir) -> None:
    page = Page(html_of(run))
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert page.tags.count("script") == 2
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]


def test_hostile_text_stays_text(run: RunDir) -> None:
    with sqlite3.connect(run.store) as db:
        db.execute("UPDATE examples SET program=?, input=?, output=?, task=?", [HOSTILE] * 4)
        db.execute("UPDATE runs SET stop_reason=?", [HOSTILE])
        set_profile(db, json.dumps({"name": HOSTILE, "x": [HOSTILE]}))
        db.execute("UPDATE attempts SET state='failed', failure=?, message=? WHERE cycle=2", [HOSTILE, HOSTILE])
        db.execute("UPDATE cycles SET evidence=? WHERE cycle=3", [HOSTILE])
        db.execute(
            "UPDATE steps SET metrics=?", [json.dumps({f"reward/solve_{HOSTILE}": 1.0, f"buffer/{HOSTILE}": 2.0})]
        )
        db.execute("UPDATE checkpoints SET path=?", [HOSTILE])
    db.close()
    html = html_of(run)
    page = Page(html)
    assert page.tags.count("script") == 2 and "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert HOSTILE.split("\x1b")[0] in page.text["pre"]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", html)


def test_data_cannot_end_its_element() -> None:
    data = {"</script><!--": ["&<>"]}
    assert not set("<>&") & set(embedded(data))
    assert json.loads(embedded(data)) == data


def test_numbers_that_are_none_leave_gaps(run: RunDir) -> None:
    with sqlite3.connect(run.store) as db:
        db.execute("UPDATE steps SET metrics=? WHERE step % 2", ['{"buffer/ded": NaN, "reward/solve_ded": null}'])
    db.close()
    assert "NaN" not in html_of(run)


def test_a_run_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    run = build_store(tmp_path / "new", cycles=1, steps=1, examples=0)
    with sqlite3.connect(run.store) as db:
        db.execute("PRAGMA foreign_keys=OFF")
        db.execute("UPDATE runs SET head=NULL")
        set_profile(db, "{}")
        for table in ("steps", "validations", "checkpoints", "attempts", "cycles", "events", "examples"):
            db.execute(f"DELETE FROM {table}")
    db.close()
    assert "nothing was measured yet" in html_of(run)


def test_a_long_run_is_thinned_out_and_says_so(tmp_path: Path) -> None:
    run = build_store(tmp_path / "long", cycles=100, steps=10_000)
    facts = read_facts(run)
    assert len(facts.series.middles) == POINTS_SHOWN and facts.series.edges[-1] == 10_001
    html = html_of(run)
    assert "a point is the mean of 25 steps" in html and "band: fastest and slowest step" in html


def test_a_note_says_what_was_read_only_where_not_every_step_was() -> None:
    series = Thinned((1, 2501), 84, (9.0,), (9,), {})
    assert what_a_point_is(series, "seconds") == "; a point is the mean of 2,500 steps"
    for metrics in ((), ("seconds", "entropy")):
        assert what_a_point_is(series, *metrics).endswith("2,500 steps, of which every 84th was read")
    assert what_a_point_is(Thinned((1, 2, 3), 1, (9.0, 9.0), (9, 9), {})) == ""


def test_every_curve_is_drawn_over_steps_tokens_and_hours_and_chosen_without_a_script(run: RunDir) -> None:
    html = html_of(run)
    page = Page(html)
    drawn = [value for name, value in page.attributes if name == "data-chart"]
    for axis in ("steps", "tokens", "hours"):
        assert sum(chart.endswith(f"-{axis}") for chart in drawn) == len(drawn) / 3
        assert f"#axis-{axis}:not(:checked) ~ .charts .over.{axis}" in html and f'id="axis-{axis}"' in html
    assert html.count(" checked>") == 1


def test_an_axis_of_hours_or_tokens_has_what_was_used_up_to_each_step() -> None:
    steps = [step_facts(step, seconds=3600.0 * step, tokens=100.0) for step in (1, 2, 3)]
    clock = Clock.of(a_series(steps))
    assert [clock.at(step, Axis.HOURS) for step in (0, 1, 2, 2.5, 3, 9)] == [0, 1, 3, 4.5, 6, 6]
    assert [clock.at(step, Axis.TOKENS) for step in (0, 1, 3)] == [0, 100, 300]
    chart = on_axis(Chart("t", "", (Line("a", "x", ((1, 0.5), (3, 0.7))),)), [clock], Axis.HOURS)
    assert chart.lines[0].points == ((1, 0.5), (6, 0.7)) and chart.x_name == "h"


def test_where_the_time_went_adds_up_to_all_of_it() -> None:
    steps = [step_facts(step, **{"seconds": 10.0, "seconds/a": 2.0, "seconds/b": 7.0}) for step in (1, 2, 3)]
    assert seconds_of_parts(a_series(steps)) == {"b": 21.0, "a": 6.0, "the rest": 3.0}
    assert seconds_of_parts(a_series([])) == {}


def test_throughput_is_all_tokens_by_all_seconds() -> None:
    steps = [step_facts(1, seconds=2.0, tokens=100.0), step_facts(2, seconds=1.0, tokens=400.0)]
    (line,) = throughput(a_series(steps), "all", "run0")
    assert line.points == ((1.0, 50.0), (2.0, 400.0))


def test_how_rewards_are_spread_is_a_fan(run: RunDir) -> None:
    assert "Rewards of rollouts" not in html_of(run)
    with sqlite3.connect(run.store) as db:
        quantiles = {f"rewards/p{percent}": percent / 100 for percent in QUANTILES}
        db.execute("UPDATE steps SET metrics=?", [json.dumps(quantiles)])
    db.close()
    assert "Rewards of rollouts" in html_of(run) and "Lengths of rollouts" not in html_of(run)


def test_a_lone_point_is_a_dot() -> None:
    assert "<circle" in draw(Chart("t", "", (Line("greedy", "ded", ((0, 0.5),)),)), "c0")


def arguments(runs: Path, *names: str, **more: Any) -> argparse.Namespace:
    given = {"runs": runs, "run": None, "names": list(names), "json": False, "format": "html", "out": None}
    return argparse.Namespace(**given | more)


def test_the_command_prints_the_path(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(arguments(run.root.parent)) == 0
    assert capsys.readouterr().out == f"{run.report}\n"
    assert oct(run.report.stat().st_mode)[-3:] == "600"


def test_every_suite_has_its_curve(run: RunDir) -> None:
    with sqlite3.connect(run.store) as db:
        rows = db.execute("SELECT * FROM validations").fetchall()
        for row in rows:
            metrics = {"maths": {"accuracy": 0.5, "n": 8}, "mean": {"accuracy": 0.5, "n": 8}}
            db.execute("INSERT INTO validations VALUES (?,?,?,?,?,?,?,?,?,?,0)",
                       (row[0], HOSTILE, *row[2:8], json.dumps(metrics), row[9]))  # fmt: skip
    db.close()
    html = html_of(run)
    page = Page(html)
    assert "Held-out: mean" in html and f"Held-out: {HOSTILE.split(chr(27))[0]}" in page.text["h3"]
    assert page.tags.count("script") == 2


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = build_store(tmp_path / "night")
    run.report.mkdir()
    assert main(["report", "--runs", str(tmp_path), "--run", "night"]) == 66
    assert "report.html cannot be used: Is a directory\nkept:  the run, unchanged\nnext:  " in capsys.readouterr().err


# --- several runs -----------------------------------------------------------------------------------------------------


def test_several_runs_share_a_page_with_one_colour_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_store(tmp_path / "one", cycles=6, steps=120)
    build_store(tmp_path / "two", cycles=6, steps=60)
    assert command.run(arguments(tmp_path, "one", "two")) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == tmp_path / "report-one-two.html"
    html = path.read_text()
    for part in ("one · two", "two - one: ", "Held-out: pocket", "Reward", "Where the time went", "at 60 steps",
                 "run.steps_per_cycle", "95 % intervals"):  # fmt: skip
        assert part in html, part
    assert 'class="line run0"' in html and 'class="line run1"' in html and 'class="line run2"' not in html
    assert not {"src", "href"} & {name for name, _ in Page(html).attributes}


def test_the_page_of_runs_with_long_names_has_a_name_that_a_file_may_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["日" * 70, "月" * 70]
    for name in names:
        build_store(tmp_path / name, cycles=1, steps=20)
    assert command.run(arguments(tmp_path, *names)) == 0
    assert Path(capsys.readouterr().out.strip()) == tmp_path / f"report-{'日' * 40}.html"


def test_hostile_names_stay_text_on_the_page_of_several_runs(tmp_path: Path) -> None:
    for number in range(2):
        run = build_store(tmp_path / f"run{number}")
        with sqlite3.connect(run.store) as db:
            db.execute("UPDATE runs SET name=?", [HOSTILE])
            set_profile(db, json.dumps({"name": HOSTILE, f"x{number}": [HOSTILE]}))
            db.execute("UPDATE validations SET suite=?", [HOSTILE])
        db.close()
    assert command.run(arguments(tmp_path, "run0", "run1", out=tmp_path / "page.html")) == 0
    html = (tmp_path / "page.html").read_text()
    assert Page(html).tags.count("script") == 2 and "img" not in Page(html).tags
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", html)


def test_markdown_goes_to_standard_output_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_store(tmp_path / "one")
    build_store(tmp_path / "two")
    assert command.run(arguments(tmp_path, "one", format="md")) == 0
    alone = capsys.readouterr().out
    assert alone.startswith("| run | one |\n| --- | --- |\n") and "reward in training" in alone
    assert command.run(arguments(tmp_path, "one", "two", format="md", out=tmp_path / "pr.md")) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'pr.md'}\n"
    text = (tmp_path / "pr.md").read_text()
    assert "- two - one: " in text and text.count("```") == 2


@pytest.mark.parametrize(
    ("given", "code"), [(["report", "one", "one"], 2), (["report", "one", "gone"], 66), (["report", "../x"], 2)]
)
def test_runs_that_cannot_be_reported_are_refused(
    given: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_store(tmp_path / "one")
    assert main([*given, "--runs", str(tmp_path)]) == code
    assert "next:" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        build_store(tmp_path / name)
    assert main(["report", "one", "two", "--runs", str(tmp_path), "--out", str(tmp_path)]) != 0
    assert "kept:  the runs, unchanged" in capsys.readouterr().err
