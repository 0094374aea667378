"""docs/state.md has every file, table, column, field and kind of event as the code has them."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from msgspec import Struct

from state import checkpoint, durable, event_kinds
from state.event_kinds import EventKind
from state.layout import AttemptDir, RunDir
from state.states import AttemptState, CycleState, RunState
from state.tables import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from tests import REPOSITORY
from workers.contract import CONTRACT_VERSION, Event, Outcome, Result, WorkerSpec

TEXT = (REPOSITORY / "docs/state.md").read_text(encoding="utf-8")
Column = tuple[str, str]


def section(heading: str) -> str:
    """The text below a heading, up to the next one of any level."""
    (found,) = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    return str(found)


def written_tables() -> dict[str, list[Column]]:
    """Table -> its columns with their types, as the page has them."""
    found = {}
    for name in re.findall(r"^### `(\w+)`$", TEXT, re.MULTILINE):
        found[name] = re.findall(r"^\| `(\w+)` \| ([A-Z]+(?: or NULL)?) \| .+ \|$", section(f"`{name}`"), re.MULTILINE)
    return found


def real_tables() -> dict[str, list[Column]]:
    with sqlite3.connect(":memory:") as db:
        for script in MIGRATIONS:
            db.executescript(script)
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        return {
            name: [
                (column, kind if is_needed or is_key else f"{kind} or NULL")
                for _, column, kind, is_needed, _, is_key in db.execute(f"PRAGMA table_info({name})")
            ]
            for name in names
        }


def test_the_page_has_every_table_with_its_columns_in_their_order() -> None:
    assert written_tables() == real_tables()


def fields(heading: str) -> list[str]:
    """The names in the first column of a section's table."""
    rows = re.findall(r"^\| (`.+?`) \| .+ \|$", section(heading), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


@pytest.mark.parametrize(
    ("heading", "record", "more"),
    [
        ("Checkpoints", checkpoint.Manifest, ["seal"]),
        ("spec.json", WorkerSpec, []),
        ("result.json", Result, []),
    ],
)
def test_the_page_has_every_field_of_a_file(heading: str, record: type[Struct], more: list[str]) -> None:
    assert sorted(fields(heading)) == sorted([*record.__struct_fields__, *more])


def test_the_page_has_every_field_of_an_event() -> None:
    before_the_kinds = section("events.jsonl").partition("Kinds that workers write")[0]
    rows = re.findall(r"^\| (`.+?`) \|", before_the_kinds, re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == list(Event.__struct_fields__)


def row_of(kind: EventKind) -> str:
    named = [f"`{field}`" for field in kind.fields] + ["..."] * kind.is_open
    return f"| `{kind.name}` | {', '.join(named)} | {kind.meaning} |"


def test_the_page_has_every_kind_of_event_with_its_fields_and_meaning() -> None:
    by_workers, by_master = section("events.jsonl").split("Kinds that the master")
    for text, kinds in ((by_workers, event_kinds.BY_WORKERS), (by_master, event_kinds.BY_MASTER)):
        table = text[text.index("| kind | fields") :].strip().splitlines()[2:]
        assert table == [row_of(kind) for kind in kinds]


@pytest.mark.parametrize(("table", "states"), [("runs", RunState), ("cycles", CycleState), ("attempts", AttemptState)])
def test_the_page_has_every_state(table: str, states: type[RunState | CycleState | AttemptState]) -> None:
    (row,) = re.findall(r"^\| `state` \| TEXT \| ([^;|]+)", section(f"`{table}`"), re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == [state.value for state in states]


def test_the_page_has_every_outcome_and_version() -> None:
    (row,) = re.findall(r"^\| `outcome` \| (.+) \|$", section("result.json"), re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == [outcome.value for outcome in Outcome]
    versions = re.findall(r"^\| [^`|]+ \| (\d+) \| .+ \|$", section("Versions and migration"), re.MULTILINE)
    assert versions == [str(SCHEMA_VERSION), str(checkpoint.FORMAT_VERSION), str(CONTRACT_VERSION)]
    assert f"0x{APPLICATION_ID:X}" in section("Versions and migration")


def paths_of_a_run() -> set[str]:
    """Every path that the layout knows, as the page writes it."""
    run, attempt = RunDir(Path("/run")), AttemptDir(Path("/run/cycles/KKKK/attempt-N"))
    properties = [
        getattr(one, name)
        for one in (run, attempt)
        for name, value in vars(type(one)).items()
        if isinstance(value, property)
    ]
    paths = [path for path in properties if isinstance(path, Path) and path.is_relative_to(run.root)]
    paths += [run.worker("TOKEN"), attempt.rank_log(7), attempt.claim(7)]
    return {path.name.replace("7", "N") for path in paths}


def test_the_page_has_every_file_of_a_run() -> None:
    told = section("The directory")
    named = {part for name in re.findall(r"`([^` ]+)`", told) for part in name.split("/")}
    assert paths_of_a_run() - {"run"} <= named
    rollouts = {RunDir(Path("/run")).rollout_file(0, 0).name, RunDir(Path("/run")).seed_file(0, 0).name}
    assert {name.replace("000000", "NNNNNN") for name in rollouts} <= named


def two_files(folder: Path) -> None:
    for name in ("b", "a"):
        (folder / name).write_text(name)


def test_a_digest_is_made_as_the_page_says(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    durable.make_dir(run.checkpoints)
    saved = checkpoint.stage(
        run,
        run_id="1" * 16,
        parent=None,
        cycle=1,
        attempt=1,
        token="a",
        step=3,
        profile_sha256="",
        versions={},
        write=two_files,
    )
    run.latest.write_text(
        f'{{"checkpoint": "{saved.path}", "checkpoint_id": "{saved.checkpoint_id}", "digest": "{saved.digest}"}}'
    )
    (example,) = re.findall(r"^```python\n(.*?)^```", section("Checkpoints"), re.DOTALL | re.MULTILINE)
    code = example.replace("runs/night", str(tmp_path))
    exec(compile(code, "docs/state.md", "exec"), {})  # noqa: S102 - our own page
    (saved.directory / "a").write_text("c")
    with pytest.raises(AssertionError):
        exec(compile(code, "docs/state.md", "exec"), {})  # noqa: S102 - our own page
