"""The shipped model: it loads like any other, and the gap between working and guessing is really in it."""

import json

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from profiles.task_kinds import NAMES
from workers.pocket.evaluation import held_out_problems
from workers.pocket.gate import Measured, failures, measure
from workers.pocket.model import WEIGHTS, build_model
from workers.tasks.items import Task


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(WEIGHTS).eval()


@pytest.fixture(scope="module")
def measured(model: PreTrainedModel) -> dict[Task, Measured]:
    return measure(model, held_out_problems(num_each=20, seed=4))


def test_it_is_small_and_of_the_size_that_the_code_builds(model: PreTrainedModel) -> None:
    assert (WEIGHTS / "model.safetensors").stat().st_size <= 12_000_000
    assert model.num_parameters() == build_model().num_parameters()
    assert len(PreTrainedTokenizerFast.from_pretrained(WEIGHTS)) == model.config.vocab_size


@pytest.mark.parametrize("task", NAMES)
def test_work_is_far_better_than_guessing(measured: dict[Task, Measured], task: Task) -> None:
    # 20 problems a task, for speed: a standard error of 0.1 at most, so the gate's own figures get wide margins here
    assert measured[task].worked >= {"abd": 0.80, "ded": 0.90, "ind": 0.60}[task]
    assert measured[task].direct <= {"abd": 0.60, "ded": 0.50, "ind": 0.35}[task]


@pytest.mark.parametrize("task", NAMES)
def test_it_rarely_works_unasked_and_nearly_always_answers(measured: dict[Task, Measured], task: Task) -> None:
    assert measured[task].worked_share <= 0.40
    assert measured[task].malformed <= 0.15


def test_the_shipped_figures_pass_the_gate() -> None:
    tasks = json.loads((WEIGHTS / "gate.json").read_text())["tasks"]
    assert failures({task: Measured(**figures) for task, figures in tasks.items()}) == []


def test_the_gate_names_what_it_misses() -> None:
    poor = Measured(300, worked=0.5, direct=0.5, greedy=0.5, sampled=0.5, sampled_worked=0.5, worked_share=0.0,
                    malformed=0.5, mean_tokens=9.0)  # fmt: skip
    found = failures({"ded": poor})
    assert found[0] == "ded: forced worked is 0.500, must be >= 0.93"
    assert len(found) == 4
