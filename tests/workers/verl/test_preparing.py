"""What a job gets before it starts: problems, questions, a tokenizer, a head under verl's name or none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profiles.built_in import BUILT_IN
from profiles.errors import ExitCode, LonghaulError
from tests.workers.verl.profiles import debug, large
from workers.external.processes import secured
from workers.models.load import Tokenizer
from workers.suites.answer_formats import format_of_run
from workers.verl import held_out, preparing, signals
from workers.verl.held_out import HeldOut
from workers.verl.preparing import Layout
from workers.verl.reward import CODE
from workers.verl.tasks import training_problems, training_rows

MODEL = BUILT_IN["pocket-words"].directory


def attempt(folder: Path, profile: Any, step: int) -> Any:
    """What `begin` reads of an attempt."""
    said: list[str] = []
    return SimpleNamespace(
        profile=profile,
        dir=SimpleNamespace(path=folder),
        spec=SimpleNamespace(head=SimpleNamespace(step=step)),
        warn=said.append,
        said=said,
    )


def head_of(folder: Path, layout: Layout) -> Path:
    head = folder / "c0001-s000007-token"
    head.mkdir()
    preparing.write_layout(head, layout)
    return head


def begin(folder: Path, profile: Any, head: Path | None) -> Any:
    paths = {"train": folder / "t.parquet", "validation": folder / "v.parquet"}
    return preparing.begin(attempt(folder, profile, 7), MODEL, head, last_step=9, **paths)


def test_a_head_of_as_many_gpus_is_resumed_under_the_name_by_which_verl_knows_its_step(tmp_path: Path) -> None:
    head = head_of(tmp_path, Layout("0.9.1", "fsdp2", 2))
    work = begin(tmp_path, debug(), head)
    assert work.resume.name == "global_step_7" and work.resume.resolve() == head
    assert work.environment[signals.BEGAN_AT] == "7"


def test_a_head_of_another_number_of_gpus_is_refused_with_both_numbers(tmp_path: Path) -> None:
    head = head_of(tmp_path, Layout("0.9.1", "fsdp2", 4))
    with pytest.raises(LonghaulError, match="shards of 4 GPUs, and this run now trains with fsdp2 on 2") as told:
        begin(tmp_path, debug(), head)
    assert told.value.exit_code == ExitCode.INPUT and "verl.on_other_gpus=weights" in told.value.next_command


def test_several_hosts_without_a_cluster_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(LonghaulError, match=r"run\.hosts = 8 needs a Ray cluster"):
        begin(tmp_path, large(), None)


def test_a_job_that_a_scheduler_starts_again_takes_nothing_of_its_first_start_for_its_own(tmp_path: Path) -> None:
    first = begin(tmp_path, debug(), None)
    signals.tell(first.control, 5, "update")
    signals.ask(first.control, signals.STOP)
    signals.answer(first.control, 5, frozenset())
    first.metrics.write_text('{"step": 5, "data": {}}\n')
    second = begin(tmp_path, debug(), None)
    assert signals.told(second.control) == (signals.NO_STEP, "") and signals.asked(second.control) == frozenset()
    assert signals.saved(second.control) == [] and not second.metrics.exists()


def on_hosts(monkeypatch: pytest.MonkeyPatch, folder: Path, **more: str) -> None:
    """What a launcher sets that has started eight hosts."""
    said = {"HOST": "0", "HOSTS": "8", "MEETING": str(folder / "hosts.json"), "INTERFACE": "lo", **more}
    for name, value in said.items():
        monkeypatch.setenv(f"LONGHAUL_{name}", value)


def test_several_hosts_of_a_launcher_get_a_cluster_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # somebody else's
    on_hosts(monkeypatch, tmp_path)
    work = begin(tmp_path, large(), None)
    assert work.address == "" and Path(work.spool).is_dir()
    assert work.environment["GLOO_SOCKET_IFNAME"] == "lo" and work.environment["NCCL_SOCKET_IFNAME"] == "=lo"
    Path(work.spool).rmdir()


def test_other_hosts_than_the_profile_s_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_hosts(monkeypatch, tmp_path, HOSTS="4")
    with pytest.raises(LonghaulError, match=r"run\.hosts = 8, and the launcher .* as host 0 of 4") as told:
        begin(tmp_path, large(), None)
    assert told.value.exit_code == ExitCode.INPUT and "run.hosts=4" in told.value.next_command


def test_megatron_s_checkpoints_load_on_any_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    head = head_of(tmp_path, Layout("0.9.1", "megatron", 64))
    assert begin(tmp_path, large(verl__strategy="megatron"), head).resume is not None


def test_the_head_of_step_0_is_the_model_itself(tmp_path: Path) -> None:
    work = begin(tmp_path, debug(), head_of(tmp_path, Layout("0.9.1", "fsdp2", 0)))
    assert work.resume is None and work.model == MODEL


def test_a_checkpoint_of_another_worker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LonghaulError, match="not one of the worker verl"):
        begin(tmp_path, debug(), tmp_path)


def test_verl_s_tokenizer_is_the_file_and_not_what_a_library_makes_of_it(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    text = "Ann finds 11 pens. She loses 6 of them.\n"
    found = AutoTokenizer.from_pretrained(preparing.write_tokenizer(MODEL, tmp_path / "t"))
    assert tuple(found.encode(text, add_special_tokens=False)) == Tokenizer(MODEL).encode(text)


def test_problems_are_asked_in_the_words_of_the_style_and_known_again_by_their_number() -> None:
    answer_format = format_of_run(debug(), MODEL)
    problems = training_problems(debug(grpo__problems=3), answer_format, Tokenizer(MODEL))
    rows = training_rows(problems, answer_format)
    assert [one["extra_info"]["index"] for one in rows] == [0, 1, 2]
    assert rows[0]["prompt"][0]["content"] == problems.problems[0].prompt.rstrip("\n") + "\n"
    assert rows[0]["reward_model"]["ground_truth"] == problems.problems[0].gold


def questions(**values: Any) -> HeldOut:
    profile = debug(**values)
    return HeldOut(profile, held_out.load(profile), MODEL)


def dump(path: Path, texts: list[str]) -> Path:
    """As verl writes its validation, in any order."""
    lines = [json.dumps({"index": float(index), "output": text, "score": 0.0}) for index, text in enumerate(texts)]
    path.write_text("\n".join(reversed(lines)) + "\n")
    return path


def test_answers_are_judged_by_the_suites_themselves(tmp_path: Path) -> None:
    asked = questions()
    golds = [row["reward_model"]["ground_truth"] for row in asked.rows()]
    texts = [f"\\boxed{{{gold}}}" for gold in golds]
    texts[0] = "no answer"
    (outcomes,) = asked.outcomes(asked.answers_in(dump(tmp_path / "7.jsonl", texts)))
    assert [one.right for one in outcomes] == [(False,)] + [(True,)] * (len(golds) - 1)


def test_a_validation_that_lacks_an_answer_counts_for_nothing(tmp_path: Path) -> None:
    asked = questions()
    with pytest.raises(ValueError, match="11 of 12 problems are answered"):
        asked.answers_in(dump(tmp_path / "7.jsonl", ["x"] * 11))


def test_kept_answers_are_used_only_for_the_very_same_questions_and_limits(tmp_path: Path) -> None:
    asked = questions()
    asked.keep(["x"] * 12, tmp_path)
    assert questions().kept_in(tmp_path) == ["x"] * 12
    assert questions(validation__examples_per_task=5).kept_in(tmp_path) is None
    assert questions(sampling__max_completion_tokens=25).kept_in(tmp_path) is None


def test_a_prompt_that_is_too_long_is_not_asked_and_counts_as_wrong() -> None:
    asked = questions(sampling__max_prompt_tokens=24)
    rows = asked.rows()
    assert 0 < len(rows) < 12
    (outcomes,) = asked.outcomes(["x"] * len(rows))
    assert sum(one.too_long for one in outcomes) == 12 - len(rows)


def test_a_request_is_answered_once_and_progress_is_never_half(tmp_path: Path) -> None:
    assert signals.told(tmp_path) == (-1, "") and signals.asked(tmp_path) == frozenset()
    signals.ask(tmp_path, signals.SAVE)
    signals.tell(tmp_path, 3, "update")
    assert signals.asked(tmp_path) == {"save"} and signals.told(tmp_path) == (3, "update")
    signals.answer(tmp_path, 3, signals.asked(tmp_path))
    assert signals.asked(tmp_path) == frozenset() and signals.saved(tmp_path) == [3]


def test_every_job_has_a_token_of_its_own_unless_a_cluster_is_there() -> None:
    first, second = secured({"ROCR_VISIBLE_DEVICES": "0"}), secured({})
    assert first["RAY_AUTH_MODE"] == "token" and first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]
    assert "ROCR_VISIBLE_DEVICES" not in first
    assert "RAY_AUTH_TOKEN" not in secured({"RAY_ADDRESS": "10.0.0.1:6379"})


def code_file(folder: Path) -> str:
    rows = [{"prompt": "f?", "tests": ["assert f() == 1"]}, {"prompt": "2+2?", "answer": "4"}]
    path = folder / "code.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_problems_with_tests_go_to_the_code_server_and_others_to_our_verifier(tmp_path: Path) -> None:
    profile = debug(data__tasks=code_file(tmp_path), verl__code_server="start")
    answer_format = format_of_run(profile, MODEL)
    found = training_rows(training_problems(profile, answer_format, Tokenizer(MODEL)), answer_format)
    assert [(one["data_source"], one["reward_model"]["ground_truth"]) for one in found] == [
        (CODE, '["assert f() == 1"]'),
        ("problems", "4"),
    ]
    assert found[0]["prompt"] == [{"role": "user", "content": "f?\n"}]


@pytest.mark.parametrize(
    ("values", "said", "knob"),
    [
        ({}, "names nothing that judges programs", "verl.code_server=start"),
        ({"verl__code_server": "start", "model__prompt_style": "boxed"}, "in a box", "model.prompt_style=verbatim"),
    ],
)
def test_tests_that_nobody_could_judge_are_refused(tmp_path: Path, values: Any, said: str, knob: str) -> None:
    profile = debug(data__tasks=code_file(tmp_path), **values)
    with pytest.raises(LonghaulError, match=said) as told:
        training_problems(profile, format_of_run(profile, MODEL), Tokenizer(MODEL))
    assert told.value.exit_code == ExitCode.INPUT and knob in told.value.next_command
