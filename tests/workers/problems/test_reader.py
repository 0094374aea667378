"""Problems with known answers: what is read, what is refused or left out, by line, and where reading goes on."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Grpo
from workers.cycle.cursor import Cursor, Exhausted
from workers.problems.reader import drop_long, read_problems, summary
from workers.verifiers.answers import read_number

DATA = Path(os.environ.get("LONGHAUL_DATA", "no data"))
FIVE = [
    {"question": "Eggs?", "answer": "She has 16.\n#### 18"},
    {"question": "Flats?", "answer": "#### 1,080"},
    {"question": "Debt?", "answer": "#### -3"},
    {"question": "Twice?", "answer": "#### 7 is not it.\n#### 8"},
    {"question": "A long one " * 50, "answer": "#### 9"},
]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_row_32_golds_of_the_fixture(tmp_path: Path) -> None:
    found = read_problems(write(tmp_path / "five.jsonl", FIVE), Grpo())
    assert [one.gold for one in found.problems] == ["18", "1,080", "-3", "8", "9"]
    assert [read_number(one.gold) for one in found.problems] == [18, 1080, -3, 8, 9]
    assert [one.number for one in found.problems] == [0, 1, 2, 3, 4]


def test_row_32_a_prompt_that_is_too_long_is_dropped_and_counted(tmp_path: Path) -> None:
    found = drop_long(
        read_problems(write(tmp_path / "five.jsonl", FIVE), Grpo()), lambda one: len(one.prompt.split()), 100
    )
    assert [one.line for one in found.problems] == [1, 2, 3, 4]
    assert [(one.line, one.reason) for one in found.left_out] == [(5, "its prompt has 150 tokens, 100 are allowed")]
    assert summary(found) == "4 problems from five.jsonl; 1 left out (line 5)"


def test_what_is_left_is_numbered_anew_for_the_cursor(tmp_path: Path) -> None:
    found = drop_long(
        read_problems(write(tmp_path / "five.jsonl", FIVE), Grpo()), lambda one: one.prompt == "Flats?", 0
    )
    assert [(one.number, one.line) for one in found.problems] == [(0, 1), (1, 3), (2, 4), (3, 5)]


def test_where_every_prompt_is_too_long_the_knob_is_named(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError, match="all 5 prompts have more than 0 tokens") as caught:
        drop_long(read_problems(write(tmp_path / "five.jsonl", FIVE), Grpo()), lambda one: len(one.prompt), 0)
    assert "sampling.max_prompt_tokens" in caught.value.next_command


BAD = [
    pytest.param("{", "not JSON", id="not JSON"),
    pytest.param("[1]", "not an object", id="not an object"),
    pytest.param({"prompt": "?"}, "no `answer`", id="no answer"),
    pytest.param({"prompt": "?", "answer": "so\n#### "}, "no `answer`", id="nothing after the mark"),
    pytest.param({"prompt": "?", "answer": None}, "no `answer`", id="an answer of null"),
    pytest.param({"prompt": "?", "answer": True}, "no `answer`", id="an answer of true"),
    pytest.param({"prompt": "?", "answer": float("nan")}, "no `answer`", id="NaN, as pandas writes what is missing"),
    pytest.param({"prompt": "?", "answer": float("-inf")}, "no `answer`", id="an infinite answer"),
    pytest.param('{"prompt": "?", "answer": 1e999}', "no `answer`", id="a number beyond all floats"),
    pytest.param({"prompt": "?", "answer": 10**400}, "an answer of 401 characters", id="more digits than a float has"),
    pytest.param({"answer": "1"}, "no text `prompt` or `question`", id="no prompt"),
    pytest.param({"prompt": " ", "answer": "1"}, "no text `prompt` or `question`", id="an empty prompt"),
    pytest.param({"prompt": 3, "answer": "1"}, "no text `prompt` or `question`", id="a prompt that is no text"),
    pytest.param({"prompt": "?", "answer": "x" * 300}, "an answer of 300 characters", id="an essay"),
    pytest.param("[" * 100_000, "not JSON", id="brackets without end"),
    pytest.param(r'{"prompt": "\ud800 what?", "answer": "5"}', "a lone surrogate character", id="a lone surrogate"),
    pytest.param(r'{"prompt": "?", "answer": "\udfff"}', "a lone surrogate character", id="the other half"),
]


@pytest.mark.parametrize(("row", "reason"), BAD)
def test_a_bad_line_is_refused_by_number(tmp_path: Path, row: Any, reason: str) -> None:
    path = write(tmp_path / "mine.jsonl", [FIVE[0], "", row, FIVE[1]])
    with pytest.raises(LonghaulError) as caught:
        read_problems(path, Grpo())
    assert f"1 of 3 lines are no problems:\n  line 3: {reason}" in caught.value.what
    assert caught.value.exit_code == ExitCode.INPUT


@pytest.mark.parametrize(("row", "reason"), BAD)
def test_or_is_left_out_and_counted(tmp_path: Path, row: Any, reason: str) -> None:
    found = read_problems(write(tmp_path / "mine.jsonl", [FIVE[0], "", row, FIVE[1]]), Grpo(bad_rows="skip"))
    assert [(one.number, one.line) for one in found.problems] == [(0, 1), (1, 4)]
    assert [one.line for one in found.left_out] == [3]
    assert found.left_out[0].reason.startswith(reason)


STATEMENTS = ["assert f(1) == 2", "assert f(2) == 3"]
PAIRS = [{"input": "1", "output": "2"}]


def test_tests_take_the_place_of_an_answer_where_programs_are_judged(tmp_path: Path) -> None:
    rows = [{"prompt": "f?", "tests": STATEMENTS}, {"question": "echo?", "tests": json.dumps(PAIRS)}, FIVE[0]]
    path = write(tmp_path / "code.jsonl", rows)
    found = read_problems(path, Grpo(), with_tests=True).problems
    assert [(one.prompt, one.has_tests) for one in found] == [("f?", True), ("echo?", True), ("Eggs?", False)]
    assert [json.loads(one.gold) for one in found[:2]] == [STATEMENTS, PAIRS] and found[2].gold == "18"
    with pytest.raises(LonghaulError, match="line 1: no `answer`"):
        read_problems(path, Grpo())


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ([], "there are no tests"),
        ("no list", "neither JSON nor base64"),
        ([1], "must be an object with the texts input and output"),
        (["assert True", PAIRS[0]], "test 2 is of another kind than test 1"),
        ([*PAIRS, {"input": "1"}], "test 2 must be an object"),
    ],
)
def test_tests_that_cannot_be_run_are_refused_by_line(tmp_path: Path, tests: Any, reason: str) -> None:
    path = write(tmp_path / "code.jsonl", [{"prompt": "f?", "tests": STATEMENTS}, {"prompt": "g?", "tests": tests}])
    with pytest.raises(LonghaulError, match=rf"line 2: tests that cannot be run: .*{reason}"):
        read_problems(path, Grpo(), with_tests=True)


def test_of_many_bad_lines_the_first_are_named(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError) as caught:
        read_problems(write(tmp_path / "mine.jsonl", ["x"] * 9 + FIVE), Grpo())
    assert caught.value.what.count("\n  line ") == 5
    assert caught.value.what.endswith("\n  and 4 more")


def test_a_prompt_and_an_answer_are_enough(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{"prompt": "2+2?", "answer": 4}, {"prompt": "pi?", "answer": r"\pi"}])
    assert [(one.prompt, one.gold) for one in read_problems(path, Grpo()).problems] == [("2+2?", "4"), ("pi?", r"\pi")]


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("0.00001", "0.00001"), ("1e16", "10000000000000000"), ("2.5e-7", "0.00000025"), ("-1e20", "-1" + "0" * 20),
     ("4.0", "4.0"), ("4", "4")],
)  # fmt: skip
def test_an_answer_without_quotes_is_read_as_people_write_it(tmp_path: Path, answer: str, gold: str) -> None:
    path = write(tmp_path / "mine.jsonl", [f'{{"prompt": "?", "answer": {answer}}}'])
    (found,) = read_problems(path, Grpo()).problems
    assert found.gold == gold and read_number(found.gold) is not None


def test_a_file_without_problems_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError, match="holds no problem"):
        read_problems(write(tmp_path / "empty.jsonl", []), Grpo())
    with pytest.raises(LonghaulError, match="there is no such file") as caught:
        read_problems(tmp_path / "gone" / "none.jsonl", Grpo())
    assert caught.value.next_command.startswith(f"ls {tmp_path}   then: ") and "data.tasks" in caught.value.next_command


def test_where_only_bad_lines_are_left_out_they_are_counted_and_named(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", [{"prompt": "2+2?"}, {"prompt": "3+3?"}])
    with pytest.raises(
        LonghaulError, match=r"no problem with an answer; 2 lines .*:\n  line 1: no `answer`\n  line 2: "
    ):
        read_problems(path, Grpo(bad_rows="skip"))


def test_in_a_folder_the_file_of_the_split_is_read(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k_train.jsonl", FIVE)
    write(tmp_path / "gsm8k_test.jsonl", FIVE[:2])
    assert len(read_problems(tmp_path, Grpo(), "train").problems) == 5
    assert len(read_problems(tmp_path, Grpo(), "test").problems) == 2
    with pytest.raises(LonghaulError, match=r"split dev \(found: gsm8k_test.jsonl, gsm8k_train.jsonl\)"):
        read_problems(tmp_path, Grpo(), "dev")


def saved(folder: Path, layout: str, rows: list[Any]) -> Path:
    """As Hugging Face's hub and `save_to_disk` lay a data set out; the split in two files where that can be."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parts = [rows[:2], rows[2:]] if layout != "alone" else [rows]
    for number, part in enumerate(parts):
        table = arrow.table({"id": list(range(len(part)))} | {n: [row.get(n) for row in part] for n in part[0]})
        name = f"{number:05d}-of-{len(parts):05d}"
        file = folder / {"hub": f"main/train-{name}.parquet", "splits": f"train/data-{name}.arrow",
                         "alone": f"data-{name}.arrow"}[layout]  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        if layout == "hub":
            parquet.write_table(table, file)
            continue
        with arrow.OSFile(str(file), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    return folder


@pytest.mark.parametrize("layout", ["hub", "splits", "alone"])
def test_a_folder_of_a_hugging_face_dataset_is_read_like_its_lines(tmp_path: Path, layout: str) -> None:
    folder = saved(tmp_path / "set", layout, FIVE)
    if layout == "hub":
        saved(tmp_path / "set" / "not this one", "hub", FIVE[:3])
        (tmp_path / "set/not this one/main").rename(tmp_path / "set/test")
        for file in (tmp_path / "set/test").iterdir():
            file.rename(file.with_name(file.name.replace("train", "test")))
    found = read_problems(folder, Grpo())
    assert found.digest == read_problems(write(tmp_path / "five.jsonl", FIVE), Grpo()).digest
    assert summary(found) == "5 problems from set"


def test_rows_without_an_answer_are_told_by_number(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", "hub", [*FIVE[:3], {"question": "?", "answer": None}])
    with pytest.raises(LonghaulError, match="line 4: no `answer`"):
        read_problems(folder, Grpo())
    assert len(read_problems(folder, Grpo(bad_rows="skip")).problems) == 3


@pytest.mark.parametrize("layout", ["hub", "splits", "alone"])
def test_numbers_of_a_table_are_answers_but_for_those_that_stand_for_a_missing_one(tmp_path: Path, layout: str) -> None:
    answers = [18.0, float("nan"), -3.5, float("inf"), None]
    folder = saved(tmp_path / "set", layout, [{"question": "?", "answer": one} for one in answers])
    with pytest.raises(LonghaulError, match=r"3 of 5 lines are no problems:(\n  line [245]: no `answer`){3}"):
        read_problems(folder, Grpo())
    found = read_problems(folder, Grpo(bad_rows="skip"))
    assert [(one.line, one.gold) for one in found.problems] == [(1, "18.0"), (3, "-3.5")]
    assert summary(found) == "2 problems from set; 3 left out (line 2, 4, 5)"


def test_one_file_may_be_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", "alone", FIVE)
    assert len(read_problems(next(folder.iterdir()), Grpo()).problems) == 5


def test_where_two_folders_hold_the_split_both_are_named(tmp_path: Path) -> None:
    for name in ("main", "socratic"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(LonghaulError, match=r"several folders hold the split train: .*main, .*socratic"):
        read_problems(tmp_path, Grpo())


@pytest.mark.parametrize("name", ["main/train-00000-of-00001.parquet", "train/data-00000-of-00001.arrow"])
def test_a_torn_file_and_a_missing_reader_are_told_with_the_way_out(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_bytes(b"PAR1")
    if find_spec("pyarrow"):
        with pytest.raises(LonghaulError, match="cannot be used: Arrow"):
            read_problems(tmp_path, Grpo())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LonghaulError, match="files needs pyarrow") as caught:
        read_problems(tmp_path, Grpo())
    assert caught.value.next_command.startswith("pip install")


def test_the_digest_is_of_what_is_asked_and_in_which_order(tmp_path: Path) -> None:
    first = read_problems(write(tmp_path / "a.jsonl", FIVE), Grpo())
    assert read_problems(write(tmp_path / "b.jsonl", ["", *FIVE]), Grpo()).digest == first.digest
    others = [FIVE[::-1], FIVE[1:], [*FIVE[:4], {**FIVE[4], "answer": "#### 10"}]]
    digests = {read_problems(write(tmp_path / "c.jsonl", rows), Grpo()).digest for rows in others}
    assert len(digests | {first.digest}) == 4


def test_reading_goes_on_at_the_exact_row(tmp_path: Path) -> None:
    problems = read_problems(write(tmp_path / "five.jsonl", FIVE), Grpo()).problems

    def read(cursor: Cursor, count: int) -> list[str]:
        numbers, cursor.place = cursor.peek(count)
        return [problems[number].gold for number in numbers]

    unbroken, first, second = (Cursor(len(problems), 7, "reshuffle") for _ in range(3))
    expected = read(unbroken, 3) + read(unbroken, 3)
    found = read(first, 3)
    first.save(tmp_path / first.filename)
    second.load(tmp_path / first.filename)
    assert found + read(second, 3) == expected
    assert sorted(expected[:5]) == sorted(one.gold for one in problems)  # one epoch: each once


def test_a_finite_file_ends(tmp_path: Path) -> None:
    cursor = Cursor(len(read_problems(write(tmp_path / "five.jsonl", FIVE), Grpo()).problems), 7, "stop")
    numbers, cursor.place = cursor.peek(8)
    assert sorted(numbers) == [0, 1, 2, 3, 4]
    with pytest.raises(Exhausted):
        cursor.peek(1)


@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
def test_gsm8k_as_published_is_read_whole(split: str, rows: int) -> None:
    if not (DATA / f"gsm8k_{split}.jsonl").is_file():
        pytest.skip("LONGHAUL_DATA names no folder with it")
    found = read_problems(DATA, Grpo(), split)
    assert (len(found.problems), found.left_out) == (rows, ())
    assert [one.line for one in found.problems if read_number(one.gold) is None] == []
