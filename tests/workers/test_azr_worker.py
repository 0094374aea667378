"""Real self-play with the built-in model at the smallest sizes: resume is bit-exact, and every saved item is needed."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from safetensors import safe_open

from profiles.errors import ExitCode, LonghaulError
from profiles.knobs import with_values
from profiles.schema import Azr, Data, Model, Optimizer, Profile, Run, Sampling
from state.registry import Registry
from tests.profiles.variants import with_variants
from tests.workers import harness as h
from tests.workers.torch_settings import torch_as_it_was
from workers.azr.trainer import AzrTrainer
from workers.contract import CheckpointRef, Outcome, Result, WorkerSpec
from workers.control import Control
from workers.cycle.progress import Progress
from workers.cycle.train import train
from workers.cycle.validate import validate
from workers.runtime import Attempt, carry_out
from workers.sandbox import Limits, Sandbox
from workers.sandbox.limits import LAYERS
from workers.suites.validation import suites_of

STEPS = 4


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(allow_weak=True), jobs=1) as box:
        yield box


@pytest.fixture(scope="module", autouse=True)
def leave_torch_as_it_was() -> Iterator[None]:
    with torch_as_it_was():
        yield
    torch.autograd.set_detect_anomaly(False)


def forget_everything() -> None:
    """What a fresh process would have in its global generators: anything."""
    random.seed()
    numpy.random.seed()
    torch.seed()


def do(spec: WorkerSpec, sandbox: Sandbox) -> Result:
    """The attempt in this process: as a worker does it, without the start of one."""
    forget_everything()
    carry_out(spec, Control(None, spec.token), lambda attempt: train(attempt, AzrTrainer(attempt, sandbox)))
    return h.result_of(spec)


def checkpoint_of(result: Result) -> CheckpointRef:
    assert result.checkpoint is not None, result.error
    return result.checkpoint


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> Path:
    """`seeded`: a run after its seed cycle. `whole`: the same, trained STEPS steps without a break."""
    root = tmp_path_factory.mktemp("azr")
    (root / "seeded").mkdir()
    do(h.make_spec(root / "seeded", h.tiny_profile(), head=None, end_step=1, cycle=0), sandbox)
    shutil.copytree(root / "seeded", root / "whole")
    whole = h.make_spec(root / "whole", h.tiny_profile(), head=h.newest_checkpoint(root / "whole"), end_step=STEPS + 1)
    assert do(whole, sandbox).outcome is Outcome.DONE, h.result_of(whole).error
    return root


def copied(base: Path, root: Path) -> Path:
    shutil.copytree(base / "seeded", root)
    return root


def in_parts(root: Path, sandbox: Sandbox, cuts: list[int], profile: Profile | None = None) -> CheckpointRef:
    """Train to each of `cuts` in a fresh trainer, all as one cycle's resumed attempts."""
    reference = h.newest_checkpoint(root)
    for number, end in enumerate(cuts, start=1):
        spec = h.make_spec(root, profile or h.tiny_profile(), head=reference, end_step=end + 1, attempt=number)
        reference = checkpoint_of(do(spec, sandbox))
    return reference


def test_a_checkpoint_loads_as_any_model_does(base: Path) -> None:
    from transformers import AutoModelForCausalLM

    directory = base / "whole" / h.newest_checkpoint(base / "whole").path
    model = AutoModelForCausalLM.from_pretrained(directory)
    with safe_open(directory / "model.safetensors", "pt") as stored:
        assert torch.equal(model.model.norm.weight, stored.get_tensor("model.norm.weight"))


def test_a_run_tells_which_layers_hold_its_programs(base: Path) -> None:
    told = h.events_at(base / "whole/cycles/0001/attempt-1", "sandbox")
    assert [set(event.data["layers"]) for event in told] == [set(LAYERS)]


def test_a_module_of_the_profile_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with Sandbox(Limits(modules=("no_such_module",), allow_weak=True), jobs=1) as box:
        result = do(h.make_spec(tmp_path, h.tiny_profile(), head=None, end_step=1, cycle=0), box)
    assert (result.outcome, result.exit_code) == (Outcome.FAILED, ExitCode.INPUT)
    assert "no_such_module" in result.error
    assert "import no_such_module" in result.advice


def test_training_changes_weights_and_fills_buffers(base: Path) -> None:
    whole = base / "whole"
    before, after = (whole / ref.path for ref in (h.first_checkpoint(whole), h.newest_checkpoint(whole)))
    assert (before / "model.safetensors").read_bytes() != (after / "model.safetensors").read_bytes()
    assert len((after / "buffers.jsonl").read_bytes().splitlines()) > 10
    steps = h.events_at(whole / "cycles/0001/attempt-1", "step")
    assert all(event.data["mismatch_max"] < 1e-3 for event in steps)
    assert sum(event.data["new_examples"] for event in steps) > 10


@pytest.mark.parametrize("cut", [2, *(pytest.param(cut, marks=pytest.mark.exhaustive) for cut in (1, 3))])
def test_a_run_resumed_after_any_step_ends_like_an_unbroken_one(
    cut: int, base: Path, tmp_path: Path, sandbox: Sandbox
) -> None:
    resumed = in_parts(copied(base, tmp_path / "run"), sandbox, [cut, STEPS])
    assert resumed.digest == h.newest_checkpoint(base / "whole").digest


def test_metrics_of_a_resumed_run_are_those_of_an_unbroken_one(base: Path, tmp_path: Path, sandbox: Sandbox) -> None:
    in_parts(copied(base, tmp_path / "run"), sandbox, [2, STEPS])
    found = []
    for root in (tmp_path / "run", base / "whole"):
        events = [e for d in sorted(root.glob("cycles/0001/attempt-*")) for e in h.events_at(d, "step")]
        timeless = ("seconds", "rss", "peak", "memory")
        found.append([(e.step, {k: v for k, v in e.data.items() if not k.startswith(timeless)}) for e in events])
    assert found[0] == found[1] and len(found[0]) == STEPS


ITEMS = ["progress.json", "model.safetensors", "optimizer.safetensors", "buffers.jsonl", "rng.json"]


@pytest.mark.parametrize("name", ITEMS)
def test_mutation_every_registered_item_is_needed(
    name: str, base: Path, tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drop one item from what is restored: the comparison with the unbroken run must fail."""
    root = copied(base, tmp_path / "run")
    middle = in_parts(root, sandbox, [2])
    load = Registry.load

    def forgetful(self: Registry, *args: object, **kwargs: object) -> None:
        monkeypatch.setattr(self._items[name], "load", lambda path: None, raising=False)
        load(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Registry, "load", forgetful)
    spec = h.make_spec(root, h.tiny_profile(), head=middle, end_step=STEPS + 1, attempt=2)
    # Rollouts of the unbroken run would hide what a wrong state generates: there are none of these steps here.
    result = do(spec, sandbox)
    is_equal = (
        result.outcome is Outcome.DONE and checkpoint_of(result).digest == h.newest_checkpoint(base / "whole").digest
    )
    assert not is_equal


def test_the_mutation_test_covers_all_that_is_registered(base: Path) -> None:
    directory = base / "whole" / h.newest_checkpoint(base / "whole").path
    static = set(AzrTrainer.static_files) | {"MANIFEST.json"}
    assert {path.name for path in directory.iterdir()} - static == set(ITEMS)


@pytest.mark.parametrize(
    "point", ["worker.before_update:2", pytest.param("ckpt.before_rename:1", marks=pytest.mark.exhaustive)]
)
def test_a_killed_worker_process_resumes_to_the_same_bytes(
    point: str, base: Path, tmp_path: Path, sandbox: Sandbox
) -> None:
    root = copied(base, tmp_path / "run")
    first = h.make_spec(root, h.tiny_profile(), head=h.newest_checkpoint(root), end_step=STEPS + 1)
    assert h.run(first, warm="azr", LONGHAUL_CRASHPOINT=f"{point}:kill") == -signal.SIGKILL
    second = h.make_spec(root, h.tiny_profile(), head=h.newest_checkpoint(root), end_step=STEPS + 1, attempt=2)
    assert do(second, sandbox).outcome is Outcome.DONE, h.result_of(second).error
    assert h.newest_checkpoint(root).digest == h.newest_checkpoint(base / "whole").digest


def test_the_worst_case_touches_no_state(base: Path, tmp_path: Path, sandbox: Sandbox) -> None:
    head = h.newest_checkpoint(base / "seeded")
    spec = h.make_spec(tmp_path, h.tiny_profile(), head=head, end_step=2)
    trainer = AzrTrainer(Attempt(spec, Control(None, "")), sandbox)
    trainer.build(base / "seeded" / head.path)
    registry = trainer.registry(Progress())
    registry.load(base / "seeded" / head.path)
    memory = trainer.worst_case(first_attempt=True)
    (tmp_path / "after").mkdir()
    registry.save(tmp_path / "after")
    saved = list((tmp_path / "after").iterdir())
    assert saved and all(path.read_bytes() == (base / "seeded" / head.path / path.name).read_bytes() for path in saved)
    assert memory["expected_peak_bytes"] > 0
    assert trainer.worst_case(first_attempt=False) == {}


def test_the_random_reward_control_pays_without_looking(base: Path, tmp_path: Path, sandbox: Sandbox) -> None:
    profile = h.tiny_profile(azr=with_variants(Azr, proposals_per_task=4, group_size=2, random_rewards=True))
    root = copied(base, tmp_path / "run")
    spec = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=2)
    do(spec, sandbox)
    rows = [json.loads(line) for line in (root / "cycles/0001/rollouts/step-000001.jsonl").read_text().splitlines()]
    paid = [(row["reward"], row["is_correct"]) for row in rows if row.get("reward") is not None]
    assert {1.0, -0.5} == {reward for reward, _ in paid}
    assert {(1.0, False), (-0.5, True)} <= set(paid)


def test_an_untrained_proposer_gets_no_gradient(base: Path, tmp_path: Path, sandbox: Sandbox) -> None:
    tokens = []
    for train_proposer in (True, False):
        profile = h.tiny_profile(
            azr=with_variants(Azr, proposals_per_task=4, group_size=2, train_proposer=train_proposer)
        )
        root = copied(base, tmp_path / str(train_proposer))
        spec = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=2)
        do(spec, sandbox)
        tokens.append(h.events_of(spec, "step")[0].data["tokens"])
    assert tokens[0] > tokens[1] > 0


def test_the_paper_s_solver_batch_is_of_its_own(base: Path, tmp_path: Path, sandbox: Sandbox) -> None:
    azr = Azr(proposals_per_task=4, group_size=2, train_on_estimates=False, solve_batch=6)
    root = copied(base, tmp_path / "run")
    spec = h.make_spec(root, h.tiny_profile(azr=azr), head=h.newest_checkpoint(root), end_step=3)
    assert do(spec, sandbox).outcome is Outcome.DONE
    rows = [json.loads(line) for line in (root / "cycles/0001/rollouts/step-000002.jsonl").read_text().splitlines()]
    cells = [(row["task"], row["role"]) for row in rows if "role" in row]
    assert {cell: cells.count(cell) for cell in set(cells)} == {
        (task, role): 4 if role == "propose" else 6 for task in ("abd", "ded", "ind") for role in ("propose", "solve")
    }


def test_several_updates_in_a_step_run(base: Path, tmp_path: Path, sandbox: Sandbox) -> None:
    tiny = h.tiny_profile(optimizer=Optimizer(updates_per_step=3, micro_batch_size=8, entropy_coef=0.01))
    profile = with_values(tiny, {"azr.advantages": "group", "azr.loss_divisor": "constant"})
    root = copied(base, tmp_path / "run")
    assert do(h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=2), sandbox).outcome is Outcome.DONE


def test_a_finite_source_ends_with_exhausted_and_a_checkpoint(tmp_path: Path, sandbox: Sandbox) -> None:
    lines = [
        {"task": "ded", "program": f"def f(a):\n    b = a + '{letter}'\n    return b", "inputs": ["'uvw'"]}
        for letter in "uvwxy"
    ]
    source = tmp_path / "tasks.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    profile = h.tiny_profile(data=Data(tasks=str(source), on_exhausted="stop"))
    seeded = h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0)
    spec = h.make_spec(tmp_path, profile, head=checkpoint_of(do(seeded, sandbox)), end_step=10)
    result = do(spec, sandbox)
    assert (result.outcome, result.last_step) == (Outcome.EXHAUSTED, 2), result.error  # 4 tasks, then the last one
    cursor = json.loads((tmp_path / checkpoint_of(result).path / "cursor.json").read_text())
    assert cursor["position"] == 5


def test_a_bad_line_of_the_source_is_named(tmp_path: Path, sandbox: Sandbox) -> None:
    source = tmp_path / "tasks.jsonl"
    source.write_text('{"task": "ded", "program": "def f(a):\\n    return 1/0", "inputs": ["1"]}\n')
    spec = h.make_spec(tmp_path, h.tiny_profile(data=Data(tasks=str(source))), head=None, end_step=1, cycle=0)
    result = do(spec, sandbox)
    assert result.exit_code == ExitCode.INPUT and "line 1" in result.error


def test_a_stop_while_seeding_leaves_no_half_filled_checkpoint(tmp_path: Path, sandbox: Sandbox) -> None:
    profile = h.tiny_profile(azr=Azr(proposals_per_task=4, group_size=2, seed_tasks=500))
    spec = h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0)
    control = Control(None, spec.token)
    control.requests.stop.set()
    carry_out(spec, control, lambda attempt: train(attempt, AzrTrainer(attempt, sandbox)))
    result = h.result_of(spec)
    assert (result.outcome, result.exit_code, result.checkpoint) == (Outcome.STOPPED, 0, None)


def test_the_other_engine_trains_too(base: Path, tmp_path: Path, sandbox: Sandbox) -> None:
    profile = h.tiny_profile(sampling=Sampling(engine="hf", max_completion_tokens=24))
    root = copied(base, tmp_path / "run")
    spec = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=2, isolate=True)
    assert do(spec, sandbox).outcome is Outcome.DONE, h.result_of(spec).error
    assert h.events_of(spec, "step")[0].data["mismatch_max"] < 1e-3
    evidence = root / spec.attempt_dir / "evidence" / "step-000001.jsonl"
    assert evidence.read_bytes() == (root / "cycles/0001/rollouts/step-000001.jsonl").read_bytes()


@pytest.mark.parametrize("damage", ["missing", "torn"])
def test_e8_a_missing_or_torn_model_file_is_named(damage: str, tmp_path: Path, sandbox: Sandbox) -> None:
    weights = Path(__file__).parents[2] / "workers/pocket/weights"
    model = tmp_path / "model"
    shutil.copytree(weights, model)
    if damage == "missing":
        (model / "model.safetensors").unlink()
    else:
        content = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(content[: len(content) // 2])
    spec = h.make_spec(tmp_path, h.tiny_profile(model=Model(path=str(model))), head=None, end_step=1, cycle=0)
    result = do(spec, sandbox)
    assert result.exit_code == ExitCode.INPUT and "model.safetensors" in result.error


def test_a_reseed_keeps_what_still_holds(base: Path, tmp_path: Path, sandbox: Sandbox) -> None:
    root = tmp_path / "run"
    shutil.copytree(base / "whole", root)
    spec = h.make_spec(root, h.tiny_profile(), head=h.newest_checkpoint(root), end_step=6, cycle=2, reseed=1)
    assert do(spec, sandbox).outcome is Outcome.DONE
    (event,) = h.events_of(spec, "reseed")
    assert event.data["kept"] >= 3 and event.data["dropped"] > 0


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    from workers.models.weights import Weights

    module = torch.nn.Linear(2, 2)
    with torch.no_grad():
        module.weight[0, 0] = float("nan")
    with pytest.raises(LonghaulError, match="not finite") as caught:
        Weights(module).save(tmp_path / "model.safetensors")
    assert caught.value.exit_code == ExitCode.NOT_FINITE


def test_seeding_grows_the_buffers_by_the_models_own_proposals(tmp_path: Path, sandbox: Sandbox) -> None:
    azr = Azr(proposals_per_task=6, group_size=2, seed_tasks=5)
    profile = Profile(name="t", run=Run(threads=1), azr=azr)
    spec = h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0)
    result = do(spec, sandbox)
    rows = [json.loads(x) for x in (tmp_path / checkpoint_of(result).path / "buffers.jsonl").read_text().splitlines()]
    tasks = [row["task"] for row in rows]
    assert {task: tasks.count(task) for task in ("abd", "ded", "ind")} == {"abd": 5, "ded": 5, "ind": 5}
    assert all(row["source"] == "seed" and row["step"] == 0 for row in rows)


def test_validation_scores_a_real_checkpoint_by_task(base: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(base / "whole", root)
    spec = h.make_spec(root, h.tiny_profile(), head=h.newest_checkpoint(root), end_step=STEPS + 1, role="validate")
    carry_out(spec, Control(None, ""), lambda attempt: validate(attempt, suites_of(attempt, None)))
    scores = h.result_of(spec).validation["pocket"]
    assert set(scores) == {"abd", "ded", "ind", "mean"}
    for name in ("abd", "ded", "ind"):
        assert set(scores[name]) == {"n", "correct", "accuracy", "low", "high", "sampled_accuracy", "worked_share",
                                     "mean_tokens", "malformed"}  # fmt: skip
        assert scores[name]["n"] == 8
    assert scores["mean"]["n"] == 24
