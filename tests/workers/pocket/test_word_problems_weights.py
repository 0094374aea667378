"""The shipped model of word problems: it loads like any other, and the gap between working and guessing is in it."""

import json

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from profiles.built_in import BUILT_IN
from workers.pocket.gate import Measured, failures, measure
from workers.pocket.model import WORD_PROBLEMS_WEIGHTS, build_model
from workers.pocket.word_problems.corpus import held_out_stories
from workers.pocket.word_problems.speech import WORD_PROBLEMS
from workers.pocket.word_problems.story import NAMES_OF_STEPS


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(WORD_PROBLEMS_WEIGHTS).eval()


@pytest.fixture(scope="module")
def measured(model: PreTrainedModel) -> dict[str, Measured]:
    return measure(model, held_out_stories(num_each=20, seed=4), WORD_PROBLEMS)


def test_it_is_small_and_of_the_size_that_the_code_builds(model: PreTrainedModel) -> None:
    assert (WORD_PROBLEMS_WEIGHTS / "model.safetensors").stat().st_size <= 2_000_000
    assert model.num_parameters() == build_model(vocabulary=WORD_PROBLEMS).num_parameters()
    assert len(PreTrainedTokenizerFast.from_pretrained(WORD_PROBLEMS_WEIGHTS)) == model.config.vocab_size
    assert BUILT_IN["pocket-words"].directory == WORD_PROBLEMS_WEIGHTS


def test_its_tokenizer_is_the_one_that_the_code_writes(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = tmp_path_factory.mktemp("tokenizer")
    WORD_PROBLEMS.save(made)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (WORD_PROBLEMS_WEIGHTS / name).read_text() == (made / name).read_text()


@pytest.mark.parametrize("task", NAMES_OF_STEPS)
def test_work_is_far_better_than_guessing_and_rare(measured: dict[str, Measured], task: str) -> None:
    # 20 problems each, for speed: a standard error of 0.1 at most, so the gate's own figures get wide margins here
    figures = measured[task]
    assert figures.worked >= 0.60
    assert figures.direct <= figures.worked - 0.25
    assert figures.worked_share <= 0.50
    assert figures.malformed <= 0.15


def test_the_shipped_figures_pass_the_gate() -> None:
    tasks = json.loads((WORD_PROBLEMS_WEIGHTS / "gate.json").read_text())["tasks"]
    assert failures({task: Measured(**figures) for task, figures in tasks.items()}) == []
