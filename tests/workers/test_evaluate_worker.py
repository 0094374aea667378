"""The evaluation worker in this process: what it says, what it keeps, what it refuses."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Model, Profile, Run, Sampling
from tests.workers.azr.small import VOCABULARY, write_model
from tests.workers.families import write
from tests.workers.suites.samples import write_data
from workers.evaluate.job import _in_turn, evaluate
from workers.line_contract import EvaluationSpec
from workers.models import plain
from workers.rollout.native import NativeEngine
from workers.rollout.select import Portions
from workers.suites.asking import QuestionResult
from workers.suites.question import Question

WEIGHTS = Path(__file__).parents[2] / "workers" / "pocket" / "weights"
PROFILE = Profile(name="t", run=Run(threads=1, device="cpu"))


def spec_of(folder: Path, **changes: Any) -> EvaluationSpec:
    folder.mkdir(parents=True, exist_ok=True)
    given: dict[str, Any] = {
        "folder": str(folder), "model": str(WEIGHTS), "step": None, "profile": PROFILE, "suites": ("pocket",),
        "style": "run", "data": "", "examples": 4, "samples": 1, "temperature": 0.0, "max_new_tokens": 24, "ks": (1,),
        "batch_size": 5, "seed": 0,
    }  # fmt: skip
    return EvaluationSpec(**(given | changes))


def heard(spec: EvaluationSpec) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    evaluate(spec, lambda message: messages.append(msgspec.to_builtins(message)))
    return messages


def lines_of(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def scores_of(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {message["suite"]: message["metrics"] for message in messages if message["type"] == "scores"}


def test_every_answer_is_told_once_and_kept_with_its_text(tmp_path: Path) -> None:
    messages = heard(spec_of(tmp_path / "e"))
    assert [message["type"] for message in messages] == ["suite", "loading", "answers", "answers", "answers", "scores"]
    rows = [row for message in messages if message["type"] == "answers" for row in message["rows"]]
    lines = lines_of(tmp_path / "e")
    assert len(lines) == len({row[0] for row in rows}) == 12
    assert {(row[0], row[3]) for row in rows} == {
        (line["outcome"]["question_id"], sum(line["outcome"]["right"])) for line in lines
    }
    assert all(len(line["completions"]) == 1 and line["completions"][0] for line in lines)
    assert scores_of(messages)["pocket"]["mean"]["n"] == 12


def test_what_is_finished_is_not_asked_again_whatever_is_torn(tmp_path: Path) -> None:
    whole = scores_of(heard(spec_of(tmp_path / "whole")))
    spec = spec_of(tmp_path / "torn")
    heard(spec)
    (path,) = (tmp_path / "torn").glob("*.jsonl")
    kept = path.read_bytes().splitlines(keepends=True)[:7]
    path.write_bytes(b"".join(kept) + b'{"outcome": {"question_id": "abd-1", "ta')
    messages = heard(spec)
    asked = [message for message in messages if message["type"] == "answers"]
    assert [len(message["rows"]) for message in asked] == [7, 3, 2]  # what was left of each batch of 5
    assert scores_of(messages) == whole
    assert path.read_bytes().startswith(b"".join(kept))
    assert [message["type"] for message in heard(spec)] == ["suite", "answers", "scores"]  # no model is loaded


def test_answers_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """Beyond rounding, which does not change these: the same seeds belong to the same samples."""
    texts = []
    for size in (3, 100):
        folder = tmp_path / str(size)
        heard(spec_of(folder, samples=3, temperature=1.0, ks=(1, 3), batch_size=size))
        texts.append({line["outcome"]["question_id"]: line["completions"] for line in lines_of(folder)})
    assert texts[0] == texts[1]
    assert any(len(set(three)) > 1 for three in texts[0].values())


def test_another_seed_draws_other_samples_and_keeps_the_old_ones(tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "e", temperature=1.0, examples=6)
    heard(spec)
    heard(replace(spec, seed=1))
    files = sorted((tmp_path / "e").glob("*.jsonl"))
    assert len(files) == 2
    first, second = ([json.loads(line)["completions"] for line in file.read_text().splitlines()] for file in files)
    assert sorted(first) != sorted(second)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


def of_tiny(folder: Path, model: Path, **changes: Any) -> EvaluationSpec:
    given = {"model": str(model), "style": "auto", "suites": ("cruxeval-i", "cruxeval-o", "gsm8k", "pocket"),
             "data": str(write_data(folder / "data")), "examples": 2, "max_new_tokens": 8}  # fmt: skip
    return spec_of(folder / "e", **(given | changes))


def test_any_model_answers_every_suite(tiny: Path, tmp_path: Path) -> None:
    messages = heard(of_tiny(tmp_path, tiny, samples=2, temperature=1.0, ks=(1, 2)))
    found = scores_of(messages)
    assert {suite: found[suite]["mean"]["n"] for suite in found} == {
        "cruxeval-i": 2, "cruxeval-o": 2, "gsm8k": 2, "pocket": 6,
    }  # fmt: skip
    assert all(metrics["mean"]["pass_at_2"] >= metrics["mean"]["pass_at_1"] for metrics in found.values())


def test_another_engine_says_the_same(tiny: Path, tmp_path: Path) -> None:
    texts = []
    for engine in ("native", "hf"):
        spec = of_tiny(
            tmp_path / engine, tiny, suites=("gsm8k",), profile=replace(PROFILE, sampling=Sampling(engine=engine))
        )
        heard(spec)
        texts.append([line["completions"] for line in lines_of(tmp_path / engine / "e")])
    assert texts[0] == texts[1]


def test_prompts_that_do_not_fit_count_as_wrong_and_are_told(tiny: Path, tmp_path: Path) -> None:
    messages = heard(of_tiny(tmp_path, tiny, suites=("gsm8k",), max_new_tokens=4090))
    assert scores_of(messages)["gsm8k"]["maths"]["too_long"] == 2
    assert any("do not fit" in message["text"] for message in messages if message["type"] == "note")


def test_a_tokenizer_that_loses_the_prompts_is_told(tmp_path: Path) -> None:
    messages = heard(spec_of(tmp_path / "e", suites=("gsm8k",), style="plain", data=str(write_data(tmp_path / "data"))))
    assert any("meant for such text" in message["text"] for message in messages if message["type"] == "note")


def without(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def torn(name: str) -> Callable[[Path], None]:
    return lambda directory: os.truncate(directory / name, 20)


def whole(directory: Path) -> None:
    """Nothing is wrong with it."""


without_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is here")


VLLM = {"profile": replace(PROFILE, sampling=Sampling(engine="vllm"))}


def without_template(directory: Path) -> None:
    (directory / "tokenizer_config.json").write_text("{}")


def smaller(directory: Path) -> None:
    """A tokenizer with an id beyond the embedding."""
    content = json.loads((directory / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][-1], "id": VOCABULARY, "content": "<more>"})
    (directory / "tokenizer.json").write_text(json.dumps(content))


def lying(directory: Path) -> None:
    """A config that promises more rows than the embedding has."""
    smaller(directory)
    content = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(content | {"vocab_size": VOCABULARY + 100}))


@pytest.mark.parametrize(
    ("damage", "changes", "words", "remedy"),
    [
        pytest.param(without("tokenizer.json"), {}, "tokenizer.json", "ls -l", id="no tokenizer"),
        pytest.param(torn("tokenizer.json"), {}, "tokenizer.json is not valid JSON", "ls -l", id="half a tokenizer"),
        pytest.param(without("tokenizer.json"), {"style": "run"}, "tokenizer.json", "ls -l", id="nor in a style"),
        pytest.param(without("config.json"), {}, "config.json is missing", "ls -l", id="no config"),
        pytest.param(without("model.safetensors"), {}, "model.safetensors is missing", "ls -l", id="no weights"),
        pytest.param(without_template, {"style": "plain-chat"}, "chat template", "--style plain", id="no template"),
        pytest.param(smaller, {}, f"ids up to {VOCABULARY}", "ls -l", id="a vocabulary larger than the model"),
        pytest.param(lying, {}, "other shapes", "ls -l", id="an embedding with fewer rows than the config says"),
        pytest.param(whole, {"data": "nowhere"}, "nowhere", "download", id="no data"),
        pytest.param(whole, VLLM, 'pip install "longhaul\\[vllm\\]"', "--engine native or --engine hf", id="no vLLM",
                     marks=without_vllm),
    ],
)  # fmt: skip
def test_bad_input_is_told_before_anything_is_asked_with_what_helps(
    damage: Callable[[Path], None], changes: dict[str, Any], words: str, remedy: str, tiny: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    damage(model)
    with pytest.raises(LonghaulError, match=words) as caught:
        heard(of_tiny(tmp_path, model, suites=("gsm8k",), **changes))
    assert caught.value.exit_code == ExitCode.INPUT
    assert remedy in caught.value.next_command
    assert "orchestrator run" not in caught.value.next_command


def test_a_run_s_style_without_words_for_a_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError, match="pocket cannot ask the suite gsm8k"):
        heard(spec_of(tmp_path / "e", suites=("gsm8k",), data=str(write_data(tmp_path / "data"))))


def test_an_azr_style_asks_a_model_as_in_training(tiny: Path, tmp_path: Path) -> None:
    profile = replace(PROFILE, model=Model(prompt_style="azr"))
    messages = heard(of_tiny(tmp_path, tiny, profile=profile, style="run", suites=("cruxeval-i", "cruxeval-o")))
    assert scores_of(messages)["cruxeval-o"]["ded"]["malformed"] == 1.0


# --- memory ----------------------------------------------------------------------------------------------------------


def test_where_memory_ends_fewer_rollouts_are_drawn_at_one_time_and_no_question_is_lost() -> None:
    engine, notes = Portions(NativeEngine.__new__(NativeEngine), 8), list[str]()

    def work(questions: Sequence[Question]) -> list[QuestionResult]:
        if engine.max_rows > 3:
            raise RuntimeError("CUDA out of memory")
        return list(questions)  # type: ignore[arg-type]

    batches = [list(range(8)), [8, 9]]
    done = list(_in_turn(batches, work, engine, lambda message: notes.append(message.text)))  # type: ignore[arg-type]
    assert done == batches and len(notes) == 2 and engine.max_rows == 2


def test_an_answer_that_does_not_fit_ends_it_with_advice() -> None:
    def work(questions: Sequence[Question]) -> list[QuestionResult]:
        raise RuntimeError("CUDA out of memory")

    engine = Portions(NativeEngine.__new__(NativeEngine), 2)
    with pytest.raises(LonghaulError) as caught:
        list(_in_turn([[1]], work, engine, lambda message: None))  # type: ignore[list-item]
    assert caught.value.exit_code == ExitCode.CUDA_OOM and "--max-new-tokens" in caught.value.next_command


def test_an_engine_that_computes_another_model_answers_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the record of Qwen 3 forgot its norms of queries and keys."""
    write("qwen3", tmp_path / "model")
    told: Any = plain.architecture_of
    monkeypatch.setattr(plain, "architecture_of", lambda config: dataclasses.replace(told(config), qk_norm=""))
    spec = spec_of(tmp_path, model=str(tmp_path / "model"), style="plain")
    with pytest.raises(LonghaulError, match="the engine native does not compute this model") as caught:
        heard(spec)
    assert caught.value.exit_code is ExitCode.INPUT
    assert caught.value.next_command == "the same command with --engine hf"


def test_published_problems_with_tests_are_evaluated_with_pass_at_k(tmp_path: Path) -> None:
    data = str(write_data(tmp_path / "data"))
    spec = spec_of(
        tmp_path / "e", suites=("humaneval",), style="plain", data=data, samples=2, temperature=1.0, ks=(1, 2)
    )
    found = scores_of(heard(spec))["humaneval"]["code"]
    assert (found["n"], found["samples"]) == (2, 4)
    assert found["pass_at_2"] >= found["pass_at_1"]
