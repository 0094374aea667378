"""The HTTP side, asked as a stranger and as the page: who gets in, what is said, and that nothing can be changed."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.web.desk import Desk
from orchestrator.web.facts import Watch, runs_of
from profiles.errors import LonghaulError
from state.layout import RunDir, web_token
from state.tables import SCHEMA_VERSION
from tests.builders import build_store
from tests.orchestrator.web.served import HOSTILE, Served, hostile_example, rollouts, served

QUESTIONS = ("run", "scores", "events", "cycles", "profile", "tasks", "rollout_steps")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("runs")
    run = build_store(folder / "night", cycles=3, steps=60)
    build_store(folder / "day", cycles=2, steps=40)
    hostile_example(run)
    rollouts(run, 3, 60, [{"text": HOSTILE, "reward": 1.0}, {"text": "\\boxed{42}", "reward": 0.0}])
    with served(folder) as found:
        yield found


# --- who may read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", *(f"/api/{name}?run=night" for name in QUESTIONS), "/api/runs"])
@pytest.mark.parametrize("cookie", ["", "longhaul_1=x", "another=1"])
def test_without_the_cookie_nothing_is_said(page: Served, path: str, cookie: str) -> None:
    reply = page.get(path, Cookie=cookie)
    assert reply.status == 403
    assert b"night" not in reply.body


def test_a_wrong_token_is_told_in_words_what_to_do(page: Served) -> None:
    reply = page.get("/?token=wrong")
    assert reply.status == 403 and "text/html" in reply.headers["content-type"]
    assert "python -m orchestrator web" in reply.text and "Traceback" not in reply.text
    assert "set-cookie" not in reply.headers


def test_the_link_sets_a_cookie_that_scripts_and_other_sites_do_not_get(page: Served) -> None:
    token = web_token(page.runs).read_text().strip()
    reply = page.get(f"/?token={token}")
    cookie = reply.headers["set-cookie"]
    assert reply.status == 200
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
    assert token not in cookie and token not in reply.text
    assert page.get("/", Cookie=cookie.split(";")[0]).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_name_of_this_machine_is_refused_even_with_the_cookie(page: Served, host: str) -> None:
    reply = page.get("/api/runs", Host=host, Cookie=page.cookie)
    assert reply.status in (400, 421)  # an empty one is refused by the server below
    assert b"night" not in reply.body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_get_is_answered(page: Served, method: str) -> None:
    reply = page.get("/api/run?run=night", method=method, Cookie=page.cookie)
    assert reply.status == 405 and reply.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/style.css", "/api/run?run=night", "/api/nothing", "/nothing", "/?token=x"])
def test_every_reply_forbids_foreign_and_inline_code(page: Served, path: str) -> None:
    headers = page.get(path, Cookie=page.cookie).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] in ("no-store", "no-cache")


@pytest.mark.parametrize(
    "path",
    [
        "/../state.db", "/..%2fstate.db", "/%2e%2e/night/state.db", "/night/state.db", "//etc/passwd", "/.web/token",
        "/index.html", "/app.py", "/page/app.js", "/style.css/..", "/api/../style.css",
    ],
)  # fmt: skip
def test_only_the_named_files_are_served(page: Served, path: str) -> None:
    assert page.get(path, Cookie=page.cookie).status in (403, 404)


@pytest.mark.parametrize(
    "name", ["..", ".", "../night", "night/../night", "/etc", "night\0", "", "x" * 300, "nobody", ".web"]
)
@pytest.mark.parametrize("question", ["run", "rollout_steps"])
def test_a_name_that_is_no_run_leads_nowhere(page: Served, question: str, name: str) -> None:
    reply = page.ask(question, run=name)
    assert reply.status in (400, 404)
    assert set(reply.json) <= {"what", "kept", "next"} and "Traceback" not in reply.text


# --- what is said -----------------------------------------------------------------------------------------------------


def test_the_list_has_every_run_the_newest_first(page: Served) -> None:
    runs = page.ask("runs").json["runs"]
    assert {one["run"] for one in runs} == {"night", "day"}
    assert all(one["state"] == "stopped" and not one["lives"] for one in runs)


def test_a_run_is_described_with_the_sentences_of_explain(page: Served) -> None:
    found = page.ask("run", run="night").json
    assert (found["step"], found["state"], found["finds_tasks"]) == (60, "stopped", True)
    assert found["explain"][0].startswith("It does not run: stopped") and found["explain"][-1].startswith("Next: ")
    assert [one["task"] for one in found["scores"]] == ["ded", "abd", "ind", "mean"]
    assert found["charts"][0]["title"] == "Solver's reward"
    assert {line["metric"] for line in found["charts"][0]["lines"]} == {
        f"reward/solve_{one}" for one in ("ded", "abd", "ind")
    }


def test_a_range_of_steps_is_told_step_by_step(page: Served) -> None:
    found = page.ask("window", run="night", metrics="reward,loss,unknown", **{"from": 41, "to": 60}).json
    assert found["x"] == list(range(41, 61)) and found["every"] == 1
    assert set(found["lines"]) == {"reward", "loss"} and set(found["lines"]["reward"]) == {"mean"}


def test_every_metric_of_a_step_is_listed_with_its_meaning(page: Served) -> None:
    metrics = {one["name"]: one for one in page.ask("run", run="night").json["metrics"]}
    assert metrics["entropy"] == {
        "name": "entropy", "unit": "nats", "meaning": "mean over all completion tokens in the update, masked or not"
    }  # fmt: skip


def test_hostile_text_is_sent_as_json_that_cannot_be_taken_for_markup(page: Served) -> None:
    tasks = page.ask("tasks", run="night")
    assert tasks.headers["content-type"] == "application/json"
    assert tasks.json["tasks"][0]["program"] == HOSTILE


def test_rollouts_are_told_side_by_side(page: Served) -> None:
    assert page.ask("rollout_steps", run="night").json["steps"] == [{"cycle": 3, "step": 60}]
    found = page.ask("rollouts", run="night", cycle=3, step=60).json
    assert found["prompt"] == "What is 6 * 7?"
    assert [one["pieces"] for one in found["rollouts"]] == [[[True, HOSTILE]], [[True, "\\boxed{42}"]]]
    assert found["groups"][0]["low"] == 0.0 and found["groups"][0]["high"] == 1.0


def test_steps_with_rollouts_are_listed_the_newest_first_also_in_very_long_runs(tmp_path: Path) -> None:
    run = build_store(tmp_path / "night", cycles=1, steps=20)
    places = [(10_000, 1_000_000), (10_000, 999_999), (9_999, 999_998)]
    for cycle, step in places:
        run.rollouts(cycle).mkdir(parents=True, exist_ok=True)
        run.rollout_file(cycle, step).touch()
    with closing(Watch(run)) as watch:
        assert [(one["cycle"], one["step"]) for one in watch.rollout_steps()] == places


def test_rollouts_that_are_gone_are_told_with_how_to_keep_more(page: Served) -> None:
    reply = page.ask("rollouts", run="night", cycle=1, step=2)
    assert reply.status == 404
    assert "keep_rollout_steps" in reply.json["next"]


def test_events_are_paged_from_the_newest_and_searched(page: Served) -> None:
    first = page.ask("events", run="night").json
    numbers = [one["number"] for one in first["events"]]
    assert numbers == sorted(numbers, reverse=True) and len(numbers) == 9
    rest = page.ask("events", run="night", before=numbers[2]).json["events"]
    assert [one["number"] for one in rest] == numbers[3:]
    assert {one["type"] for one in page.ask("events", run="night", type="started").json["events"]} == {"started"}
    assert [one["text"] for one in page.ask("events", run="night", q="onerror").json["events"]] == [HOSTILE]
    assert page.ask("events", run="night", q="no such word").json["events"] == []


def test_runs_are_compared_with_the_figures_of_the_command(page: Served) -> None:
    found = page.ask("compare", runs=json.dumps(["night", "day"])).json
    rows = {row[0]: row[1:] for row in found["rows"]}
    assert rows["steps"] == ["60", "40"] and rows["tokens"] == ["240,000", "160,000"]
    assert found["differences"][0].startswith("day - night: ")


@pytest.mark.parametrize(
    ("question", "given"),
    [
        ("series", {"run": "night"}),
        ("series", {"metrics": "reward"}),
        ("series", {"run": "night", "metrics": "reward", "first": "-1"}),
        ("series", {"run": "night", "metrics": "reward", "first": "9" * 40}),
        ("window", {"run": "night", "metrics": "reward", "from": "a", "to": "2"}),
        ("events", {"run": "night", "before": "1e9"}),
        ("compare", {"runs": "[]"}),
        ("compare", {"runs": "[1]"}),
        ("compare", {"runs": "{}"}),
        ("rollouts", {"run": "night", "cycle": "²", "step": "1"}),
    ],
)
def test_a_question_that_the_page_does_not_ask_is_refused_in_words(
    page: Served, question: str, given: dict[str, Any]
) -> None:
    reply = page.ask(question, **given)
    assert reply.status == 400 and reply.json["what"]


def test_a_list_that_is_no_json_is_refused_too(page: Served) -> None:
    assert page.ask("compare", runs="[night").status == 400


def test_files_are_sent_once_and_then_only_confirmed(page: Served) -> None:
    first = page.get("/app.js")
    assert first.status == 200 and first.headers["cache-control"] == "no-cache"
    assert page.get("/app.js", **{"If-None-Match": first.headers["etag"]}).status == 304


def test_a_long_reply_is_compressed(page: Served) -> None:
    reply = page.get("/api/tasks?run=night", Cookie=page.cookie, **{"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"


# --- stores that are not as they should be ----------------------------------------------------------------------------


def change(run: RunDir, *statements: str) -> None:
    with closing(sqlite3.connect(run.store)) as db, db:
        for statement in statements:
            db.execute(statement)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Served, RunDir]]:
    run = build_store(tmp_path / "runs" / "night", cycles=3, steps=60)
    with served(run.root.parent) as found:
        yield found, run


def test_a_damaged_store_is_told_with_the_command_that_mends_it(own: tuple[Served, RunDir]) -> None:
    page, run = own
    run.store.write_bytes(b"no database at all" * 100)
    reply = page.ask("run", run="night")
    assert reply.status == 503
    assert "is damaged" in reply.json["what"] and "python -m orchestrator" in reply.json["next"]
    (listed,) = page.ask("runs").json["runs"]
    assert listed["state"] == "unreadable" and "damaged" in listed["why"]


def test_one_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_store(tmp_path / "good", cycles=1, steps=20)
    torn = build_store(tmp_path / "torn", cycles=2, steps=40)
    theirs = build_store(tmp_path / "theirs", cycles=1, steps=20)
    for name in (".half-0-good", "a\nb", "\udcff"):  # none that the page could open
        build_store(tmp_path / "new", cycles=1, steps=20).root.rename(tmp_path / name)
    with closing(sqlite3.connect(torn.store)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name='validations'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with torn.store.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"U" * size)
    looked_at = Path.is_file

    def is_file(path: Path) -> bool:
        if path == theirs.store:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return looked_at(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    rows = {one["run"]: one for one in runs_of(tmp_path, time.time())}
    assert {name: one["state"] for name, one in rows.items()} == {
        "good": "stopped", "torn": "unreadable", "theirs": "unreadable"
    }  # fmt: skip
    assert "is damaged" in rows["torn"]["why"] and "Permission denied" in rows["theirs"]["why"]
    desk = Desk(tmp_path)
    with pytest.raises(LonghaulError, match="Permission denied"):
        asyncio.run(desk.of("theirs", lambda watch: watch.overview()))
    asyncio.run(desk.close())


@pytest.mark.parametrize("words", ["größe", "Größe", 'it said "no"', "C:\\data"])
def test_events_are_found_by_any_letters_in_their_text(own: tuple[Served, RunDir], words: str) -> None:
    page, run = own
    payload = json.dumps({"text": 'Größe: it said "no" in C:\\data'})  # as the store writes it
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("INSERT INTO events VALUES (1, 'train', 1, 99999, 'warning', 1, 1.0, 1.0, ?)", [payload])
    (found,) = page.ask("events", run="night", q=words).json["events"]
    assert found["text"].startswith("Größe")


def test_the_curves_of_all_charts_and_of_chosen_metrics_fit_into_one_question(own: tuple[Served, RunDir]) -> None:
    page, run = own
    names = [f"seconds/part{number}" for number in range(60)]
    with closing(sqlite3.connect(run.store)) as db, db:
        db.execute("UPDATE steps SET metrics=?", [json.dumps(dict.fromkeys(names, 1.5))])
    metrics = ",".join(names)
    assert set(page.ask("series", run="night", metrics=metrics).json["lines"]) == set(names)
    assert set(page.ask("window", run="night", metrics=metrics, **{"from": 1, "to": 60}).json["lines"]) == set(names)


def test_a_store_that_vanishes_and_comes_back_is_shown_again(own: tuple[Served, RunDir]) -> None:
    page, run = own
    assert page.ask("run", run="night").json["step"] == 60
    aside = run.store.rename(run.root / "aside")
    assert page.ask("run", run="night").status == 404
    aside.rename(run.store)
    assert page.ask("run", run="night").json["step"] == 60


def test_a_store_that_recover_replaced_is_opened_anew(own: tuple[Served, RunDir]) -> None:
    page, run = own
    assert page.ask("run", run="night").json["step"] == 60
    other = build_store(run.root.parent / "other" / "night", cycles=2, steps=20)
    other.store.replace(run.store)
    for companion in run.store_companions:
        companion.unlink(missing_ok=True)
    assert page.ask("run", run="night").json["step"] == 20


def test_a_store_of_an_older_version_is_shown_and_left_as_it_is(own: tuple[Served, RunDir]) -> None:
    page, run = own
    change(run, "DROP TABLE node_failures", "PRAGMA user_version=2")
    before = run.store.stat().st_mtime_ns
    assert page.ask("run", run="night").json["step"] == 60
    assert run.store.stat().st_mtime_ns == before
    assert SCHEMA_VERSION > 2


def test_a_store_that_a_writer_holds_is_read_all_the_same(own: tuple[Served, RunDir]) -> None:
    page, run = own
    with closing(sqlite3.connect(run.store, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        db.execute("UPDATE runs SET stop_reason='not yet committed'")
        found = page.ask("run", run="night").json
        db.execute("ROLLBACK")
    assert found["stop_reason"] == "asked to stop"


def test_a_reader_leaves_no_lock_and_no_snapshot_behind(own: tuple[Served, RunDir]) -> None:
    page, run = own
    for question in ("run", "scores", "events", "cycles", "tasks"):
        assert page.ask(question, run="night").status == 200
    assert page.ask("series", run="night", metrics="reward").status == 200
    with closing(sqlite3.connect(run.store, timeout=0, isolation_level=None)) as db:
        db.execute("UPDATE runs SET heartbeat_at=1")
        busy, log, moved = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert (busy, log, moved) == (0, 0, 0)


def test_nothing_in_the_run_is_changed_by_looking(own: tuple[Served, RunDir]) -> None:
    page, run = own
    change(run, "PRAGMA wal_checkpoint(TRUNCATE)")
    before = hashlib.sha256(run.store.read_bytes()).hexdigest()
    for question in QUESTIONS:
        assert page.ask(question, run="night").status == 200
    assert hashlib.sha256(run.store.read_bytes()).hexdigest() == before
    assert not any(run.root.glob("*token*"))


def test_a_run_that_begins_later_appears(own: tuple[Served, RunDir]) -> None:
    page, run = own
    build_store(run.root.parent / "later", cycles=2, steps=20)
    assert {one["run"] for one in page.ask("runs").json["runs"]} == {"night", "later"}
    assert page.ask("run", run="later").json["step"] == 20


def test_numbers_that_are_not_finite_reach_the_page_as_gaps(own: tuple[Served, RunDir]) -> None:
    page, run = own
    with closing(sqlite3.connect(run.store)) as db, db:
        for row, metrics in db.execute("SELECT rowid, metrics FROM validations").fetchall():
            changed = json.loads(metrics)
            changed["ded"]["sampled_accuracy"] = math.nan
            db.execute("UPDATE validations SET metrics=? WHERE rowid=?", [json.dumps(changed), row])
    for question in ("run", "scores"):
        reply = page.ask(question, run="night")
        assert reply.status == 200 and "null" in reply.text
        json.loads(reply.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_row_that_was_tampered_with_is_told_as_damage(own: tuple[Served, RunDir]) -> None:
    page, run = own
    change(run, "UPDATE validations SET metrics='{'")
    reply = page.ask("scores", run="night")
    assert reply.status == 503 and "holds no JSON" in reply.json["what"]
