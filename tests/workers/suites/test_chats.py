"""Chats as prompts: the whole list goes through the template; a system message is never lost."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from profiles.errors import LonghaulError
from profiles.schema import Data, Model, Profile
from workers.models import random_init
from workers.problems.problem import Message
from workers.suites.answer_format import BOXED, VerbatimFormat
from workers.suites.answer_formats import format_of_run
from workers.suites.question import WordProblem
from workers.suites.registry import load_suites
from workers.suites.suite import Answer
from workers.tasks.judge import Correctness

CHAT = (Message("system", "Be brief."), Message("user", "1+1?"), Message("assistant", "2"), Message("user", "2+2?"))
ITEM = WordProblem("2+2?", Fraction(0), messages=CHAT)
REFUSES = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
DROPS = "{% for message in messages if message['role'] != 'system' %}[{{ message['content'] }}]{% endfor %}"


def asked(folder: Path, style: str, template: str = random_init.CHAT_TEMPLATE, item: WordProblem = ITEM) -> str:
    random_init.byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return format_of_run(Profile(name="own", model=Model(prompt_style=style)), folder).ask("maths", item)  # type: ignore[arg-type]


def test_the_style_chat_renders_every_message_and_adds_no_words(tmp_path: Path) -> None:
    assert asked(tmp_path, "chat") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    )
    text = WordProblem("2+2?", Fraction(0))
    assert asked(tmp_path, "chat", item=text) == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"


def test_boxed_chat_adds_its_words_to_the_last_message_of_the_user(tmp_path: Path) -> None:
    found = asked(tmp_path, "boxed-chat")
    assert found.count(BOXED) == 1 and f"2+2?\n{BOXED}<|im_end|>" in found


@pytest.mark.parametrize("template", [REFUSES + DROPS, DROPS], ids=["refused by the template", "dropped by it"])
def test_a_system_message_that_the_template_does_not_render_begins_the_first_message_of_the_user(
    tmp_path: Path, template: str
) -> None:
    assert asked(tmp_path, "chat", template) == "[Be brief.\n\n1+1?][2][2+2?]"


@pytest.mark.parametrize("style", ["verbatim", "boxed"])
def test_a_style_without_a_template_takes_a_chat_of_one_message_only(tmp_path: Path, style: str) -> None:
    with pytest.raises(LonghaulError, match=f"the prompt style {style} has no chat template") as caught:
        asked(tmp_path, style)
    assert "model.prompt_style=chat" in caught.value.next_command
    assert asked(tmp_path, style, item=WordProblem("2+2?", Fraction(0), messages=CHAT[3:])).startswith("2+2?\n")


def test_the_suite_held_out_asks_the_held_out_part_and_judges_by_the_runs_answers(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"prompt": f"{number}?", "answer": f"x_{number}" if number % 2 else number} for number in range(60)]
    path.write_text("\n".join(map(json.dumps, rows)))
    profile = Profile(name="own", data=Data(tasks=str(path), held_out=0.2))
    (suite,) = load_suites(["held-out"], None, 0, profile=profile)
    assert 4 < len(suite.questions) < 30
    right = suite.judge([Answer(one, one.gold) for one in suite.questions], None)
    wrong = suite.judge([Answer(one, one.gold + "1") for one in suite.questions], None)
    assert set(right) == {Correctness.CORRECT} and set(wrong) == {Correctness.WRONG}
    path.write_text("\n".join(map(json.dumps, rows[::-1])))
    (again,) = load_suites(["held-out"], None, 0, profile=profile)
    assert {one.question_id for one in again.questions} == {one.question_id for one in suite.questions}
    with pytest.raises(LonghaulError, match="no run is named"):
        load_suites(["held-out"], None, 0)


# --- conversations with an environment -------------------------------------------------------------------------------


def talker(folder: Path, template: str = random_init.CHAT_TEMPLATE, style: str = "chat") -> VerbatimFormat:
    random_init.byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    found = format_of_run(Profile(name="own", model=Model(prompt_style=style)), folder)  # type: ignore[arg-type]
    assert isinstance(found, VerbatimFormat)
    return found


TALK = [{"role": "user", "content": "Guess."}]
MORE = [{"role": "user", "content": "more"}]


@pytest.mark.parametrize("style", ["chat", "boxed-chat"])
def test_replies_and_what_follows_them_are_together_what_the_template_renders(tmp_path: Path, style: str) -> None:
    chat = talker(tmp_path, style=style)
    whole = chat.opening([*TALK, {"role": "assistant", "content": "5"}, *MORE])
    assert chat.opening(TALK) + "5" + chat.following(MORE) == whole
    assert chat.following(MORE) == "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_knows_no_tools_shows_what_they_say_as_words_of_the_user(tmp_path: Path) -> None:
    picky = (
        "{% for m in messages %}{% if m['role'] not in ['user', 'assistant'] %}{{ raise_exception('no') }}{% endif %}"
        "{% if loop.index0 % 2 != (m['role'] == 'assistant') %}{{ raise_exception('turns') }}{% endif %}"
        "[{{ m['role'][0] }}:{{ m['content'] }}]{% endfor %}"
    )
    said = [{"role": "tool", "content": "12"}, {"role": "user", "content": "Go on."}]
    assert talker(tmp_path, picky).following(said) == "][u:12\n\nGo on.]"


def test_tools_are_shown_by_the_template(tmp_path: Path) -> None:
    template = "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0]['content'] }}"
    assert talker(tmp_path, template).opening(TALK, [{"name": "add"}]) == '[{"name": "add"}]Guess.'


@pytest.mark.parametrize("style", ["verbatim", "boxed"])
def test_without_a_template_texts_are_joined_exactly_as_they_are(tmp_path: Path, style: str) -> None:
    plain = talker(tmp_path, style=style)
    assert plain.opening([*TALK, *MORE]) == "Guess.more"
    assert plain.following([*MORE, *MORE]) == "moremore"
