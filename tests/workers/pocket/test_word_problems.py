"""Word problems: told truly, answered rightly, held out by their computation, and written in a vocabulary that fits."""

import ast
import operator
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.schema import Grpo
from workers.pocket.vocabulary import UNKNOWN
from workers.pocket.word_problems.corpus import WordRecipe, held_out_stories, make_example
from workers.pocket.word_problems.problems import NAME, draw_problems, main
from workers.pocket.word_problems.speech import (
    MAX_COMPLETION_TOKENS,
    MAX_PROMPT_TOKENS,
    WORD_PROBLEMS,
    direct,
    is_worked,
    worked,
)
from workers.pocket.word_problems.story import MOST, NAMES_OF_STEPS, Story, draw_of_fold, draw_story
from workers.problems.reader import read_problems
from workers.verifiers.verify import judge

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
stories = st.builds(lambda seed, steps: draw_story(Random(seed), steps), st.integers(0, 10**9), st.integers(1, 3))


def test_a_story_is_the_same_for_the_same_seed() -> None:
    assert draw_story(Random(5), 3).text == (
        "Leo buys 7 bags of 2 plums. He sells 5 of them. He buys 4 more. How many plums does Leo have now?"
    )


@given(stories)
def test_each_step_is_right_and_begins_with_what_the_last_one_gave(story: Story) -> None:
    before = None
    for text in map(str, story.steps):
        left, sign, right, value = re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", text).groups()
        assert SIGNS[sign](int(left), int(right)) == int(value)
        assert before in (None, left)
        assert 1 <= int(value) <= MOST
        before = value
    assert story.answer == int(before)


@given(stories)
def test_the_text_tells_every_number_of_the_computation_in_its_order(story: Story) -> None:
    told = [int(number) for number in re.findall(r"\d+", story.text)]
    assert told == [story.steps[0].left, *(step.right for step in story.steps)]


@given(stories, st.booleans())
def test_the_verifier_of_every_run_calls_the_answer_right_and_another_wrong(story: Story, is_work: bool) -> None:
    completion = worked(story) if is_work else direct(story)
    assert judge(str(story.answer), completion).correct
    assert not judge(str(story.answer + 1), completion).correct
    assert is_worked(completion) == is_work


@given(stories)
def test_everything_is_of_the_vocabulary_and_fits_the_lengths(story: Story) -> None:
    for text in (story.prompt + worked(story), story.prompt + direct(story)):
        assert WORD_PROBLEMS.decode(WORD_PROBLEMS.encode(text)) == text
        assert UNKNOWN not in text
    assert len(WORD_PROBLEMS.encode(story.prompt)) <= MAX_PROMPT_TOKENS
    assert len(WORD_PROBLEMS.encode(worked(story))) + 1 <= MAX_COMPLETION_TOKENS


def test_no_computation_of_validation_is_asked_in_the_corpus() -> None:
    rng = Random(0)
    corpus = [make_example(rng, WordRecipe()) for _ in range(4000)]
    asked = {
        example.completion.removeprefix("<think>").partition("</think>")[0] for example in corpus if example.worked
    }
    texts = {example.prompt for example in corpus}
    held_out = held_out_stories(num_each=100)
    assert len(asked) > 1000
    assert not asked & {"\n".join(map(str, one.story.steps)) for one in held_out}
    assert not texts & {one.prompt for one in held_out}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_folds_never_meet_and_both_are_found(steps: int) -> None:
    rng = Random(steps)
    found = {
        held_out: {draw_of_fold(rng, steps, held_out=held_out).steps for _ in range(200)} for held_out in (True, False)
    }
    assert found[True] and found[False]
    assert not found[True] & found[False]


def test_a_held_out_draw_has_as_many_of_each_number_of_operations_and_no_text_twice() -> None:
    drawn = held_out_stories(num_each=40)
    assert [one.task for one in drawn] == [name for name in NAMES_OF_STEPS for _ in range(40)]
    assert len({one.prompt for one in drawn}) == 120
    assert all(len(one.story.steps) == NAMES_OF_STEPS.index(one.task) + 1 for one in drawn)


def test_what_a_run_learns_on_is_made_without_a_file_and_never_asks_what_validation_asks() -> None:
    problems = read_problems(Path(NAME), Grpo()).problems
    held_out = held_out_stories(num_each=300)
    assert [one.number for one in problems] == list(range(1024))
    assert len({one.prompt for one in problems}) == 1024
    assert not {one.prompt for one in problems} & {one.story.text for one in held_out}
    assert not {one.steps for one in draw_problems()} & {one.story.steps for one in held_out}


@pytest.mark.parametrize("fold", ["train", "validation"])
def test_the_same_problems_can_be_had_as_a_file(fold: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--count", "30", *(["--held-out"] if fold == "validation" else [])])
    (tmp_path / f"{fold}.jsonl").write_text(capsys.readouterr().out)
    found = read_problems(tmp_path, Grpo(), fold).problems
    made = draw_problems(30, held_out=fold == "validation")
    assert [(one.prompt, one.gold) for one in found] == [(one.text, str(one.answer)) for one in made]
    assert all(one.is_held_out == (fold == "validation") for one in made)


def test_an_example_is_a_story_of_its_cell_with_its_right_answer() -> None:
    rng = Random(1)
    examples = [make_example(rng, WordRecipe()) for _ in range(300)]
    assert {example.cell for example in examples} == set(NAMES_OF_STEPS)
    assert {example.worked for example in examples} == {True, False}
    for example in (example for example in examples if example.worked):
        steps = example.completion.removeprefix("<think>").partition("</think>")[0].split("\n")
        assert len(steps) == NAMES_OF_STEPS.index(example.cell) + 1
        assert all(str(ast.literal_eval(step.partition("=")[2])) == step.partition("=")[2] for step in steps)
        assert example.completion.endswith(f"\\boxed{{{steps[-1].partition('=')[2]}}}")
