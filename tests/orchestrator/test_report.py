"""report.html: one file, no remote resource, and no text in it that could become markup or script."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sqlite3
from html.parser import HTMLParser
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.commands import report as command
from orchestrator.report.escaping import embedded
from orchestrator.report.facts import STEPS_SHOWN, read_facts, thinned
from orchestrator.report.page import write_report
from orchestrator.report.svg import Chart, Line, draw
from state.layout import RunDir
from tests.builders import build_store, validation_facts

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
    assert html.count("<polyline") >= 20
    assert html.count("<polygon") == 4


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
    assert len(facts.steps) <= STEPS_SHOWN
    assert (facts.steps[-1].step, facts.stride) == (10_000, 9)
    assert "every 9th step" in html_of(run)


def test_thinning_keeps_both_ends() -> None:
    facts = tuple(validation_facts(step) for step in range(100))
    assert [one.step for one in thinned(facts, 4)] == [0, 33, 66, 99]


def test_a_lone_point_is_a_dot() -> None:
    assert "<circle" in draw(Chart("t", "", (Line("greedy", "ded", ((0, 0.5),)),)), "c0")


def test_the_command_prints_the_path(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(argparse.Namespace(runs=run.root.parent, run=None, json=False)) == 0
    assert capsys.readouterr().out == f"{run.report}\n"
    assert oct(run.report.stat().st_mode)[-3:] == "600"


def test_every_suite_has_its_curve(run: RunDir) -> None:
    with sqlite3.connect(run.store) as db:
        rows = db.execute("SELECT * FROM validations").fetchall()
        for row in rows:
            metrics = {"maths": {"accuracy": 0.5, "n": 8}, "mean": {"accuracy": 0.5, "n": 8}}
            db.execute("INSERT INTO validations VALUES (?,?,?,?,?,?,?,?,?,?)",
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
