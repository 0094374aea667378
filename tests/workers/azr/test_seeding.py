"""Seeding: one set of triplets grown by two kinds of prompts, then problems; batches on disk, and a named end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiles.changes import diff, refusal
from profiles.errors import ExitCode, LonghaulError
from profiles.load import override_profile
from profiles.schema import Azr, Model, Optimizer, Profile, Run, Sampling
from tests.profiles.variants import with_variants
from tests.workers import harness as h
from tests.workers.azr.small import Scripted, azr_profile, scripted_tools, triplet, write_model
from tests.workers.azr.test_steps import INDUCTION, kind_of
from tests.workers.torch_settings import torch_as_it_was
from workers.azr.buffers import Buffers
from workers.azr.proposing import check_lengths
from workers.azr.rows import Collected, Row
from workers.azr.seeding import BatchFiles, grow
from workers.azr.trainer import AzrTrainer
from workers.contract import Outcome, Result, WorkerSpec
from workers.control import Control
from workers.cycle.progress import Progress
from workers.cycle.train import train
from workers.runtime import Attempt, carry_out
from workers.sandbox import Limits, Sandbox
from workers.tasks.entry import Entry
from workers.tasks.seeds import seed_entries

TASKS = ("abd", "ded", "ind")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=1.0, allow_weak=True), jobs=1) as box:
        yield box


def writer(prompt: str, seed: int) -> str:
    """A base model that forgets its tags; every third proposal raises."""
    if kind_of(prompt) == "propose ind":
        return f"I think\n{INDUCTION} {seed}"
    body = "1 // 0" if seed % 3 == 0 else f"[a, {seed % 100_000}]"
    return "x = 1\n" + triplet(f"# my program\nx = 1\ndef g(a):\n    return {body}", f"{seed % 7}")


class Stopped(Exception):
    """The test's kill."""


def seeded(
    directory: Path, sandbox: Sandbox, *, die_at: int = 0, run_id: str = "r", **azr: Any
) -> tuple[Buffers, Scripted]:
    knobs = {"proposals_per_task": 4, "seed_tasks": 12, "max_seed_batches": 40} | azr
    tools, engine = scripted_tools(directory / "model", sandbox, writer, **knobs)
    buffers = Buffers(TASKS, 100)
    for entry in seed_entries(TASKS, "azr"):
        buffers.of[entry.task].add(entry)

    def on_batch(number: int) -> None:
        if number == die_at:
            raise Stopped

    journal = BatchFiles(lambda number: directory / "seeds" / f"seed-{number:06d}.jsonl", run_id, tools.profile)
    grow(tools, buffers, lambda: False, on_batch, journal)
    return buffers, engine


def rows(buffers: Buffers) -> dict[str, list[Entry]]:
    return {task: buffer.entries for task, buffer in buffers.of.items()}


def test_triplets_are_shared_problems_are_made_of_their_programs_and_everything_is_stripped(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    buffers, engine = seeded(tmp_path, sandbox)
    found = rows(buffers)
    assert [len(found[task]) for task in TASKS] == [12, 12, 12]
    assert [e.key for e in found["abd"]] == [e.key for e in found["ded"]]
    assert all(entry.step == 0 and entry.source == "seed" for task in TASKS for entry in found[task])
    assert {e.program for e in found["ind"]} <= {e.program for e in found["ded"]}
    assert found["ded"][-1].program.startswith("def f(a):\n    return [a, ")
    kinds = [kind_of(prompt) for prompt in engine.prompts]
    assert kinds[:4] == ["propose abd"] * 4 and kinds[4:8] == ["propose ded"] * 4
    assert kinds.index("propose ind") > max(i for i, kind in enumerate(kinds) if kind != "propose ind")


def test_seeds_are_drawn_at_the_training_temperature(tmp_path: Path, sandbox: Sandbox) -> None:
    _, engine = seeded(tmp_path, sandbox)
    assert engine.asked and all(not how.greedy and how.temperature == 0.8 for how in engine.asked)


def test_a_seeding_that_dies_goes_on_where_it_was_and_ends_like_an_unbroken_one(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    unbroken, whole = seeded(tmp_path / "unbroken", sandbox)
    with pytest.raises(Stopped):
        seeded(tmp_path / "killed", sandbox, die_at=4)
    resumed, rest = seeded(tmp_path / "killed", sandbox)
    assert rows(resumed) == rows(unbroken)
    assert rest.prompts == whole.prompts[12:]


def test_more_seeds_may_be_wanted_without_losing_those_that_are_there(tmp_path: Path, sandbox: Sandbox) -> None:
    with pytest.raises(LonghaulError, match="seed_stalled: 2 batches"):
        seeded(tmp_path, sandbox, max_seed_batches=2)
    _, engine = seeded(tmp_path, sandbox, seed_tasks=6)
    assert [kind_of(prompt) for prompt in engine.prompts] == ["propose ind"] * len(engine.prompts)


def test_a_batch_of_problems_is_not_taken_for_one_of_triplets(tmp_path: Path, sandbox: Sandbox) -> None:
    seeded(tmp_path, sandbox, seed_tasks=4)
    buffers, _ = seeded(tmp_path, sandbox, seed_tasks=9)
    assert [{len(entry.inputs) for entry in rows(buffers)[task][1:]} for task in TASKS] == [{1}, {1}, {10}]


@pytest.mark.parametrize("changed", [{"run_id": "another"}, {"hide_input": True}], ids=["run", "prompts"])
def test_seeds_of_another_run_or_other_prompts_are_not_taken(
    changed: dict[str, Any], tmp_path: Path, sandbox: Sandbox
) -> None:
    _, whole = seeded(tmp_path, sandbox)
    _, again = seeded(tmp_path, sandbox, **changed)
    assert len(again.prompts) == len(whole.prompts)


def test_b7_a_model_that_writes_no_task_ends_with_the_reasons(tmp_path: Path, sandbox: Sandbox) -> None:
    tools, _ = scripted_tools(tmp_path, sandbox, lambda prompt, seed: "nonsense", seed_tasks=5, max_seed_batches=3)
    buffers = Buffers(TASKS, 9)
    for entry in seed_entries(TASKS, "azr"):
        buffers.of[entry.task].add(entry)
    said = r"seed_stalled: 3 batches .* of 6 proposals 0 were accepted; refused: malformed 6 \(100%\)"
    with pytest.raises(LonghaulError, match=said) as caught:
        grow(tools, buffers, lambda: False)
    assert caught.value.exit_code == ExitCode.INPUT
    assert "--accept-changes --set azr.max_seed_batches=N   (more than 3)" in caught.value.next_command


@pytest.mark.parametrize("knob", ["azr.seed_tasks=2", "azr.max_seed_batches=400"])
def test_a_stalled_run_may_go_on_with_what_its_message_says(knob: str) -> None:
    """Both knobs may change in a run that has begun."""
    began = Profile(name="t", azr=Azr(seed_tasks=5))
    changes = diff(began, override_profile(began, [knob]))
    assert len(changes) == 1 and refusal(changes, accept_changes=True, another_run="") is None


def test_a_worker_that_is_killed_between_two_batches_keeps_the_first(tmp_path: Path, sandbox: Sandbox) -> None:
    profile = Profile(name="t", run=Run(threads=1), azr=Azr(proposals_per_task=6, group_size=2, seed_tasks=14))
    first = h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0)
    assert h.run(first, warm="azr", LONGHAUL_CRASHPOINT="worker.rollouts_done:2:kill") == -signal.SIGKILL
    seeds = sorted((tmp_path / "cycles/0000/rollouts").glob("seed-*.jsonl"))
    before = [(path.name, path.stat().st_mtime_ns) for path in seeds]
    assert len(before) == 2
    second = h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0, attempt=2)
    assert do(second, sandbox).outcome is Outcome.DONE, h.result_of(second).error
    assert [(path.name, path.stat().st_mtime_ns) for path in seeds] == before
    kept = {entry["key"] for path in seeds for entry in json.loads(path.read_text().splitlines()[1])["found"]}
    stored = (tmp_path / h.newest_checkpoint(tmp_path).path / "buffers.jsonl").read_text().splitlines()
    assert kept and kept <= {json.loads(line)["key"] for line in stored}


# --- a whole worker, with a model that knows nothing ------------------------------------------------------------------


def do(spec: WorkerSpec, sandbox: Sandbox) -> Result:
    with torch_as_it_was():
        carry_out(spec, Control(None, spec.token), lambda attempt: train(attempt, AzrTrainer(attempt, sandbox)))
    return h.result_of(spec)


def profile_of(model: Path, **azr: Any) -> Profile:
    return Profile(
        name="t",
        run=Run(threads=1, checkpoint_every=9),
        model=Model(path=str(model), prompt_style="azr-chat"),
        sampling=Sampling(max_prompt_tokens=760, max_completion_tokens=8),
        azr=with_variants(
            Azr, **({"proposals_per_task": 1, "group_size": 2, "train_on_estimates": False, "references": 1} | azr)
        ),
        optimizer=Optimizer(micro_batch_size=4, updates_per_step=3),
    )


def test_a_model_that_writes_nonsense_trains_all_the_same(tmp_path: Path, sandbox: Sandbox) -> None:
    profile = profile_of(write_model(tmp_path / "model"))
    seed = h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0)
    assert do(seed, sandbox).outcome is Outcome.DONE, h.result_of(seed).error
    spec = h.make_spec(tmp_path, profile, head=h.newest_checkpoint(tmp_path), end_step=2)
    assert do(spec, sandbox).outcome is Outcome.DONE, h.result_of(spec).error
    (step,) = h.events_of(spec, "step")
    facts = {name: step.data[name] for name in ("new_examples", "cell_degenerate", "update_skipped", "truncated")}
    assert facts == {"new_examples": 0, "cell_degenerate": 6, "update_skipped": 0, "truncated": 1}


def test_a_step_in_which_nothing_could_be_judged_is_counted_and_skipped(tmp_path: Path, sandbox: Sandbox) -> None:
    spec = h.make_spec(tmp_path, profile_of(write_model(tmp_path / "model")), head=None, end_step=2)
    trainer = AzrTrainer(Attempt(spec, Control(None, "")), sandbox)
    trainer.build(None)
    registry = trainer.registry(Progress())
    states = []
    for name, reward in (("before", None), ("skipped", None), ("trained", -1.0)):
        if name != "before":
            row = Row(task="ded", role="solve", group=0, prompt_ids=(5, 6), completion_ids=(7, 8),
                      log_probs=(-1.0, -1.0), finish_reason="stop", reward=reward)  # fmt: skip
            report = trainer.update(1, Collected(rows=[row], found=[]).records())
            assert (report.metrics["update_skipped"], report.tokens) == ((1, 0) if reward is None else (0, 2))
            assert report.finite and ("nothing was trained" in str(report.warnings)) is (reward is None)
        (tmp_path / name).mkdir()
        registry.save(tmp_path / name)
        states.append((tmp_path / name / "optimizer.safetensors").read_bytes())
    assert states[0] == states[1] != states[2]


@pytest.mark.parametrize(
    ("sampling", "positions", "said"),
    [
        pytest.param({"max_completion_tokens": 9000}, 8192, "the model reads 8192 tokens", id="too long for the model"),
        pytest.param({"max_prompt_tokens": 90}, None, "sampling.max_prompt_tokens is 90", id="no prompt fits"),
    ],
)
def test_O9_lengths_that_cannot_work_are_refused_before_anything_is_generated(
    sampling: dict[str, int], positions: int | None, said: str, tmp_path: Path, sandbox: Sandbox
) -> None:
    from dataclasses import replace

    import msgspec

    tools, engine = scripted_tools(tmp_path, sandbox, writer)
    profile = azr_profile()
    profile = msgspec.structs.replace(profile, sampling=msgspec.structs.replace(profile.sampling, **sampling))
    with pytest.raises(LonghaulError, match=said) as caught:
        check_lengths(replace(tools, profile=profile), positions)
    assert caught.value.exit_code == ExitCode.INPUT and engine.prompts == []
