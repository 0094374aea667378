"""Own data: which columns are read and kept, chats as prompts, several files, and what is refused, by line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Columns, Data, Grpo, Profile
from workers.grpo.order import ProblemFile
from workers.grpo.trainer import training_problems
from workers.problems.of_profile import problems_of, sizes_of
from workers.problems.problem import Message, Problem
from workers.problems.reader import read_problems, summary
from workers.problems.split import held_out_part, is_held_out

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
ANSWER = {"role": "assistant", "content": "4"}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def many(count: int, offset: int = 0) -> list[Any]:
    return [{"prompt": f"{number} + 1?", "answer": number + 1} for number in range(offset, offset + count)]


def profile(**data: Any) -> Profile:
    return Profile(name="own", data=Data(**data))


def test_every_other_column_is_kept_under_its_own_name(tmp_path: Path) -> None:
    row = {"id": 7, "problem": "2+2?", "solution": "so\n#### 4", "meta": {"level": [1, None]}, "big": 10**30}
    columns = Columns(prompt="problem", answer="solution")
    (found,) = read_problems(write(tmp_path / "own.jsonl", [row]), Grpo(), columns=columns).problems
    assert (found.prompt, found.gold) == ("2+2?", "4")
    kept = {"id": 7, "solution": "so\n#### 4", "meta": {"level": [1, None]}, "big": str(10**30)}
    assert found.columns == kept


@pytest.mark.parametrize("columns", [Columns(prompt="problem"), Columns(answer="problem"), Columns(messages="problem")])
def test_a_column_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, columns: Columns) -> None:
    path = write(tmp_path / "own.jsonl", [{"prompt": "?", "answer": 1, "id": 2}])
    with pytest.raises(LonghaulError, match="line 1: no column `problem`; there are prompt, answer, id"):
        read_problems(path, Grpo(), columns=columns)


def test_a_chat_is_a_prompt_and_its_last_user_message_is_the_text(tmp_path: Path) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "3"}, {"type": "text", "text": "+3?"}]}]
    rows = [{"prompt": CHAT, "answer": 4}, {"messages": parts, "answer": 6}]
    first, second = read_problems(write(tmp_path / "chat.jsonl", rows), Grpo()).problems
    assert first.messages == (Message("system", "Be brief."), Message("user", "2+2?")) and first.prompt == "2+2?"
    assert second.prompt == "3+3?" and second.columns == {"answer": 6}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        pytest.param({"prompt": [], "answer": 1}, "must end with one of the user", id="an empty chat"),
        pytest.param({"prompt": [*CHAT, ANSWER], "answer": 4}, "must end with", id="answered"),
        pytest.param({"prompt": [{"role": "user", "content": " "}], "answer": 4}, "no text of a user", id="blank"),
        pytest.param({"prompt": [{"role": "pirate", "content": "?"}], "answer": 4}, "needs a role", id="another role"),
        pytest.param({"prompt": [{"role": "user", "content": [{"image": 1}]}], "answer": 4}, "images", id="an image"),
        pytest.param('{"prompt": "?", "answer": 1, "answer": 2}', "`answer` is there twice", id="a column twice"),
        pytest.param('{"prompt": "?", "answer": 1, "x": ' + "[" * 99 + "]" * 99 + "}", "deeper than 64", id="too deep"),
        pytest.param('{"prompt": "?", "answer": 1, "x": "\\ud800"}', "surrogate character in the column", id="half"),
    ],
)  # fmt: skip
def test_rows_that_nobody_can_use_are_refused_by_line(tmp_path: Path, row: Any, reason: str) -> None:
    path = write(tmp_path / "bad.jsonl", [{"prompt": "?", "answer": 1}, row])
    with pytest.raises(LonghaulError, match=f"line 2: .*{reason}"):
        read_problems(path, Grpo())
    assert len(read_problems(path, Grpo(bad_rows="skip")).problems) == 1


def test_a_row_without_an_answer_is_a_problem_where_no_reward_needs_one(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", [{"prompt": "Tell a joke.", "topic": "bees"}, {"prompt": "?", "answer": "4"}])
    found = read_problems(path, Grpo(), needs_answer=False)
    assert [(one.gold, one.columns) for one in found.problems] == [("", {"topic": "bees"}), ("4", {"answer": "4"})]
    other = write(
        tmp_path / "other.jsonl", [{"prompt": "Tell a joke.", "topic": "cats"}, {"prompt": "?", "answer": "4"}]
    )
    assert read_problems(other, Grpo(), needs_answer=False).digest != found.digest  # its reward reads the column


def test_a_json_list_is_read_like_its_lines_and_a_torn_one_is_refused(tmp_path: Path) -> None:
    rows = many(3)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    lines = read_problems(write(tmp_path / "b.json", rows), Grpo())
    assert read_problems(tmp_path / "a.json", Grpo()).digest == lines.digest
    (tmp_path / "a.json").write_text(json.dumps(rows)[:-9])
    with pytest.raises(LonghaulError, match="not JSON"):
        read_problems(tmp_path / "a.json", Grpo())


def test_columns_of_a_table_that_json_cannot_hold_are_named_and_left_out(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    image = [{"bytes": b"\x89PNG", "path": "a.png"}]
    table = arrow.table({"question": ["?"], "answer": ["4"], "image": image, "level": [2], "loss": [float("nan")]})
    parquet.write_table(table, tmp_path / "t.parquet")
    found = read_problems(tmp_path / "t.parquet", Grpo())
    assert found.problems[0].columns == {"answer": "4", "level": 2, "loss": None}
    assert list(found.not_json) == ["image"] and "left out: image (struct<bytes: binary" in summary(found)
    twice = arrow.Table.from_arrays([arrow.array(["?"])] * 2, names=["answer", "answer"])
    with arrow.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, arrow.ipc.new_stream(sink, twice.schema) as stream:
        stream.write_table(twice)
    with pytest.raises(LonghaulError, match="the column 'answer' twice"):
        read_problems(tmp_path / "t.arrow", Grpo())


# --- several files ---------------------------------------------------------------------------------------------------


def test_a_mixture_holds_each_file_in_turn_and_names_it(tmp_path: Path) -> None:
    names = tuple(str(write(tmp_path / f"{name}.jsonl", many(3, start))) for name, start in (("a", 0), ("b", 3)))
    found = problems_of(profile(tasks=names), None)
    assert [(one.number, one.line, Path(one.source).stem) for one in found.problems] == [
        (0, 1, "a"), (1, 2, "a"), (2, 3, "a"), (3, 1, "b"), (4, 2, "b"), (5, 3, "b"),
    ]  # fmt: skip
    assert summary(found) == f"6 problems from {names[0]} (3), {names[1]} (3)" and sizes_of(found, names) == [3, 3]
    (tmp_path / "b.jsonl").write_text("")
    with pytest.raises(LonghaulError, match=r"b.jsonl cannot be used: it holds no problem"):
        problems_of(profile(tasks=names), None)


# --- the held-out part -----------------------------------------------------------------------------------------------


def asked(problems: Any) -> set[str]:
    return {one.prompt for one in problems.problems}


def test_a_held_out_problem_never_trains_in_any_order_nor_in_a_file_that_grew(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    of_run = profile(tasks=str(path), held_out=0.2)
    write(path, many(200))
    first = asked(held_out_part(problems_of(of_run, None), 0.2))
    assert 20 < len(first) < 60 and asked(training_problems(of_run)) == asked(problems_of(of_run, None)) - first
    # Grown, in another order, with copies of what is held out.
    write(path, [*many(300)[::-1], *({"prompt": f" {prompt}\n", "answer": 0} for prompt in first)])
    grown = held_out_part(problems_of(of_run, None), 0.2)
    assert first <= {one.prompt.strip() for one in grown.problems} and len(asked(grown)) == len(grown.problems)
    assert not first & {one.prompt.strip() for one in training_problems(of_run).problems}


def test_a_resume_with_a_grown_file_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", many(50))
    of_run = profile(tasks=str(path), held_out=0.2)
    ProblemFile(training_problems(of_run)).save(tmp_path / "problems.json")
    assert list(json.loads((tmp_path / "problems.json").read_bytes())) == ["digest", "problems"]
    write(path, many(60))
    with pytest.raises(LonghaulError, match="have changed since checkpoint") as caught:
        ProblemFile(training_problems(of_run)).load(tmp_path / "problems.json")
    assert caught.value.next_command == "restore the file, or: python -m orchestrator run --run NEW-NAME"


def test_a_chat_of_one_message_is_its_text_and_a_larger_share_holds_out_more() -> None:
    for number in range(200):
        text = Problem(0, 1, f"{number}?", "1")
        chat = Problem(0, 1, f"{number}?", "1", messages=(Message("user", f"{number}?"),))
        assert is_held_out(text, 0.3) == is_held_out(chat, 0.3) <= is_held_out(text, 0.4)


def test_a_share_that_leaves_a_part_empty_is_refused(tmp_path: Path) -> None:
    of_run = profile(tasks=str(write(tmp_path / "own.jsonl", many(2))), held_out=0.0001)
    with pytest.raises(LonghaulError, match="both parts need some"):
        training_problems(of_run)


# --- the hub ---------------------------------------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_data_set_of_the_hub_is_read_at_a_commit_or_the_way_to_copy_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub").constants
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "prepared")
    monkeypatch.setattr("huggingface_hub._snapshot_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    with pytest.raises(LonghaulError, match="not on this machine") as caught:
        read_problems("hf:someone/sums@main", Grpo())
    assert caught.value.next_command.startswith("hf download --repo-type dataset someone/sums --revision main")
    assert str(tmp_path / "datasets--someone--sums") in caught.value.next_command
    snapshot = tmp_path / "datasets--someone--sums" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    write(snapshot / "train.jsonl", many(3))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    found = read_problems("hf:someone/sums", Grpo())
    assert found.revisions == {"hf:someone/sums": COMMIT} and len(found.problems) == 3
    assert summary(found) == f"3 problems from hf:someone/sums at {COMMIT}"
    ProblemFile(found).save(tmp_path / "problems.json")
    assert ProblemFile.revisions(tmp_path) == found.revisions
    with pytest.raises(LonghaulError, match="split"):
        read_problems("hf:someone/sums", Grpo(), "dev")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LonghaulError, match="needs datasets") as caught:
        read_problems("hf:someone/sums", Grpo())
    assert caught.value.exit_code == ExitCode.INPUT and "longhaul[hub]" in caught.value.next_command


@pytest.mark.parametrize("name", ["hf:sums", "hf:a/b/c", "hf:a/b@", "hf:"])
def test_another_form_of_a_hub_name_is_refused(name: str) -> None:
    with pytest.raises(LonghaulError, match="its form is hf:owner/name"):
        read_problems(name, Grpo())
