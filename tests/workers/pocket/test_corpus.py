"""The corpus: its answers are right when the programs are really run, and it never touches the held-out fold."""

import ast
from random import Random

import pytest

from workers.pocket.corpus import CELLS, Recipe, make_example
from workers.pocket.evaluation import held_out_problems
from workers.pocket.example import Example
from workers.pocket.language import is_held_out, normal_form, render
from workers.pocket.tokenizer import decode, encode
from workers.pocket.vocabulary import UNKNOWN
from workers.tasks.prompts.pocket import PocketStyle

STYLE = PocketStyle()


@pytest.fixture(scope="module")
def corpus() -> list[Example]:
    rng = Random(3)
    return [make_example(rng, Recipe()) for _ in range(6000)]


def run_as_python(program_text: str, argument: str) -> object:
    scope: dict = {}
    exec(program_text, scope)  # noqa: S102  # programs of our own generator
    return scope["f"](ast.literal_eval(argument))


def programs_in(text: str) -> list[str]:
    """All complete programs that a text shows."""
    found = []
    for part in text.split("def f(a):")[1:]:
        body, _, rest = part.partition("\n    return ")
        if rest:
            found.append(f"def f(a):{body}\n    return {rest[0]}")
    return found


def test_held_out_programs_differ_from_the_corpus_in_their_syntax_trees(corpus: list[Example]) -> None:
    shown = {ast.dump(ast.parse(text)) for one in corpus for text in programs_in(one.prompt + one.completion)}
    hidden = {ast.dump(ast.parse(render(program))) for one in corpus for program in one.programs}
    asked = {ast.dump(ast.parse(render(problem.program))) for problem in held_out_problems()}
    assert len(shown) > 3000
    assert len(asked) == 900
    assert not asked & (shown | hidden)


def test_the_fold_alone_keeps_them_apart_for_any_seed(corpus: list[Example]) -> None:
    shown = [text for one in corpus for text in programs_in(one.prompt + one.completion)]
    assert not any(is_held_out(normal_form(text)) for text in shown)
    assert all(is_held_out(normal_form(render(problem.program))) for problem in held_out_problems(50, seed=9))


@pytest.mark.parametrize("worked", [True, False], ids=["worked", "direct"])
def test_deduction_answers_are_right(corpus: list[Example], worked: bool) -> None:
    for one in (e for e in corpus if e.cell == "ded" and e.worked == worked):
        program, argument = one.prompt.removeprefix("<ded>").removesuffix("<out>").split("<in>")
        answer = STYLE.parse_answer("ded", one.completion)
        assert answer == repr(run_as_python(program, argument))


@pytest.mark.parametrize("worked", [True, False], ids=["worked", "direct"])
def test_abduction_answers_are_right(corpus: list[Example], worked: bool) -> None:
    for one in (e for e in corpus if e.cell == "abd" and e.worked == worked):
        program, output = one.prompt.removeprefix("<abd>").removesuffix("<in>").split("<out>")
        answer = STYLE.parse_answer("abd", one.completion)
        assert answer is not None
        assert repr(run_as_python(program, answer)) == output


@pytest.mark.parametrize("worked", [True, False], ids=["worked", "direct"])
def test_induction_answers_explain_all_pairs_shown(corpus: list[Example], worked: bool) -> None:
    checked = 0
    for one in (e for e in corpus if e.cell == "ind" and e.worked == worked and e.complete):
        pairs = one.prompt.removeprefix("<ind>").removesuffix("<sep><prog>").split("<sep>")
        program = STYLE.parse_answer("ind", one.completion)
        assert program is not None
        for argument, output in (pair.split("<out>") for pair in pairs):
            assert repr(run_as_python(program, argument)) == output
        checked += 1
    assert checked > 10


def test_a_try_that_is_rejected_is_not_the_one_that_is_kept(corpus: list[Example]) -> None:
    searches = [one.completion for one in corpus if one.cell == "ind" and "<no>" in one.completion]
    assert len(searches) > 200
    for text in searches:
        work, _, program = text.partition("<prog>")
        kept = program.split("\n    ")[1]
        rejected = [tried.rpartition("\n    ")[2].partition("<out>")[0] for tried in work.split("<no>")[:-1]]
        assert kept not in rejected


@pytest.mark.parametrize("cell", ["pded", "pabd", "pind"])
def test_proposals_are_well_formed(corpus: list[Example], cell: str) -> None:
    for one in (e for e in corpus if e.cell == cell):
        assert STYLE.parse_proposal(cell[1:], one.completion) is not None  # type: ignore[arg-type]


def test_every_cell_is_there_and_every_text_is_of_the_vocabulary(corpus: list[Example]) -> None:
    assert {one.cell for one in corpus} == set(CELLS)
    for one in corpus:
        text = one.prompt + one.completion
        assert decode(encode(text)) == text
        assert UNKNOWN not in text


def test_the_same_seed_makes_the_same_corpus() -> None:
    assert [make_example(Random(4), Recipe()) for _ in range(20)] == [
        make_example(Random(4), Recipe()) for _ in range(20)
    ]
