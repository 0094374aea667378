"""The how-tos of docs/environments.md: short, and each plays as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from profiles.load import load_profile
from profiles.rules import check
from tests import REPOSITORY
from tests.workers.environments.test_runner import Limits
from workers.environments.runner import EnvironmentRunner

TEXT = (REPOSITORY / "docs/environments.md").read_text(encoding="utf-8")
BLOCKS = {
    name: body for name, body in re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
}


@pytest.mark.parametrize("name", [*BLOCKS])
def test_a_how_to_is_at_most_twenty_lines(name: str) -> None:
    assert len([line for line in BLOCKS[name].splitlines() if line.strip()]) <= 20


def test_the_environment_of_the_how_to_plays_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(BLOCKS["count.py"])
    with EnvironmentRunner("count.py:CountDown", {}, Limits(), tmp_path, cwd=tmp_path) as runner:
        first = runner.open({"number": 2}).result()
        assert first.messages[0]["content"] == "Count down from 2.\n"
        assert not runner.step(first.episode, " 2").result().is_over
        last = runner.step(first.episode, "1").result()
        assert (last.is_over, last.reward) == (True, 1.0)
        wrong = runner.open({"number": 2}).result().episode
        assert runner.step(wrong, "5").result().reward == 0.0


def test_the_tool_of_the_how_to_is_shown_and_called(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(BLOCKS["shop.py"])
    with EnvironmentRunner("shop.py:Shop", {}, Limits(), tmp_path, cwd=tmp_path) as runner:
        first = runner.open({"prompt": "What is tea?", "answer": "4"}).result()
        assert first.tools[0]["function"]["name"] == "price"
        assert first.tools[0]["function"]["parameters"]["required"] == ["item"]

        def said(reply: str) -> str:
            found = runner.step(first.episode, reply).result()
            assert not found.is_over and found.messages[0]["role"] == "tool"
            return str(found.messages[0]["content"])

        def call(text: str) -> str:
            return said(f"<tool_call>{text}</tool_call>")

        assert call('{"name": "price", "arguments": {"item": "tea"}}') == "4"
        assert call("price(tea)").startswith("The tool call is not JSON")
        assert call('{"name": "cost", "arguments": {}}') == "There is no tool 'cost'. There are: price."
        assert "missing a required argument: 'item'" in call('{"name": "price", "arguments": {}}')
        assert call('{"name": "price", "arguments": {"item": "gold"}}') == "The tool price failed: KeyError: 'gold'."
        last = runner.step(first.episode, "It is 4 coins.").result()
        assert (last.is_over, last.reward) == (True, 1.0)


@pytest.mark.parametrize("name", ["count.toml", "play.toml", "wordle.toml"])
def test_the_profiles_of_the_how_tos_break_no_rule(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(BLOCKS[name])
    assert check(load_profile(str(path)).profile) == []


def test_the_built_in_environments_say_what_the_words_model_can_read(tmp_path: Path) -> None:
    from workers.pocket.vocabulary import UNKNOWN
    from workers.pocket.word_problems.problems import draw_problems
    from workers.pocket.word_problems.speech import WORD_PROBLEMS

    def is_read(text: str) -> bool:
        return WORD_PROBLEMS.ids[UNKNOWN] not in WORD_PROBLEMS.encode(text)

    with EnvironmentRunner("guess", {}, Limits(), tmp_path) as runner:
        rows = runner.rows()
        assert rows is not None and len({json.dumps(row) for row in rows}) == len(rows) > 1000
        for row in rows[:9]:
            first = runner.open(row).result()
            assert is_read(first.messages[0]["content"]) and str(row["number"]) not in first.messages[0]["content"]
            for guess in range(1, row["number"]):
                found = runner.step(first.episode, rf"\boxed{{{guess}}}").result()
                assert is_read(found.messages[0]["content"]) and (found.reward, found.is_over) == (0.0, False)
            assert runner.step(first.episode, str(row["number"])).result().reward == 1.0
    with EnvironmentRunner("calculator", {}, Limits(), tmp_path) as runner:
        assert runner.stop == ("=",) and runner.rows() is None
        for story in draw_problems(12):
            first = runner.open({"prompt": story.text, "answer": str(story.answer)}).result()
            for step in story.steps:
                asked = f"<think>{step.left}{step.sign}{step.right}="
                value = runner.step(first.episode, asked).result().messages[0]["content"]
                assert value == str(step.value) and is_read(value)
            last = runner.step(first.episode, rf"\boxed{{{story.answer}}}").result()
            assert (last.reward, last.is_over) == (1.0, True)
        odd = runner.open({"prompt": "?", "answer": "1"}).result().episode
        assert runner.step(odd, "what is =").result().messages[0]["content"] == "?"
        assert runner.step(odd, "7/2=").result().messages[0]["content"] == "?"
