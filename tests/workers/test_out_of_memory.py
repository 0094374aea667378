"""Out of memory in the middle of a step: the real trainer repeats the step with smaller sizes."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Azr, Optimizer, Sampling
from tests.profiles.variants import with_variants
from tests.rounding import adamw_bound, bound, passes
from tests.workers import harness as h
from tests.workers.torch_settings import torch_as_it_was
from workers.azr.trainer import AzrTrainer
from workers.contract import CheckpointRef, WorkerSpec
from workers.control import Control
from workers.cycle.train import Cycle
from workers.memory.backoff import Sizes
from workers.runtime import Attempt
from workers.sandbox import Limits, Sandbox

PROFILE = h.tiny_profile(
    azr=with_variants(Azr, tasks=("ded",), proposals_per_task=2, group_size=2, seed_tasks=4, random_rewards=True),
    optimizer=Optimizer(micro_batch_size=4, row_tokens=160, warmup_steps=0, learning_rate=2e-5),
    sampling=Sampling(max_completion_tokens=24),
)


class Script:
    """Memory that ends in the given forward passes of an update, counted from 1, or in every call of a rollout."""

    def __init__(self, fails: Callable[[int], bool], *, in_rollouts: bool = False) -> None:
        self.fails, self.in_rollouts, self.passes = fails, in_rollouts, 0

    def __call__(self, module: Any, args: Any) -> None:
        if torch.is_grad_enabled() == self.in_rollouts:
            return
        self.passes += 1
        if self.fails(self.passes):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=1.0, allow_weak=True), jobs=1) as box:
        yield box


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_as_it_was():
        yield


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> tuple[Path, CheckpointRef]:
    """A run that is seeded."""
    root = tmp_path_factory.mktemp("begun")
    spec = h.make_spec(root, PROFILE, head=None, end_step=1, cycle=0)
    with cycle_of(spec, sandbox) as cycle:
        cycle.prepare_buffers()
        cycle.run_steps()
    return root, h.newest_checkpoint(root)


@contextmanager
def cycle_of(spec: WorkerSpec, sandbox: Sandbox) -> Iterator[Cycle]:
    attempt = Attempt(spec, Control(None, spec.token))
    cycle = Cycle(attempt, AzrTrainer(attempt, sandbox))
    cycle.load()
    yield cycle


class Ended:
    """A cycle of one step from the seeded run, with the script in its model's forward pass."""

    def __init__(
        self, folder: Path, begun: tuple[Path, CheckpointRef], sandbox: Sandbox, script: Script | None = None,
        sizes: Sizes | None = None, end_step: int = 2,
    ) -> None:  # fmt: skip
        root = folder / "run"
        if not root.exists():
            shutil.copytree(begun[0], root)
        self.root = root
        head = h.newest_checkpoint(root)
        self.spec = h.make_spec(
            root, PROFILE, head=head, end_step=end_step, attempt=1 + len(list(root.rglob("spec.json")))
        )
        self.error: Exception | None = None
        with cycle_of(self.spec, sandbox) as cycle:
            self.cycle, self.trainer = cycle, cycle.trainer
            self.before = self.weights()
            if sizes is not None:
                cycle.progress.backoff.begin(sizes)
                cycle.progress.backoff.now = sizes
                cycle.trainer.resize(sizes)
            model = cycle.trainer._model  # type: ignore[attr-defined]
            layer = model.model.layers[0] if script and script.in_rollouts else model.model
            hook = (layer.mlp if script and script.in_rollouts else layer).register_forward_pre_hook(
                script or no_script
            )
            try:
                cycle.prepare_buffers()
                cycle.run_steps()
            except Exception as error:
                self.error = error
            finally:
                hook.remove()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: one.clone() for name, one in self.cycle.trainer._model.state_dict().items()}  # type: ignore[attr-defined]

    def gradients(self) -> dict[str, torch.Tensor]:
        """Of the step: AdamW's first moment after one step holds nothing else."""
        model, optimizer = self.cycle.trainer._model, self.trainer._replica.optimizer  # type: ignore[attr-defined]
        share = 1 - optimizer.defaults["betas"][0]
        return {name: optimizer.state[one]["exp_avg"] / share for name, one in model.named_parameters()}

    def events(self, type_: str) -> list[dict[str, Any]]:
        return [event.data for event in h.events_of(self.spec, type_)]


def no_script(module: Any, args: Any) -> None:
    """Memory that never ends."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, begun: tuple[Path, CheckpointRef], sandbox: Sandbox) -> Ended:
    """The same step where memory suffices."""
    return Ended(tmp_path_factory.mktemp("whole"), begun, sandbox)


def furthest(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def assert_same_step(ended: Ended, whole: Ended) -> None:
    """Gradients differ by the order of their sums alone, weights by what AdamW makes of that."""
    found, expected, weights, others = ended.gradients(), whole.gradients(), ended.weights(), whole.weights()
    knobs = whole.trainer._replica.optimizer.defaults  # type: ignore[attr-defined]
    (step,) = whole.events("step")
    roundings = passes(whole.cycle.trainer._model, step["tokens"])  # type: ignore[attr-defined]
    for name, gradient in expected.items():
        apart = (found[name] - gradient).abs()
        assert float(apart.max()) <= bound(roundings, float(gradient.abs().max())), name
        apart += bound(4, gradient.abs())  # the moments' own roundings
        allowed = adamw_bound(gradient, apart, knobs["lr"], knobs["eps"]) + bound(8, others[name].abs() + knobs["lr"])
        assert bool(((weights[name] - others[name]).abs() <= allowed).all()), name


def test_row_38_memory_ends_in_the_second_micro_batch_and_the_step_is_the_same(
    tmp_path: Path, begun: tuple[Path, CheckpointRef], sandbox: Sandbox, whole: Ended
) -> None:
    ended = Ended(tmp_path, begun, sandbox, Script(lambda number: number == 2))
    assert ended.error is None
    (retry,) = ended.events("oom_retry")
    assert retry["phase"] == "train" and "micro-batches of 2" in retry["text"]
    (step,), (reference,) = ended.events("step"), whole.events("step")
    assert step["oom_retries"] == 1 and reference["oom_retries"] == 0
    assert furthest(whole.before, whole.weights()) > 1e-5  # the step moves them
    assert_same_step(ended, whole)
    for name in ("loss", "grad_norm", "tokens", "entropy", "reward"):
        assert step[name] == pytest.approx(reference[name], rel=1e-5, abs=1e-6), name  # nothing is counted twice
    progress = json.loads((ended.root / h.newest_checkpoint(ended.root).path / "progress.json").read_text())
    assert progress["backoff"]["now"]["micro_batch"] == 2 and progress["step"] == 1


def test_graphs_that_wait_go_first_and_the_run_says_so(
    tmp_path: Path, begun: tuple[Path, CheckpointRef], sandbox: Sandbox
) -> None:
    ended = Ended(tmp_path, begun, sandbox, Script(lambda number: number == 2), Sizes(4, 64, 8, graphs=True))
    (retry,) = ended.events("oom_retry")
    assert "without its kept CUDA graphs, with micro-batches of 4" in retry["text"]


def test_row_38_the_smaller_micro_batch_is_remembered_by_the_next_worker(
    tmp_path: Path, begun: tuple[Path, CheckpointRef], sandbox: Sandbox
) -> None:
    Ended(tmp_path, begun, sandbox, Script(lambda number: number == 2))
    resumed = Ended(tmp_path, begun, sandbox, Script(lambda number: False), end_step=3)
    assert resumed.trainer._update.micro_batch_size == 2  # type: ignore[attr-defined]
    assert resumed.events("oom_retry") == [] and len(resumed.events("step")) == 1
    assert resumed.cycle.progress.backoff.clean_steps == 2


def test_row_39_where_nothing_is_left_to_halve_the_error_says_so_and_no_weight_has_changed(
    tmp_path: Path, begun: tuple[Path, CheckpointRef], sandbox: Sandbox
) -> None:
    least = Sizes(micro_batch=1, head_rows=16, rollout_rows=8)
    ended = Ended(tmp_path, begun, sandbox, Script(lambda number: number >= 2), least)
    assert isinstance(ended.error, LonghaulError) and ended.error.exit_code == ExitCode.CUDA_OOM
    assert "nothing is left to halve: micro-batches of 1, 16 rows of logits" in ended.error.what
    assert "orchestrator plan" in ended.error.next_command
    assert furthest(ended.before, ended.weights()) == 0
    assert ended.events("step") == [] and ended.cycle.progress.step == 0


def test_row_39_every_rung_is_tried_before(
    tmp_path: Path, begun: tuple[Path, CheckpointRef], sandbox: Sandbox, whole: Ended
) -> None:
    ended = Ended(tmp_path, begun, sandbox, Script(lambda number: number <= 4), Sizes(4, 64, 8))
    assert ended.error is None
    rungs = [event["text"].partition("with ")[2].rpartition(" and")[0] for event in ended.events("oom_retry")]
    assert rungs == [
        "micro-batches of 2, 64 rows of logits", "micro-batches of 1, 64 rows of logits",
        "micro-batches of 1, 32 rows of logits", "micro-batches of 1, 16 rows of logits",
    ]  # fmt: skip
    assert_same_step(ended, whole)


def test_rollouts_that_do_not_fit_are_drawn_again_with_fewer_side_by_side_and_are_the_same(
    tmp_path: Path, begun: tuple[Path, CheckpointRef], sandbox: Sandbox, whole: Ended
) -> None:
    ended = Ended(tmp_path, begun, sandbox, Script(lambda number: number == 3, in_rollouts=True))
    assert ended.error is None
    (retry,) = ended.events("oom_retry")
    assert retry["phase"] == "rollout" and "256 rollouts" in retry["text"]
    assert ended.cycle.progress.backoff.now == Sizes(4, ended.trainer._update.head_rows, 256)  # type: ignore[attr-defined]
    (step,), (reference,) = ended.events("step"), whole.events("step")
    assert step["tokens"] == reference["tokens"] and math.isclose(step["reward"], reference["reward"])


def test_the_checkpoint_of_a_repeated_step_is_whole(
    tmp_path: Path, begun: tuple[Path, CheckpointRef], sandbox: Sandbox
) -> None:
    ended = Ended(tmp_path, begun, sandbox, Script(lambda number: number == 1))
    stored = load_file(ended.root / h.newest_checkpoint(ended.root).path / "model.safetensors")
    live = ended.weights()
    assert all(torch.equal(stored[name], live[name]) for name in stored)
