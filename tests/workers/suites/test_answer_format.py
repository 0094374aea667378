"""Answer formats: what is asked, and where in a completion the answer is."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Model, Profile
from tests.workers.suites.samples import ABD, DED, DOUBLE, IND, MATHS
from workers.suites.answer_format import PlainFormat, StyleFormat, VerbatimFormat
from workers.suites.answer_formats import format_of
from workers.suites.question import Question
from workers.suites.suite import Suite
from workers.tasks.prompts.azr import AzrStyle
from workers.tasks.prompts.pocket import PocketStyle

PLAIN = PlainFormat(marks=("<|im_end|>",))


@pytest.mark.parametrize(
    ("question", "shown", "hidden"),
    [
        pytest.param(DED, ["a * 2", "f(3)"], "6", id="deduction hides the output"),
        pytest.param(ABD, ["a * 2", "6"], "3", id="abduction hides the input"),
        pytest.param(IND, ["f(1) == 2", "f(2) == 4"], "a * 2", id="induction hides the program"),
        pytest.param(IND, ["f(1) == 2"], "'xx'", id="and half of the pairs"),
        pytest.param(MATHS, ["Two and two?", "####"], "4", id="a word problem hides its answer"),
    ],
)
def test_a_prompt_shows_all_but_the_answer(question: Question, shown: list[str], hidden: str) -> None:
    prompt = PLAIN.ask(question.kind, question.item)
    assert all(text in prompt for text in shown)
    assert hidden not in prompt


@pytest.mark.parametrize(
    ("kind", "completion", "expected"),
    [
        ("ded", "It doubles.\nAnswer: 6", "6"),
        ("ded", "Answer: `[1, 2]`<|im_end|>", "[1, 2]"),
        ("ded", "**Answer:** 'a b'", "'a b'"),
        ("ded", "answer: 6\n\nNow for another question\nAnswer: 9", "6"),
        ("ded", "The answer: six", None),
        ("ded", "Answer:", None),
        ("ded", "", None),
        ("abd", "Answer: 1, 'b'", "1, 'b'"),
        ("abd", "Answer: f([1], 2)", "[1], 2"),
        ("ind", f"So:\n```python\n{DOUBLE}\n```\nAnswer: done", DOUBLE),
        ("ind", f"```\nno\n```\n```py\n{DOUBLE}\n```", DOUBLE),
        ("ind", f"```python\n{DOUBLE}", None),
        ("maths", "2 + 2\n#### 4<|im_end|>", "4"),
        ("maths", "4", None),
    ],
)
def test_the_answer_is_found_where_it_was_asked_to_stand(kind: str, completion: str, expected: str | None) -> None:
    assert PLAIN.answer(kind, completion) == expected


def test_a_style_asks_as_it_does_in_training() -> None:
    style = PocketStyle()
    answer_format = StyleFormat(style)
    assert answer_format.ask("ded", DED.item) == style.solve("ded", DED.item)
    assert (answer_format.name, answer_format.stop) == ("pocket", style.stop)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("two and two</think> <answer>4</answer>", "4"),
        ("so</think><answer>#### 4 </answer> more", "4"),
        ("so</think><answer>\\n$4.00\\n</answer>".replace("\\n", "\n"), "$4.00"),
        ("<answer>4</answer>", None),
        ("so</think> 4", None),
    ],
)
def test_a_published_style_asks_word_problems_in_its_own_form(completion: str, expected: str | None) -> None:
    answer_format = StyleFormat(AzrStyle())
    prompt = answer_format.ask("maths", MATHS.item)
    assert "Two and two?" in prompt and prompt.endswith("Assistant: <think>")
    assert answer_format.answer("maths", completion) == expected
    assert answer_format.is_worked("maths", "so</think>") and not answer_format.is_worked("maths", "</think>")


def test_an_answer_without_the_tags_counts_as_none() -> None:
    answer_format = StyleFormat(AzrStyle())
    assert answer_format.answer("ded", "so</think><answer>```output\n6\n```</answer>") == "6"
    assert answer_format.answer("ded", "<answer>```output\n6\n```</answer>") is None


@pytest.mark.parametrize(
    ("completion", "expected", "is_worked"),
    [
        ("\\boxed{4}<end>", "4", False),
        ("#### 4<end>", "4", False),
        ("<think>2+2=4</think>\\boxed{4}<end>", "4", True),
        ("<think>\\boxed{4}", None, True),
        ("2+2=4", None, False),
        ("", None, False),
    ],
)
def test_verbatim_asks_the_problem_alone_and_reads_answers_as_the_verifier_does(
    completion: str, expected: str | None, is_worked: bool
) -> None:
    answer_format = VerbatimFormat(marks=("<end>",))
    assert answer_format.ask("maths", MATHS.item) == "Two and two?\n"
    assert answer_format.answer("maths", completion) == expected
    assert answer_format.is_worked("maths", completion) == is_worked


def test_a_style_without_words_for_a_kind_is_told_before_anything_is_asked() -> None:
    with pytest.raises(LonghaulError) as caught:
        Suite("gsm8k", [MATHS]).prompts(StyleFormat(PocketStyle()))
    assert caught.value.exit_code == ExitCode.INPUT
    assert "pocket cannot ask the suite gsm8k" in caught.value.what


TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def directory(tmp_path: Path, template: str | None) -> Path:
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 3, "content": "<end>", "special": true}]}')
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    return tmp_path


@pytest.mark.parametrize(
    ("style", "template", "name"),
    [("auto", None, "plain"), ("auto", TEMPLATE, "plain-chat"), ("plain", TEMPLATE, "plain")],
)
def test_a_chat_template_is_used_where_there_is_one(
    style: str, template: str | None, name: str, tmp_path: Path
) -> None:
    answer_format = format_of(style, Profile(name="x"), directory(tmp_path, template))
    prompt = answer_format.ask("maths", MATHS.item)
    assert answer_format.name == name
    assert prompt.endswith("<assistant>") == (name == "plain-chat")
    assert answer_format.answer("maths", "#### 4<end>") == "4"


@pytest.mark.parametrize(
    ("style", "template", "words"),
    [
        ("plain-chat", None, "is missing"),
        ("plain-chat", "{% for %}", "is not a template"),
        ("auto", "{{ raise_exception('no users here') }}", "no users here"),
    ],
)
def test_a_missing_or_bad_template_is_told(style: str, template: str | None, words: str, tmp_path: Path) -> None:
    with pytest.raises(LonghaulError, match=words) as caught:
        format_of(style, Profile(name="x"), directory(tmp_path, template))
    assert caught.value.exit_code == ExitCode.INPUT


def test_a_run_is_asked_in_the_style_of_its_profile(tmp_path: Path) -> None:
    files = directory(tmp_path, TEMPLATE)
    assert format_of("run", Profile(name="x"), files).name == "pocket"
    assert format_of("run", Profile(name="x", model=Model(prompt_style="azr-chat")), files).name == "azr-chat"
    assert format_of("run", Profile(name="x", model=Model(prompt_style="verbatim")), files).name == "verbatim"
