"""What `init` guesses and writes, without a process: columns, reward, settings, the two files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.machine import Card, Machine
from orchestrator.new_job.data import built_in, likely_data
from orchestrator.new_job.hardware import Hardware, found_here, hardware_of
from orchestrator.new_job.mapping import ColumnMap, mapping_of
from orchestrator.new_job.models import likely_model, model_of
from orchestrator.new_job.profile_text import profile_text
from orchestrator.new_job.reward_text import function_of, reward_text
from orchestrator.new_job.rewards import likely_reward, reward_of
from orchestrator.new_job.settings import HELD_OUT, Job, settings_of
from orchestrator.new_job.writing import write_all
from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB
from profiles.knobs import knobs, sections
from profiles.load import load_profile
from profiles.shapes import ARCHITECTURES
from workers.line_contract import Column, ColumnKind, Looked


def column(name: str, kind: ColumnKind = "text", longest: int = 40) -> Column:
    return Column(name, kind, 1.0, longest // 2, longest, longest, "an example")


# --- columns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "prompt", "answer"),
    [
        pytest.param([column("prompt"), column("answer")], "prompt", "answer", id="what is read by default"),
        pytest.param([column("question"), column("answer", "number")], "question", "answer", id="a number answers"),
        pytest.param([column("id"), column("Problem"), column("Solution")], "Problem", "Solution", id="any case"),
        pytest.param([column("user_query"), column("gold-answer")], "user_query", "gold-answer", id="a part of a name"),
        pytest.param([column("messages", "messages"), column("text")], "messages", "", id="a conversation"),
        pytest.param(
            [column("a", longest=9), column("b", longest=90)], "b", "", id="the longest text, if no name tells"
        ),
        pytest.param([column("prompt"), column("answer", "list")], "prompt", "", id="a list is no answer"),
        pytest.param([column("input"), column("output")], "input", "output", id="input and output"),
        pytest.param([column("prompt"), column("response", longest=900)], "prompt", "", id="an essay is no answer"),
    ],
)
def test_columns_are_guessed_by_their_names(columns: list[Column], prompt: str, answer: str) -> None:
    found = mapping_of(columns, "x.jsonl")
    assert (found.prompt, found.answer) == (prompt, answer)


def test_named_columns_win_and_none_means_no_answer() -> None:
    columns = [column("prompt"), column("text"), column("answer")]
    found = mapping_of(columns, "x.jsonl", "text", "none")
    assert (found.prompt, found.answer, found.others) == ("text", "", ("prompt", "answer"))


@pytest.mark.parametrize(
    ("columns", "prompt", "answer", "said"),
    [
        ([column("id", "number")], "", "", "has no column of text that could be a prompt"),
        ([column("prompt")], "promt", "", "has no column 'promt'; did you mean prompt?"),
        ([column("prompt"), column("id", "other")], "id", "", "holds other in its column 'id', not text or messages"),
        ([column("prompt"), column("tags", "list")], "", "tags", "holds list in its column 'tags', not text or number"),
    ],
)
def test_columns_that_cannot_be_are_refused_with_those_that_are_there(
    columns: list[Column], prompt: str, answer: str, said: str
) -> None:
    with pytest.raises(LonghaulError) as caught:
        mapping_of(columns, "x.jsonl", prompt, answer)
    assert f"the data x.jsonl {said}; its columns:\n  {columns[0].name}" in caught.value.what
    assert caught.value.exit_code == ExitCode.INPUT


@pytest.mark.parametrize(
    ("mapping", "changed"),
    [
        (ColumnMap("prompt", "answer"), {}),
        (ColumnMap("question", ""), {}),
        (ColumnMap("question", "answer", others=("prompt",)), {"prompt": "question"}),
        (ColumnMap("question", "solution"), {"answer": "solution"}),
        (ColumnMap("messages", "", "tests"), {}),
        (ColumnMap("prompt", "", "test_list"), {"tests": "test_list"}),
        (ColumnMap("problem", "solution"), {"prompt": "problem", "answer": "solution"}),
    ],
)
def test_only_columns_that_would_not_be_read_anyway_are_mapped(mapping: ColumnMap, changed: dict[str, str]) -> None:
    assert mapping.changed == changed


# --- reward -----------------------------------------------------------------------------------------------------------


def test_the_likely_reward_compares_answers_where_there_are_any() -> None:
    assert likely_reward(ColumnMap("prompt", "answer")) == "correct"
    assert likely_reward(ColumnMap("prompt", "")) == "own"


@pytest.mark.parametrize(
    ("wanted", "answer", "said"),
    [
        ("corect", "answer", "there is no reward 'corect'; did you mean correct?"),
        ("nowhere.py:f", "answer", "there is no file"),
        ("correct,correct", "answer", "--reward names a part twice"),
        ("correct", "", "compares with right answers, but no column holds them"),
        (",", "answer", "no reward is named"),
    ],
)
def test_a_reward_that_cannot_be_is_refused(wanted: str, answer: str, said: str) -> None:
    with pytest.raises(LonghaulError, match=r".") as caught:
        reward_of(wanted, ColumnMap("prompt", answer))
    assert said in caught.value.what and "there are correct," in caught.value.next_command


# --- card -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"), [("8gb", "8gb"), ("16 GB", "16gb"), ("40gb", "40gb"), ("24", "24gb"), ("CPU", "cpu")]
)
def test_cards_are_named_by_their_size(name: str, found: str) -> None:
    assert hardware_of(name).name == found


@pytest.mark.parametrize("name", ["large", "0gb", "nan", "-8gb", "1e9"])
def test_a_card_of_no_size_is_a_wrong_command_line(name: str) -> None:
    with pytest.raises(LonghaulError) as caught:
        hardware_of(name)
    assert caught.value.exit_code == ExitCode.USAGE


def test_the_card_of_this_machine_is_the_first_or_none() -> None:
    card = Card("a card", int(23.6 * GIB))
    assert found_here(Machine((card,))).name == "24gb"
    assert found_here(Machine((), "nvidia-smi is not installed")).name == "cpu"


# --- model ------------------------------------------------------------------------------------------------------------


def model_at(folder: Path, shape: str = "qwen2.5-1.5b", **changes: Any) -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**ARCHITECTURES[shape], **changes}))
    (folder / "model.safetensors").touch()
    return str(folder)


@pytest.mark.parametrize(
    ("wanted", "said", "following"),
    [
        ("Qwen/Some-Model", "there is no model directory", "hf download Qwen/Some-Model --local-dir models/Some-Model"),
        ("models/mine", "there is no model directory", "hf download OWNER/NAME --local-dir models/mine"),
        ("pocket", "plays against itself", "the same command with --model pocket-words"),
        ("empty", "holds no model: there is no config.json", "hf download OWNER/NAME --local-dir empty"),
        ("half", "has no weights", "(goes on where it stopped)"),
        ("adapter", "holds an adapter but no model", "export --merged"),
    ],
)
def test_a_model_that_is_not_there_names_what_to_download(
    wanted: str, said: str, following: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, file in (("empty", "README.md"), ("half", "config.json"), ("adapter", "adapter_config.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    with pytest.raises(LonghaulError) as caught:
        model_of(wanted)
    assert said in caught.value.what and following in caught.value.next_command


def test_the_only_model_and_the_only_data_of_a_folder_are_offered(tmp_path: Path) -> None:
    assert (likely_model(tmp_path), likely_data(tmp_path)) == ("pocket-words", "pocket-words")
    model = model_at(tmp_path / "models" / "one")
    (tmp_path / "train.jsonl").touch()
    (tmp_path / "test.jsonl").touch()
    assert (likely_model(tmp_path), likely_data(tmp_path)) == (model, str(tmp_path / "train.jsonl"))


# --- settings and files -----------------------------------------------------------------------------------------------


FEW = 12
"""Rows: too few to hold some of them out."""


def job(
    folder: Path, model: str, card: str = "cpu", reward: str = "", columns: tuple[Column, ...] = (), rows: int = FEW
) -> Job:
    data = folder / "train.jsonl"
    looked = Looked(str(data), rows, list(columns or (column("prompt"), column("answer"))))
    mapping = mapping_of(looked.columns, looked.file)
    chosen = reward_of(reward or likely_reward(mapping), mapping)
    return Job("mine", folder, model_of(model), str(data), looked, mapping, chosen, hardware_of(card))


def written(job: Job) -> dict[str, Any]:
    """The tables of the profile's text, which has been loaded and checked where this version knows all knobs."""
    text = profile_text(job, settings_of(job, function_of(job.mapping)), function_of(job.mapping))
    for line in text.splitlines():
        assert not (" = " in line and line[0] != "#") or "  # " in line or line.startswith(("extends", "description"))
    table = tomllib.loads(text)
    if "columns" not in table["data"] or "data.columns" in sections():
        job.profile_file.write_text(text)
        load_profile(str(job.profile_file))
    return table


def test_a_built_in_model_extends_its_profile_and_changes_little(tmp_path: Path) -> None:
    assert written(job(tmp_path, "pocket-words")) == {
        "extends": "pocket-grpo",
        "description": "GRPO with pocket-words on own data",
        "run": {"device": "cpu"},
        "data": {"tasks": str(tmp_path / "train.jsonl")},
        "grpo": {},
    }


@pytest.mark.parametrize(
    ("shape", "card", "model", "memory"),
    [
        pytest.param("qwen2.5-1.5b", "16gb", {"quantization": "none"}, {"cap_gib": 0.0}, id="16 bits where they do"),
        pytest.param("qwen2.5-3b", "8gb", {}, None, id="4 bits where 16 do not fit"),
        pytest.param(
            "qwen2.5-1.5b", "cpu", {"quantization": "none", "dtype": "float32"}, {"cap_gib": 0.0}, id="no card"
        ),
    ],
)
def test_the_card_decides_about_bits(
    shape: str, card: str, model: dict[str, Any], memory: dict[str, Any] | None, tmp_path: Path
) -> None:
    path = model_at(tmp_path / "model", shape)
    table = written(job(tmp_path, path, card))
    assert table["extends"] == "grpo-1.5b-8gb"
    assert table["model"] == {"path": path, "prompt_style": "boxed", **model} and table.get("memory") == memory


def test_a_model_that_fits_only_with_the_planners_settings_gets_them(tmp_path: Path) -> None:
    small = job(tmp_path, model_at(tmp_path / "model", "qwen2.5-3b"), "4gb")
    reasons = {one.knob: one.reason for one in settings_of(small, "f").settings}
    assert "to fit 4 GB, by the planner" in reasons.values() and written(small)["extends"] == "grpo-1.5b-8gb"


def test_a_model_that_is_too_large_is_refused_in_the_planners_words(tmp_path: Path) -> None:
    large = model_at(tmp_path / "model", "qwen2.5-3b", num_hidden_layers=200)
    with pytest.raises(LonghaulError) as caught:
        settings_of(job(tmp_path, large, "8gb"), "f")
    assert caught.value.exit_code == ExitCode.CUDA_OOM and "is too large for 8gb: it needs up to" in caught.value.what
    assert "phase     allocated" in caught.value.what and "what can help: a larger card" in caught.value.next_command


def test_a_chat_model_is_asked_by_its_template(tmp_path: Path) -> None:
    path = model_at(tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert "prompt_style" not in written(job(tmp_path, path, "12gb"))["model"]  # the shipped profile's


def test_long_prompts_get_room(tmp_path: Path) -> None:
    table = written(
        job(tmp_path, model_at(tmp_path / "model"), "16gb", columns=(column("prompt", longest=3000), column("answer")))
    )
    assert table["sampling"] == {"max_prompt_tokens": 1024} and table["optimizer"] == {"row_tokens": 1024 + 4 * 2048}


@pytest.mark.skipif(HELD_OUT not in knobs(), reason="no rows can be held out")
@pytest.mark.parametrize(
    ("rows", "columns", "share"),
    [
        (20, ("prompt", "answer"), 0.2),
        (500, ("prompt", "answer"), 0.1),
        (FEW, ("prompt", "answer"), None),
        (500, ("prompt",), 0.1),
    ],
)
def test_rows_are_held_out_with_and_without_answers_if_there_are_enough(
    rows: int, columns: tuple[str, ...], share: float | None, tmp_path: Path
) -> None:
    table = written(job(tmp_path, "pocket-words", columns=tuple(map(column, columns)), rows=rows))
    assert table["data"].get("held_out") == share and ("validation" in table) == (share is not None)


def test_a_written_reward_says_from_where_a_held_out_row_is_solved(tmp_path: Path) -> None:
    answered, rest = (column("prompt"), column("answer")), (column("prompt"),)
    for reward, columns, least in (("own", answered, 0.8), ("own,format,length", answered, 1.8), ("own", rest, 0.5)):
        table = written(job(tmp_path, "pocket-words", reward=reward, columns=columns, rows=500))
        assert table["grpo"]["reward"] == {"solved_at": least}


def test_own_rewards_and_other_columns_are_named(tmp_path: Path) -> None:
    columns = (column("problem"), column("solution"), column("level", "number"))
    table = written(job(tmp_path, "pocket-words", reward="correct,own", columns=columns))
    assert table["grpo"] == {"rewards": ["correct", f"{tmp_path}/rewards.py:brief"]}
    assert table["data"]["columns"] == {"prompt": "problem", "answer": "solution"}


@pytest.mark.parametrize(
    ("reward", "columns", "comments"),
    [
        ("correct", ("prompt", "answer"), ['rewards = ["correct", "{0}:brief"]', "reward_weights = [1.0, 0.5]"]),
        ("own", ("prompt", "answer"), ['rewards = ["correct", "{0}:brief"]', "reward_weights = [1.0, 0.5]"]),
        ("own", ("prompt",), ['rewards = ["{0}:to_the_point", "{0}:short"]', "reward_weights = [1.0, 0.5]"]),
        ("correct,own", ("prompt", "answer"), ["reward_weights = [1.0, 0.5]"]),
        ("correct,own,format", ("prompt", "answer"), ["reward_weights = [1.0, 0.5, 0.25]"]),
    ],
)
def test_comments_show_another_reward_that_a_profile_could_have(
    reward: str, columns: tuple[str, ...], comments: list[str], tmp_path: Path
) -> None:
    one = job(tmp_path, "pocket-words", reward=reward, columns=tuple(map(column, columns)))
    function = function_of(one.mapping)
    text = profile_text(one, settings_of(one, function), function)
    found = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# reward")]
    assert found == [line.format(one.reward_file) for line in comments]
    uncommented = "\n".join(line for line in text.splitlines() if not line.startswith("rewards = "))
    tomllib.loads(uncommented.replace("# reward", "reward"))


class Row(SimpleNamespace):
    """A problem as functions are given it."""


def functions_of(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(compile(text, "rewards.py", "exec"), found)  # noqa: S102 - the file as a run imports it
    return found


def test_the_reward_file_works_for_answers_and_prefers_short_ones() -> None:
    text = reward_text(ColumnMap("question", "solution", others=("level",)), 100)
    brief = functions_of(text)["brief"]
    facts = {"is_truncated": False, "is_correct": True, "tokens": 10}
    row = Row(prompt="What is 2 + 2?", answer="4")
    assert brief(row, "4", facts) == pytest.approx(0.98)
    assert brief(row, "4", facts | {"tokens": 1000}) == pytest.approx(0.8)
    assert brief(row, "5", facts | {"is_correct": False}) == brief(row, "4", facts | {"is_truncated": True}) == 0.0
    assert "columns of your data: question, solution, level" in text


def test_the_reward_file_works_without_answers() -> None:
    text = reward_text(ColumnMap("prompt", ""), 100)
    row = Row(prompt="Write about autumn leaves.", answer="")
    found = functions_of(text)["to_the_point"]
    assert found(row, "Autumn, again.", {"is_truncated": False}) == pytest.approx(1 / 4)
    assert found(Row(prompt=""), "", {"is_truncated": False}) == found(row, "autumn", {"is_truncated": True}) == 0.0


@pytest.mark.parametrize(
    ("mapping", "name", "columns", "rewards"),
    [
        (ColumnMap("question", "solution"), "mentions_answer", {"solution": [4, 4]}, [1.0, 0.0]),
        (ColumnMap("question", "my answer"), "mentions_answer", {"answer": ["4", "4"]}, [1.0, 0.0]),
        (ColumnMap("question", "class"), "mentions_answer", {"answer": ["4", "4"]}, [1.0, 0.0]),
        (ColumnMap("prompt", ""), "short", {"level": [1, 2]}, [1 / 3, 1 / 2]),
    ],
)
def test_the_commented_function_works_once_it_is_no_comment(
    mapping: ColumnMap, name: str, columns: dict[str, list[Any]], rewards: list[float]
) -> None:
    _, _, comment = reward_text(mapping, 100).partition("#\n")
    found = functions_of("\n".join(line.removeprefix("# ") for line in comment.splitlines()))
    assert found[name](prompts=["p", "p"], completions=["is 4", "is?"], **columns) == pytest.approx(rewards)


def test_a_hostile_column_cannot_leave_the_comment_that_lists_it() -> None:
    text = reward_text(ColumnMap('"""\nraise SystemExit\n"""', "answer\\"), 100)
    assert set(functions_of(text)) >= {"brief"}


# --- writing ----------------------------------------------------------------------------------------------------------


def test_files_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    write_all(tmp_path / "new" / "job", {"a.toml": "a", "b.py": "b"})
    assert {path.name: path.read_text() for path in (tmp_path / "new" / "job").iterdir()} == {
        "a.toml": "a",
        "b.py": "b",
    }
    with pytest.raises((LonghaulError, OSError)):
        write_all(tmp_path / "other" / "job", {"a.toml": "a", "no/folder.py": "b"})
    assert not (tmp_path / "other").exists()


def test_the_built_in_problems_need_no_mapping() -> None:
    assert mapping_of(built_in().columns, "pocket-words").changed == {}


def test_hardware_of_a_cpu_has_no_card() -> None:
    assert Hardware("cpu", Machine(())).gigabytes == 0.0
