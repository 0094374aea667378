"""What `init` is told of data: columns, rows, and why they cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.new_job import mapping
from profiles.errors import ExitCode, LonghaulError
from workers.problems.look import EXAMPLE, STUDIED, columns_of, look
from workers.verifiers.answers import LONGEST_ANSWER


def lines(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", "b"], "text"),
        ([1, 2.5], "number"),
        ([[{"role": "user", "content": "hi"}]], "messages"),
        ([["a"], []], "list"),
        ([{"a": 1}], "other"),
        ([True], "other"),
        (["a", 1], "other"),
        ([None, float("nan"), ""], "empty"),
        ([None, "a"], "text"),
    ],
)
def test_a_column_has_the_kind_of_its_values(values: list[Any], kind: str) -> None:
    (column,) = columns_of([{"x": value} for value in values])
    assert column.kind == kind


def test_columns_are_described_by_their_first_rows() -> None:
    first, second = columns_of([{"a": "xyz"}, {"a": "v", "b": "w" * 900}])
    assert (first.name, first.filled, first.mean_length, first.longest, first.example) == ("a", 1.0, 2, 3, "xyz")
    assert (second.name, second.filled, second.longest, second.example) == ("b", 0.5, 900, "w" * EXAMPLE)


def test_of_a_worked_solution_only_the_answer_at_its_end_counts_as_an_answer() -> None:
    (column,) = columns_of([{"answer": "step by step " * 50 + "\n#### 42"}])
    assert column.longest > 600 and column.longest_answer == 2


def test_all_lines_are_counted_and_bad_ones_have_no_columns(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", {"q": "x"}, "", "no JSON", [1], *[{"q": "x"}] * STUDIED)
    looked = look(file)
    assert (looked.file, looked.rows, [one.name for one in looked.columns]) == (str(file), STUDIED + 3, ["q"])


def test_a_folder_stands_for_its_file_of_the_split_train(tmp_path: Path) -> None:
    lines(tmp_path / "my_test.jsonl", {"q": "x"})
    assert look(tmp_path).file == str(tmp_path / "my_test.jsonl")
    train = lines(tmp_path / "deep" / "my_train.jsonl", {"q": "x"})
    assert look(tmp_path).file == str(train)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_tables_are_looked_at_without_reading_them_whole(ending: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"question": [f"q{n}" for n in range(2500)], "answer": list(range(2500))})
    for name in ("train-00000-of-00002", "train-00001-of-00002"):
        path = tmp_path / f"{name}.{ending}"
        if ending == "parquet":
            parquet.write_table(table, path)
        else:
            with pyarrow.ipc.new_stream(str(path), table.schema) as sink:
                sink.write_table(table)
    looked = look(tmp_path)
    assert (looked.file, looked.rows) == (str(tmp_path), 5000)
    assert [(one.name, one.kind, one.example) for one in looked.columns] == [
        ("question", "text", "q0"),
        ("answer", "number", "0"),
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere/a.jsonl", "there is no such file"),
        ("empty.jsonl", "no line of it is a JSON object"),
        ("numbers.jsonl", "no line of it is a JSON object"),
        ("folder", "it holds no .jsonl, .parquet or .arrow file"),
        ("two", "it holds several files of JSON lines: a.jsonl, b.jsonl"),
        ("torn.parquet", "the data"),
    ],
)
def test_data_that_cannot_be_used_say_why(name: str, said: str, tmp_path: Path) -> None:
    lines(tmp_path / "empty.jsonl")
    lines(tmp_path / "numbers.jsonl", 1, [2])
    (tmp_path / "folder").mkdir()
    lines(tmp_path / "two" / "a.jsonl", {"q": 1})
    lines(tmp_path / "two" / "b.jsonl", {"q": 1})
    lines(tmp_path / "torn.parquet", "PAR1 and then nothing")
    with pytest.raises(LonghaulError) as caught:
        look(tmp_path / name)
    assert said in caught.value.what and caught.value.exit_code == ExitCode.INPUT and caught.value.next_command


def test_text_that_no_file_can_hold_is_replaced(tmp_path: Path) -> None:
    (column,) = look(lines(tmp_path / "a.jsonl", '{"q": "\\ud800 lone"}')).columns
    column.example.encode()


def test_the_longest_answer_is_the_readers() -> None:
    assert mapping.LONGEST_ANSWER == LONGEST_ANSWER
