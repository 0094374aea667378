"""The GRPO worker through whole cycles on a tiny random model: what it leaves, what a resume or less memory changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.errors import ExitCode
from profiles.grpo import Sent
from profiles.schema import Adapter, Data, Grpo, Model, Optimizer, Profile, Run, Sampling, Validation
from tests.profiles.variants import with_variants
from tests.workers import harness as h
from tests.workers.grpo.small import sums, write_problems
from tests.workers.test_azr_worker import checkpoint_of, forget_everything
from tests.workers.torch_settings import torch_as_it_was
from workers.contract import CheckpointRef, Outcome, Result, WorkerSpec
from workers.control import Control
from workers.cycle.train import train
from workers.grpo import update
from workers.grpo.kind import job
from workers.grpo.trainer import GrpoTrainer
from workers.models.parallel import Single
from workers.runtime import carry_out

STEPS = 6
OF_TIME = ("seconds", "tokens_per_s", "rss_bytes", "vram", "memory/")


@pytest.fixture(autouse=True)
def leave_torch_as_it_was() -> Iterator[None]:
    with torch_as_it_was():
        yield


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_problems(tmp_path_factory.mktemp("problems") / "sums.jsonl", sums(12))


def profile_of(problems: Path, **changes: Any) -> Profile:
    """Everything on that a step can have; rewards are coins, as a random model gets nothing right."""
    grpo = with_variants(
        Grpo, groups_per_step=2, group_size=3, random_rewards=True, truncated="keep", kl_coef=0.01,
        entropy_mask="running",
        entropy_min_tokens=1, sent=Sent(enabled=True, samples=2, min_steps=2, accuracy=0.0), dynamic_sampling=True,
    )  # fmt: skip
    sections: dict[str, Any] = {
        "run": Run(worker="grpo", checkpoint_every=100, threads=1),
        "model": Model(prompt_style="verbatim", random_init="qwen2-tiny"),
        "adapter": Adapter(rank=2, alpha=4.0, targets=("q_proj", "v_proj")),
        "sampling": Sampling(max_prompt_tokens=16, max_completion_tokens=8),
        "grpo": grpo,
        "optimizer": Optimizer(learning_rate=1e-2, warmup_steps=2, updates_per_step=2, micro_batch_size=4),
        "data": Data(tasks=str(problems)),
        "validation": Validation(suites=("words",), examples_per_task=1),
    }
    return Profile(name="test", **(sections | changes))


def plain_profile(problems: Path, **changes: Any) -> Profile:
    grpo = Grpo(groups_per_step=2, group_size=3, truncated="keep", **changes.pop("grpo", {}))
    return profile_of(problems, grpo=grpo, adapter=Adapter(), **changes)


def do(spec: WorkerSpec) -> Result:
    """The attempt in this process: as a worker does it, without the start of one."""
    forget_everything()
    carry_out(spec, Control(None, spec.token), lambda attempt: train(attempt, GrpoTrainer(attempt)))
    return h.result_of(spec)


def trained(root: Path, profile: Profile, *ends: int, head: CheckpointRef | None = None) -> Result:
    """A run seeded and trained up to each of `ends`, each in an attempt of its own."""
    root.mkdir(parents=True, exist_ok=True)
    if head is None:
        result = do(h.make_spec(root, profile, head=None, end_step=1, cycle=0))
        assert result.outcome is Outcome.DONE, result.error
        head = checkpoint_of(result)
    for number, end in enumerate(ends, start=1):
        result = do(h.make_spec(root, profile, head=head, end_step=end + 1, cycle=number))
        assert result.outcome is Outcome.DONE, result.error
        head = checkpoint_of(result)
    return result


def metrics_of(root: Path) -> list[dict[str, float]]:
    """Of all steps in order, without what a clock or the machine decides."""
    events = [event for path in sorted((root / "cycles").glob("*/attempt-*")) for event in h.events_at(path, "step")]
    return [{k: v for k, v in one.data.items() if not any(part in k for part in OF_TIME)} for one in events]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, problems: Path) -> tuple[Path, CheckpointRef]:
    root = tmp_path_factory.mktemp("grpo") / "whole"
    return root, checkpoint_of(trained(root, profile_of(problems), STEPS))


def test_row_37_a_run_in_parts_ends_in_the_same_bits_with_the_same_metrics(
    whole: tuple[Path, CheckpointRef], tmp_path: Path, problems: Path
) -> None:
    root, expected = whole
    found = trained(tmp_path / "parts", profile_of(problems), 3, 4, STEPS)
    assert checkpoint_of(found).digest == expected.digest
    assert metrics_of(tmp_path / "parts") == metrics_of(root)


def test_a_step_tells_everything_that_is_worth_knowing(whole: tuple[Path, CheckpointRef]) -> None:
    wanted = {
        "loss", "reward", "reward/correct", "accuracy", "group_spread", "skipped_share", "kl",
        "clip_fraction", "clip_low", "clip_high", "entropy", "kept_tokens", "mismatch_mean", "mismatch_max",
        "tokens_mean", "tokens_max", "truncated", "grad_norm", "learning_rate", "stage", "ratio_mean",
    }  # fmt: skip
    steps = metrics_of(whole[0])
    assert len(steps) == STEPS and wanted <= set(steps[0])
    assert all(step["grad_norm"] > 0 and step["update_skipped"] == 0 for step in steps)
    assert all(0 < step["kept_tokens"] < 1 and step["kl"] >= 0 for step in steps)
    for told in h.events_at(whole[0] / "cycles/0001/attempt-1", "step"):
        assert told.data["tokens_per_s"] > 0 and told.data["train_tokens_per_s"] > 0
    (first,) = h.events_at(whole[0] / "cycles/0000/attempt-1", "problems")
    assert first.data["text"] == "12 problems from sums.jsonl"


def test_row_36_the_next_stage_opens_at_its_step_and_is_said(whole: tuple[Path, CheckpointRef]) -> None:
    assert [step["stage"] for step in metrics_of(whole[0])] == [1, 2, 2, 3, 3, 3]
    warnings = [one.data["text"] for one in h.events_at(whole[0] / "cycles/0001/attempt-1", "warning")]
    assert [text for text in warnings if "stage" in text] == [
        "the curriculum is at stage 2 from here on", "the curriculum is at stage 3 from here on",
    ]  # fmt: skip


def test_rollouts_are_on_disk_before_the_update_with_ids_and_log_probs(whole: tuple[Path, CheckpointRef]) -> None:
    lines = (whole[0] / "cycles/0001/rollouts/step-000001.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[1:-2]]
    assert len(rows) >= 6
    for row in rows:
        assert len(row["completion_ids"]) == len(row["log_probs"]) == len(row["entropies"]) >= 1
        assert all(value <= 1e-6 for value in row["log_probs"])


def test_row_34_measuring_that_was_killed_goes_on_where_it_was(
    whole: tuple[Path, CheckpointRef], tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = (whole[0] / "difficulties.jsonl").read_bytes()
    lines = finished.splitlines(keepends=True)
    (tmp_path / "difficulties.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:20])  # three, and a torn one
    asked: list[int] = []
    samples = GrpoTrainer._measuring

    def counted(self: GrpoTrainer, *num_problems: int) -> Any:
        found = samples(self, *num_problems)
        inner = found._samples
        found._samples = lambda slice_: asked.extend(slice_) or inner(slice_)  # type: ignore[method-assign]
        return found

    monkeypatch.setattr(GrpoTrainer, "_measuring", counted)
    trained(tmp_path, profile_of(problems))
    assert (tmp_path / "difficulties.jsonl").read_bytes() == finished
    assert asked == list(range(3, 12))


def test_row_35_difficulties_of_another_run_are_refused_where_the_profile_says_so(
    whole: tuple[Path, CheckpointRef], tmp_path: Path, problems: Path
) -> None:
    (tmp_path / "difficulties.jsonl").write_bytes((whole[0] / "difficulties.jsonl").read_bytes())
    profile = profile_of(problems, grpo=Grpo(sent=Sent(enabled=True, samples=2, on_stale="fail")),
                         sampling=Sampling(max_prompt_tokens=16, max_completion_tokens=7))  # fmt: skip
    result = do(h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0))
    assert result.exit_code == ExitCode.INPUT and "max_completion_tokens was 8, is 7" in result.error


def files_of(root: Path, checkpoint: CheckpointRef, *names: str) -> list[str]:
    return [hashlib.sha256((root / checkpoint.path / name).read_bytes()).hexdigest() for name in names]


def test_row_7_uniform_groups_cost_no_forward_pass_and_change_nothing(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    read = update.read
    monkeypatch.setattr(update, "read", lambda *given: calls.append(1) or read(*given))
    profile = plain_profile(problems)
    seeded = checkpoint_of(trained(tmp_path, profile))
    rehearsed = len(calls)
    end = checkpoint_of(trained(tmp_path, profile, 2, head=seeded))
    assert len(calls) == rehearsed
    names = ("model.safetensors", "optimizer.safetensors")
    assert files_of(tmp_path, end, *names) == files_of(tmp_path, seeded, *names)
    steps = metrics_of(tmp_path)
    assert [step["update_skipped"] for step in steps] == [1, 1]
    assert [step["skipped_share"] for step in steps] == [1, 1]
    assert [step["updates_done"] for step in steps] == [0, 0]  # the learning rate waits for the first update
    assert json.loads((tmp_path / end.path / "order.json").read_bytes())["position"] == 4  # the rows are used up


def test_after_many_steps_that_teach_nothing_the_reasons_are_said_once(tmp_path: Path, problems: Path) -> None:
    trained(tmp_path, plain_profile(problems, grpo={"uniform_patience": 2}), 5)
    warnings = [one.data["text"] for one in h.events_at(tmp_path / "cycles/0001/attempt-1", "warning")]
    assert len(warnings) == 2
    assert "no group of the last 2 steps had different rewards: completions are cut" in warnings[0]


def test_dynamic_sampling_draws_further_problems_and_gives_up_after_its_rounds(tmp_path: Path, problems: Path) -> None:
    trained(tmp_path, plain_profile(problems, grpo={"dynamic_sampling": True, "max_extra_rounds": 2}), 1)
    (step,) = metrics_of(tmp_path)
    assert (step["groups"], step["extra_rounds"], step["update_skipped"]) == (6, 2, 1)


def test_a_file_that_ends_is_said_and_its_last_batch_may_be_smaller(tmp_path: Path) -> None:
    path = write_problems(tmp_path / "three.jsonl", sums(3))
    profile = plain_profile(path, data=Data(tasks=str(path), on_exhausted="stop"))
    seeded = checkpoint_of(trained(tmp_path / "run", profile))
    result = do(h.make_spec(tmp_path / "run", profile, head=seeded, end_step=9))
    assert result.outcome is Outcome.EXHAUSTED and result.last_step == 2
    assert [step["groups"] for step in metrics_of(tmp_path / "run")] == [2, 1]


def test_a_checkpoint_of_other_problems_is_refused(tmp_path: Path) -> None:
    path = write_problems(tmp_path / "sums.jsonl", sums(4))
    seeded = checkpoint_of(trained(tmp_path / "run", plain_profile(path)))
    write_problems(path, sums(5))
    result = do(h.make_spec(tmp_path / "run", plain_profile(path), head=seeded, end_step=2))
    assert result.exit_code == ExitCode.INPUT and "have changed since checkpoint" in result.error


@pytest.mark.parametrize(
    "rows, bad_rows, code, text",
    [
        (2, "refuse", ExitCode.INPUT, "line 2: no `answer`"),
        (2, "skip", ExitCode.OK, ""),
        (40, "refuse", ExitCode.INPUT, "more than"),
    ],
)
def test_rows_without_an_answer_are_refused_by_line_or_left_out(
    rows: int, bad_rows: Any, code: int, text: str, tmp_path: Path
) -> None:
    good: list[dict[str, Any]] = [{"prompt": "1+1=", "answer": "2"}]
    bad = [{"prompt": "2+2="}] if rows == 2 else []
    long = [{"prompt": "1+" * 40, "answer": "3"}] if rows == 40 else []
    path = write_problems(tmp_path / "p.jsonl", (good if not long else []) + bad + long)
    profile = plain_profile(path, grpo={"bad_rows": bad_rows})
    result = do(h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0))
    assert result.exit_code == code and text in result.error
    if code == ExitCode.OK:
        (event,) = h.events_at(tmp_path / "cycles/0000/attempt-1", "problems")
        assert event.data["text"] == "1 problems from p.jsonl; 1 left out (line 2)"


# --- lack of memory ---------------------------------------------------------------------------------------------------


def out_of_memory_at(monkeypatch: pytest.MonkeyPatch, *calls: int, always: bool = False) -> None:
    """Raised from inside a micro-batch, after earlier ones have left their gradients."""
    count = 0
    one = update.GroupUpdate._micro_batch

    def failing(self: Any, *given: Any) -> Any:
        nonlocal count
        count += 1
        if always or count in calls:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return one(self, *given)

    monkeypatch.setattr(update.GroupUpdate, "_micro_batch", failing)


def test_row_38_a_step_that_ran_out_of_memory_is_done_again_with_the_same_result(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One group each micro-batch and two of them a minibatch, so that the second one fails with gradients in place.
    profile = profile_of(
        problems, optimizer=Optimizer(learning_rate=1e-2, warmup_steps=0, micro_batch_size=2, row_tokens=8)
    )
    seeded = checkpoint_of(trained(tmp_path / "a", profile))
    expected = checkpoint_of(trained(tmp_path / "a", profile, 2, head=seeded))
    other = checkpoint_of(trained(tmp_path / "b", profile))
    out_of_memory_at(monkeypatch, 2)
    found = checkpoint_of(trained(tmp_path / "b", profile, 2, head=other))
    (event,) = h.events_at(tmp_path / "b/cycles/0001/attempt-1", "oom_retry")
    assert "micro-batches of 1" in event.data["text"] and event.data["shrinks"] == 1
    from safetensors.torch import load_file

    ours, theirs = (
        load_file(root / one.path / "adapter_model.safetensors")
        for root, one in ((tmp_path / "b", found), (tmp_path / "a", expected))
    )
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-6)
    with_, without = metrics_of(tmp_path / "b"), metrics_of(tmp_path / "a")
    assert [step["loss"] for step in with_] == pytest.approx([step["loss"] for step in without], abs=1e-6)
    assert with_[0]["entropy_threshold"] == without[0]["entropy_threshold"]  # it moved once, not twice
    assert with_[-1]["oom_retries"] == 1


def test_row_39_where_nothing_is_left_to_halve_the_step_ends_with_a_typed_error_and_no_change(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = profile_of(problems)
    seeded = checkpoint_of(trained(tmp_path, profile))
    out_of_memory_at(monkeypatch, always=True)
    result = do(h.make_spec(tmp_path, profile, head=seeded, end_step=3))
    assert result.exit_code == ExitCode.CUDA_OOM and "nothing is left to halve" in result.error
    assert result.checkpoint == seeded


# --- numbers that are not finite --------------------------------------------------------------------------------------


def test_three_steps_without_finite_numbers_end_the_attempt_and_leave_the_batch_for_replay(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = profile_of(problems)
    seeded = checkpoint_of(trained(tmp_path, profile))
    monkeypatch.setattr(Single, "clip", lambda *given: torch.tensor(float("nan")))
    result = do(h.make_spec(tmp_path, profile, head=seeded, end_step=9))
    assert result.exit_code == ExitCode.NOT_FINITE and result.checkpoint == seeded
    assert "the rollouts are in cycles/0001/rollouts" in result.error
    assert [one.data["in_row"] for one in h.events_at(tmp_path / "cycles/0001/attempt-1", "not_finite")] == [1, 2, 3]
    assert (tmp_path / "cycles/0001/rollouts/step-000003.jsonl").is_file()
    monkeypatch.undo()
    again = do(h.make_spec(tmp_path, profile, head=seeded, end_step=4, attempt=2))
    assert again.outcome is Outcome.DONE  # the same rollouts, read again


# --- validation -------------------------------------------------------------------------------------------------------


def test_the_trained_adapter_is_validated_on_held_out_problems(
    whole: tuple[Path, CheckpointRef], problems: Path
) -> None:
    root, head = whole
    spec = h.make_spec(root, profile_of(problems), head=head, end_step=STEPS, role="validate")
    carry_out(spec, Control(None, ""), job(spec))
    result = h.result_of(spec)
    assert result.outcome is Outcome.DONE, result.error
    assert result.validation["words"]["mean"]["n"] == 3
