"""Rollouts as text: groups, verdicts, answers as the trainer finds them, and files that are not whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.line_worker import started
from profiles.errors import ExitCode, LonghaulError
from state.layout import RunDir
from tests.builders import build_store
from tests.orchestrator.web.served import HOSTILE, byte_tokenizer, rollouts
from workers.line_contract import RolloutsSpec, RolloutTexts
from workers.rollouts import LONGEST, MOST_ROLLOUTS, Row, answer_finder, cut, segments, texts


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return build_store(tmp_path / "night", cycles=3, steps=60)


def tokenizers(run: RunDir) -> tuple[str, ...]:
    return tuple(str(path.parent) for path in run.checkpoints.glob("*/tokenizer.json"))


def told(run: RunDir, file: Path, group: str = "", style: str = "boxed") -> RolloutTexts:
    return texts(RolloutsSpec(str(file), tokenizers(run), style, group))


def one(text: str, reward: float | None, **more: Any) -> dict[str, Any]:
    return {"text": text, "reward": reward, **more}


def test_the_group_whose_rewards_differ_most_is_shown_first(run: RunDir) -> None:
    file = rollouts(
        run, 3, 60, [one("a", 1.0), one("b", 1.0)], [one("c", 0.0), one("\\boxed{7}", 1.0, is_correct=True)]
    )
    found = told(run, file)
    assert (found.step, found.chosen) == (60, "1")
    assert [(group.key, group.size, group.right, group.mean) for group in found.groups] == [
        ("0", 2, 0, 1.0),
        ("1", 2, 1, 0.5),
    ]
    assert [(rollout.answer, rollout.reward, rollout.is_correct) for rollout in found.rollouts] == [
        (None, 0.0, False),
        ("7", 1.0, True),
    ]
    assert told(run, file, "0").chosen == "0"
    assert told(run, file, "no such group").chosen == "1"


def test_text_of_a_model_passes_through_unchanged_by_the_process(run: RunDir) -> None:
    file = rollouts(run, 3, 60, [one(HOSTILE, 0.0)], prompt=HOSTILE)
    spec = RolloutsSpec(str(file), tokenizers(run), "boxed")
    with started("workers.rollouts", spec, name="rollouts", kept="the run") as worker:
        (found,) = worker.hear()
    assert isinstance(found, RolloutTexts)
    assert (found.prompt, found.rollouts[0].pieces) == (HOSTILE, [(True, HOSTILE)])


def test_a_rollout_that_was_not_judged_says_why(run: RunDir) -> None:
    file = rollouts(
        run, 3, 60, [one("a", 0.5, failure="the function raised"), one("b", 0.5, is_finite=False), one("c", 1.0)]
    )
    first, second, third = told(run, file).rollouts
    assert first.failure == "the function raised"
    assert second.reward is None and "not finite" in second.failure
    assert third.failure == "" and third.reward == 1.0


def test_what_an_environment_said_is_told_apart() -> None:
    row = Row(0, (), (1, 2, 3, 4, 5), "stop", is_own=(True, True, False, False, True))
    assert list(segments(row)) == [(True, [1, 2]), (False, [3, 4]), (True, [5])]
    assert list(segments(Row(0, (), (1, 2), "stop"))) == [(True, [1, 2])]


@pytest.mark.parametrize(
    ("style", "role", "task", "text", "answer"),
    [
        ("boxed", "", "", "so \\boxed{42}", "42"),
        ("chat", "", "", "nothing", None),
        ("pocket", "solve", "ded", "'uv'<eos>", "'uv'"),
        ("azr", "solve", "ded", "thinking </think> <answer>```output\n[1, 2]\n```</answer>", "[1, 2]"),
        ("azr", "propose", "ded", "nothing", None),
        ("azr", "solve", "own-kind", "\\boxed{1}", "1"),
    ],
)
def test_an_answer_is_found_as_the_trainer_finds_it(
    style: str, role: str, task: str, text: str, answer: str | None
) -> None:
    assert answer_finder(style)(Row(0, (), (), "stop", role=role, task=task), text) == answer


def test_a_proposal_shows_its_program_and_input() -> None:
    text = "```python\ndef f(a):\n    return a\n```\n```input\n'x'\n```"
    shown = answer_finder("azr")(Row(0, (), (), "stop", role="propose", task="ded"), f"</think><answer>{text}</answer>")
    assert shown is not None and "def f(a):" in shown and "'x'" in shown


def test_a_file_that_is_still_being_written_shows_what_is_there(run: RunDir) -> None:
    file = rollouts(run, 3, 60, [one("first", 1.0), one("second", 0.0)])
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1] + lines[2][:40])
    assert [rollout.pieces[0][1] for rollout in told(run, file).rollouts] == ["first"]


def test_rows_without_tokens_are_no_rollouts(run: RunDir) -> None:
    file = rollouts(run, 3, 60, [one("a", 1.0)])
    header, *_ = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(header + b'{"value":1.5}\n')
    assert told(run, file) == RolloutTexts(60, [], "", "", [], 0)


@pytest.mark.parametrize("content", [b"", b"no json", b"{}", b"\xff\xfe"])
def test_a_file_that_is_none_is_refused_in_words(run: RunDir, content: bytes) -> None:
    file = rollouts(run, 3, 60, [one("a", 1.0)])
    file.write_bytes(content)
    with pytest.raises(LonghaulError, match="cannot be read") as refused:
        told(run, file)
    assert refused.value.exit_code == ExitCode.INPUT


def test_a_file_that_is_gone_is_told_with_how_to_keep_more(run: RunDir) -> None:
    with pytest.raises(LonghaulError, match="are gone") as refused:
        told(run, run.rollout_file(1, 1))
    assert "keep_rollout_steps" in refused.value.next_command


def test_without_a_tokenizer_that_is_said(run: RunDir, tmp_path: Path) -> None:
    file = rollouts(run, 3, 60, [one("a", 1.0)])
    with pytest.raises(LonghaulError, match="no tokenizer"):
        texts(RolloutsSpec(str(file), (str(tmp_path / "nowhere"),), "boxed"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LonghaulError, match="is no tokenizer"):
        texts(RolloutsSpec(str(file), (str(tmp_path),), "boxed"))


def test_the_first_directory_with_a_tokenizer_is_taken(run: RunDir, tmp_path: Path) -> None:
    file = rollouts(run, 3, 60, [one("a", 1.0)])
    byte_tokenizer(tmp_path / "model")
    assert texts(RolloutsSpec(str(file), (str(tmp_path / "pruned"), str(tmp_path / "model")), "boxed")).rollouts


def test_a_large_group_and_a_long_text_are_cut_and_said_to_be(run: RunDir) -> None:
    file = rollouts(run, 3, 60, [one(str(number), 0.0) for number in range(MOST_ROLLOUTS + 3)])
    found = told(run, file)
    assert (len(found.rollouts), found.left_out) == (MOST_ROLLOUTS, 3)
    text = cut("x" * (LONGEST + 1000))
    assert len(text) < LONGEST + 100 and "1,000 characters are left out" in text
