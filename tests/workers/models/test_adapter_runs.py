"""Self-play with adapters over a frozen base: resume is bit-exact, another base is refused, validation is proven."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Adapter, Azr, Model, Optimizer, Profile
from state.registry import Registry
from tests.workers import harness as h
from tests.workers.test_azr_worker import checkpoint_of, do
from tests.workers.test_azr_worker import leave_torch_as_it_was as leave_torch_as_it_was  # a fixture
from tests.workers.test_azr_worker import sandbox as sandbox  # a fixture
from workers.azr.kind import job
from workers.contract import Outcome
from workers.control import Control
from workers.models import adapters, proof
from workers.models.policy import open_policy, restored_policy
from workers.runtime import carry_out
from workers.sandbox import Sandbox

STEPS = 3
CPU = torch.device("cpu")
KINDS = {
    "lora": {},
    # Matrices of less than 4096 numbers keep their moments in 32 bits, so the rank is large.
    "qlora in 8 bits, own": {
        "adapter": Adapter(rank=48, alpha=48.0, implementation="own"),
        "model": Model(quantization="nf4", gradient_checkpointing=True),
        "optimizer": Optimizer(kind="adamw8bit", micro_batch_size=16, warmup_steps=0, learning_rate=1e-2),
    },
}


def profile_of(kind: str = "lora", **changes: object) -> Profile:
    """The built-in model as a base: unlike random weights it earns rewards."""
    sections = {
        "adapter": Adapter(rank=4, alpha=8.0),
        "optimizer": Optimizer(micro_batch_size=16, warmup_steps=0, learning_rate=1e-2),
    }
    return h.tiny_profile(**(sections | KINDS[kind] | changes))


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def base(kind: str, tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> Path:
    """`seeded`: a run after its seed cycle. `whole`: the same, trained STEPS steps without a break."""
    root = tmp_path_factory.mktemp("adapters")
    (root / "seeded").mkdir()
    do(h.make_spec(root / "seeded", profile_of(kind), head=None, end_step=1, cycle=0), sandbox)
    shutil.copytree(root / "seeded", root / "whole")
    head = h.newest_checkpoint(root / "whole")
    whole = h.make_spec(root / "whole", profile_of(kind), head=head, end_step=STEPS + 1)
    assert do(whole, sandbox).outcome is Outcome.DONE, h.result_of(whole).error
    return root


def newest(root: Path) -> Path:
    return root / h.newest_checkpoint(root).path


def test_a_checkpoint_holds_the_adapter_alone_and_trained_it(base: Path) -> None:
    tensors = load_file(newest(base / "whole") / adapters.WEIGHTS)
    assert tensors and all(".lora_A.weight" in name or ".lora_B.weight" in name for name in tensors)
    assert all(bool(tensor.any()) for tensor in tensors.values())
    assert not (newest(base / "whole") / "model.safetensors").exists()
    first = load_file(base / "whole" / h.first_checkpoint(base / "whole").path / adapters.WEIGHTS)
    assert not any(bool(tensor.any()) for name, tensor in first.items() if ".lora_B." in name)


def test_rollouts_and_update_agree_about_every_log_prob(base: Path) -> None:
    """F17: the ratio of the first update is one."""
    steps = h.events_at(base / "whole/cycles/0001/attempt-1", "step")
    assert len(steps) == STEPS and all(event.data["mismatch_max"] < 1e-3 for event in steps)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_broken_run_ends_with_the_bytes_of_an_unbroken_one(
    kind: str, base: Path, tmp_path: Path, sandbox: Sandbox
) -> None:
    """Two adapters, two ways to break: LoRA by a resume in a fresh trainer, QLoRA by the death of its process."""
    root, profile = tmp_path / "run", profile_of(kind, every=1)
    shutil.copytree(base / "seeded", root)
    first = h.make_spec(root, profile, head=h.newest_checkpoint(root), end_step=2 if kind == "lora" else STEPS + 1)
    if kind == "lora":
        assert do(first, sandbox).outcome is Outcome.DONE
    else:
        assert h.run(first, warm="azr", LONGHAUL_CRASHPOINT="worker.before_update:2:kill") == -signal.SIGKILL
    head = h.newest_checkpoint(root)
    assert head.step == 1
    second = h.make_spec(root, profile, head=head, end_step=STEPS + 1, attempt=2)
    assert do(second, sandbox).outcome is Outcome.DONE, h.result_of(second).error
    assert h.newest_checkpoint(root).digest == h.newest_checkpoint(base / "whole").digest


def test_moments_in_8_bits_are_stored_with_their_scales_and_code_books(kind: str, base: Path) -> None:
    stored = load_file(newest(base / "whole") / "optimizer.safetensors")
    dtypes = {name.rpartition(".")[2]: tensor.dtype for name, tensor in stored.items()}
    if kind == "lora":
        assert dtypes == {"step": torch.float32, "exp_avg": torch.float32, "exp_avg_sq": torch.float32}
    else:
        assert dtypes["state1"] == dtypes["state2"] == torch.uint8
        assert {"qmap1", "qmap2", "absmax1", "absmax2", "step"} <= set(dtypes)


@pytest.mark.parametrize("name", [adapters.WEIGHTS, "optimizer.safetensors"])
def test_mutation_what_is_not_restored_shows(
    name: str, kind: str, base: Path, tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "run"
    shutil.copytree(base / "seeded", root)
    spec = h.make_spec(root, profile_of(kind), head=h.newest_checkpoint(root), end_step=3)
    middle = checkpoint_of(do(spec, sandbox))
    load = Registry.load

    def forgetful(self: Registry, *args: object, **kwargs: object) -> None:
        monkeypatch.setattr(self._items[name], "load", lambda path: None, raising=False)
        load(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Registry, "load", forgetful)
    result = do(h.make_spec(root, profile_of(kind), head=middle, end_step=STEPS + 1, attempt=2), sandbox)
    if name == adapters.WEIGHTS:
        assert result.exit_code == ExitCode.INPUT and "are not those that were saved" in result.error
    else:
        assert checkpoint_of(result).digest != h.newest_checkpoint(base / "whole").digest


def test_peft_itself_loads_the_checkpoint(base: Path, kind: str) -> None:
    if kind != "lora":
        pytest.skip("the layout is the same; quantised bases are peft's own affair")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    directory = newest(base / "whole")
    pocket = Path(__file__).parents[3] / "workers/pocket/weights"
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(pocket), directory).eval()
    ours = restored_policy(profile_of(), directory, STEPS, CPU).model
    ids = torch.tensor([[5, 9, 20, 31]])
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, ours(ids).logits)
        with theirs.disable_adapter():
            assert not torch.equal(theirs(ids).logits, ours(ids).logits)


def test_validation_scores_what_was_trained(kind: str, base: Path, tmp_path: Path, sandbox: Sandbox) -> None:
    root = tmp_path / "run"
    shutil.copytree(base / "whole", root)
    spec = h.make_spec(root, profile_of(kind), head=h.newest_checkpoint(root), end_step=STEPS + 1, role="validate")
    carry_out(spec, Control(None, ""), job(spec, sandbox))
    assert h.result_of(spec).outcome is Outcome.DONE, h.result_of(spec).error
    assert h.result_of(spec).validation["pocket"]["mean"]["n"] == 24


def test_another_base_model_is_refused_on_resume(tmp_path: Path, sandbox: Sandbox) -> None:
    pocket, model = Path(__file__).parents[3] / "workers/pocket/weights", tmp_path / "model"
    shutil.copytree(pocket, model)
    profile = profile_of(model=Model(path=str(model)))
    seeded = do(h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0), sandbox)
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 0.5
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    result = do(h.make_spec(tmp_path, profile, head=checkpoint_of(seeded), end_step=2), sandbox)
    assert result.exit_code == ExitCode.INPUT
    assert "trained on another base model" in result.error and str(model) in result.advice


# --- F4: a validation that loads nothing must not pass -------------------------------------------------------------


def damaged(base: Path, tmp_path: Path, name: str, content: bytes) -> Path:
    directory = tmp_path / "checkpoint"
    shutil.copytree(newest(base / "whole"), directory)
    (directory / name).write_bytes(content)
    return directory


def refused(directory: Path, kind: str) -> str:
    with pytest.raises(LonghaulError) as caught:
        restored_policy(profile_of(kind), directory, STEPS, CPU)
    assert caught.value.exit_code == ExitCode.INPUT
    return caught.value.what


def test_O4_mutation_renamed_keys_are_refused(kind: str, base: Path, tmp_path: Path) -> None:
    """The published code stripped the adapter's name from the keys, and loaded what was left: nothing."""
    tensors = load_file(newest(base / "whole") / adapters.WEIGHTS)
    renamed = {name.replace(".lora_A.weight", ".lora_A.default.weight"): one for name, one in tensors.items()}
    save_file(renamed, tmp_path / "renamed", {"format": "pt"})
    directory = damaged(base, tmp_path, adapters.WEIGHTS, (tmp_path / "renamed").read_bytes())
    assert f"{len(tensors) // 2} missing, {len(tensors) // 2} unexpected" in refused(directory, kind)


def test_mutation_an_adapter_of_another_step_is_refused(kind: str, base: Path, tmp_path: Path) -> None:
    first = base / "whole" / h.first_checkpoint(base / "whole").path / adapters.WEIGHTS
    directory = damaged(base, tmp_path, adapters.WEIGHTS, first.read_bytes())
    assert "0 of its B matrices are not zero" in refused(directory, kind)


def test_mutation_another_scale_is_heard(kind: str, base: Path) -> None:
    profile = profile_of(kind, adapter=replace(profile_of(kind).adapter, alpha=200.0))
    with pytest.raises(LonghaulError, match="its answer to a fixed probe differs"):
        restored_policy(profile, newest(base / "whole"), STEPS, CPU)


def test_mutation_an_adapter_that_is_loaded_but_not_used_is_heard(kind: str, base: Path) -> None:
    directory = newest(base / "whole")
    policy = open_policy(profile_of(kind), directory, CPU)
    weights, proven = policy.items
    weights.load(directory / weights.filename)
    with adapters.disabled(policy.model), pytest.raises(LonghaulError, match="its answer to a fixed probe differs"):
        # The measurement without the adapter switches it on again at its end: the first one is what counts.
        proven.load(directory / proven.filename)


@pytest.mark.parametrize("implementation", ["own", "peft"])
def test_a_checkpoint_is_proven_whoever_computes_with_it(kind: str, base: Path, implementation: Any) -> None:
    """Run with one implementation, resumed with the other: the probe answers alike."""
    changed = replace(profile_of(kind).adapter, implementation=implementation)
    assert restored_policy(profile_of(kind, adapter=changed), newest(base / "whole"), STEPS, CPU).model is not None


def test_where_no_gradient_has_reached_the_adapter_it_is_said_that_the_base_answers(base: Path, kind: str) -> None:
    head, said = base / "whole" / h.first_checkpoint(base / "whole").path, list[str]()
    assert restored_policy(profile_of(kind), head, 0, CPU, said.append).model is not None
    assert not said
    restored_policy(profile_of(kind), head, 3, CPU, said.append)
    assert len(said) == 1 and said[0].startswith("no gradient has reached the adapter in 3 steps")


def test_the_proof_says_how_far_the_adapter_moves_the_answer(base: Path) -> None:
    stored = json.loads((newest(base / "whole") / proof.FILENAME).read_bytes())
    moved = max(abs(a - b) for a, b in zip(stored["logits"], stored["base_logits"], strict=True))
    assert moved > 0.01 and stored["num_trained"] == 28


def test_rewards_that_are_all_alike_leave_the_adapter_at_zero(tmp_path: Path, sandbox: Sandbox) -> None:
    """What the check above is for: with random weights nothing is ever right, and advantages are zero."""
    profile = profile_of(
        model=Model(random_init="qwen2-tiny"), azr=Azr(proposals_per_task=2, group_size=2),
    )  # fmt: skip
    seeded = do(h.make_spec(tmp_path, profile, head=None, end_step=1, cycle=0), sandbox)
    result = do(h.make_spec(tmp_path, profile, head=checkpoint_of(seeded), end_step=2), sandbox)
    stored = json.loads((tmp_path / checkpoint_of(result).path / proof.FILENAME).read_bytes())
    assert stored["num_trained"] == 0 and stored["logits"] == stored["base_logits"]
