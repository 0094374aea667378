"""Combinations of knobs that are invalid although each knob is valid."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.knobs import knobs
from profiles.load import load_profile, shipped_profiles
from profiles.rules import RULES, check
from profiles.schema import Profile
from tests.profiles.data_rows import DATA_ROWS
from tests.profiles.grpo_rows import GRPO_ROWS
from tests.profiles.strategies import profile_with
from tests.profiles.verl_rows import VERL_ROWS

FP8 = {"model.fp8": True, "adapter.rank": 8, "model.gradient_checkpointing": True, "model.dtype": "bfloat16"}

Knobs = dict[str, Any]
TWO: Knobs = {"run.gpus": 2}
FAKE: Knobs = {"run.worker": "fake", "validation.suites": ("fake",)}
BASE: Knobs = {"model.prompt_style": "azr", "model.path": "models/base"}


@pytest.mark.parametrize(
    ("rule", "wrong", "right"),
    [
        pytest.param("name_is_a_file_name", {"name": ".hidden"}, {"name": "night-2.b_c"}, id="hidden"),
        pytest.param("name_is_a_file_name", {"name": "a/b"}, {"name": "a"}, id="a folder in a folder"),
        pytest.param("name_is_a_file_name", {"name": "n" * 65}, {"name": "n" * 64}, id="a long name"),
        pytest.param("name_is_a_file_name", {"name": "a\n"}, {"name": "a"}, id="a line's end"),
        *(
            pytest.param("goal_can_be_met", {"run.until": wrong}, {"run.until": right}, id=f"goal {wrong}")
            for wrong, right in (
                ("mean", "mean>=0.9"),
                ("gsm8k/mean>=0.1", "pocket/mean>=0.1"),
                ("maths>=0.1", "ind>=0.1"),
                ("maen>=0.1", "mean>=0.1"),
                ("mean.acc>=0.1", "mean.accuracy>=0.1"),
                ("mean.malformed<0.1", "ind.malformed<0.1"),
                ("mean>=2", "mean>=1"),
                ("mean<=2", "mean<=1"),
                ("mean>1", "mean>0.99"),
                ("mean<0", "mean<0.01"),
                ("pocket/ind.sampled_accuracy>80", "ind.mean_tokens>80"),
            )
        ),
        *(
            pytest.param(
                "launcher_is_known", {"launch.launcher": wrong}, {"launch.launcher": right}, id=f"launcher {wrong}"
            )
            for wrong, right in (("lsf", "local"), ("my/file.py:Nice", "my.file:Nice"), (":Nice", "nice:Nice"))
        ),
        pytest.param(
            "a_run_begins_with_seeding", {"run.phases": ("train",)}, {"run.phases": ("seed",)}, id="training alone"
        ),
        pytest.param(
            "inputs_are_kept_alone",
            {"model.offload_inputs": True},
            {"model.offload_inputs": True, "model.gradient_checkpointing": True},
            id="inputs of layers that keep all",
        ),
        *(
            pytest.param(
                "layers_are_kept_beside_recomputed_ones",
                {"model.keep_gib": 1.0, "adapter.rank": 8, "model.gradient_checkpointing": True} | wrong,
                {"model.keep_gib": 1.0, "adapter.rank": 8, "model.gradient_checkpointing": True} | right,
                id=f"kept layers: {name}",
            )
            for name, wrong, right in (
                ("all are", {"model.gradient_checkpointing": False}, {"adapter.rank": 0}),
                ("shards", {"adapter.rank": 0, "run.gpus": 2}, {"adapter.rank": 8, "run.gpus": 2}),
                ("peft's", {"adapter.implementation": "peft"}, {}),
            )
        ),
        *(
            pytest.param("eight_bits_have_frozen_weights", FP8 | wrong, FP8, id=f"8 bits: {name}")
            for name, wrong in (
                ("layers that keep all", {"model.gradient_checkpointing": False}),
                ("no adapter", {"adapter.rank": 0}),
                ("peft's", {"adapter.implementation": "peft"}),
                ("float32", {"model.dtype": "float32"}),
            )
        ),
        *(
            pytest.param(
                rule, {"run.overlap": 1, **wrong}, {"run.overlap": 1, **right}, id=f"overlap of self-play: {rule}"
            )
            for rule, wrong, right in (
                ("overlap_has_one_engine", {"sampling.engine": "hf"}, {"sampling.engine": "native"}),
                ("older_tokens_are_corrected", {"optimizer.tis_cap": 0.0}, {"optimizer.tis_cap": -1.0}),
                (
                    "sampler_is_a_second_device",
                    {"run.sampler_device": "cuda:1", "run.overlap": 0},
                    {"run.sampler_device": "cuda:1"},
                ),
            )
        ),
        *(
            pytest.param(
                "overlapped_validation_has_a_worker",
                {**BASE, "validation.overlap": 1, **wrong},
                {**BASE, "validation.overlap": 1},
                id=f"validation beside a worker with {wrong}",
            )
            for wrong in ({"launch.launcher": "slurm"}, TWO)
        ),
        pytest.param(
            "sampler_is_a_second_device",
            {**FAKE, "run.overlap": 1, "run.sampler_device": "cuda:1"},
            {**FAKE, "run.overlap": 1},
            id="a sampler of two floats",
        ),
        pytest.param(
            "rollouts_fill_the_updates",
            # One task, no proposer: a step may have no more than one group of 8 solver rollouts.
            {"azr.tasks": ("ded",), "azr.variants.train_proposer": False, "optimizer.updates_per_step": 9},
            {"azr.tasks": ("ded",), "azr.variants.train_proposer": False, "optimizer.updates_per_step": 8},
            id="more updates than rollouts",
        ),
        pytest.param(
            "rollouts_fill_the_updates",
            # 2 tasks * (3 proposals + 4 solved).
            {
                "azr.tasks": ("abd", "ded"),
                "azr.proposals_per_task": 3,
                "azr.train_on_estimates": False,
                "azr.solve_batch": 4,
                "optimizer.updates_per_step": 15,
            },
            {
                "azr.tasks": ("abd", "ded"),
                "azr.proposals_per_task": 3,
                "azr.train_on_estimates": False,
                "azr.solve_batch": 4,
                "optimizer.updates_per_step": 14,
            },
            id="more updates than proposals and solves",
        ),
        pytest.param("adapter_has_no_dropout", {"adapter.dropout": 0.1}, {"adapter.dropout": 0.0}, id="f17: dropout"),
        pytest.param(
            "adapter_has_targets",
            {"adapter.rank": 8, "adapter.targets": ()},
            {"adapter.rank": 8, "adapter.targets": ("q_proj",)},
            id="an adapter of nothing",
        ),
        pytest.param(
            "quantized_weights_are_frozen",
            {"model.quantization": "nf4"},
            {"model.quantization": "nf4", "adapter.rank": 8},
            id="weights of 4 bits that train",
        ),
        pytest.param(
            "moments_have_one_home",
            {"optimizer.kind": "adamw8bit", "optimizer.offload": True},
            {"optimizer.kind": "adamw", "optimizer.offload": True},
            id="8 bits where memory is plenty",
        ),
        pytest.param(
            "pages_need_a_gpu",
            {"optimizer.kind": "paged_adamw8bit", "run.device": "cpu"},
            {"optimizer.kind": "paged_adamw8bit", "run.device": "cuda"},
            id="pages of no GPU",
        ),
        pytest.param(
            "random_weights_need_no_path",
            {"model.random_init": "qwen2-tiny", "model.path": "models/mine"},
            {"model.random_init": "qwen2-tiny"},
            id="a path that nothing reads",
        ),
        pytest.param(
            "rollouts_fill_the_updates",
            # 6 proposals and 6 solutions: 12 rows, refused before anything is generated.
            {
                "azr.tasks": ("ded",),
                "azr.proposals_per_task": 6,
                "azr.train_on_estimates": False,
                "optimizer.updates_per_step": 24,
            },
            {
                "azr.tasks": ("ded",),
                "azr.proposals_per_task": 6,
                "azr.train_on_estimates": False,
                "optimizer.updates_per_step": 12,
            },
            id="A11",
        ),
        pytest.param(
            "the_built_in_model_has_its_own_style",
            {"model.prompt_style": "azr"},
            {"model.prompt_style": "azr", "model.path": "models/base"},
            id="English for a model of ten letters",
        ),
        pytest.param(
            "self_play_has_words",
            {"model.prompt_style": "verbatim", "model.path": "models/base", "validation.suites": ("words",)},
            {"model.prompt_style": "azr", "model.path": "models/base", "validation.suites": ("words",)},
            id="self-play in a style for known problems",
        ),
        pytest.param(
            "proposer_share_is_used",
            {"azr.proposer_share": 0.5, "azr.variants.train_proposer": False},
            {"azr.proposer_share": 0.5},
            id="the weight of a proposer that is not trained",
        ),
        pytest.param(
            "solver_mix_is_used",
            {"azr.variants.solver_mix": "half_new"},
            {"azr.variants.solver_mix": "half_new", "azr.train_on_estimates": False},
            id="a solver mix that nothing reads",
        ),
        pytest.param(
            "token_statistics_have_cells",
            {"azr.variants.adv_norm": "token", "azr.advantages": "group"},
            {"azr.variants.adv_norm": "token"},
            id="token statistics of groups",
        ),
        pytest.param(
            "solve_batch_is_used",
            {"azr.solve_batch": 4},
            {"azr.solve_batch": 4, "azr.train_on_estimates": False},
            id="a solve batch that nothing reads",
        ),
        pytest.param("tasks_are_named_once", {"azr.tasks": ("ded", "ded")}, {"azr.tasks": ("ded",)}, id="a task twice"),
        pytest.param(
            "buffer_holds_the_seeds",
            {"azr.buffer_cap": 3, "azr.seed_tasks": 4},
            {"azr.buffer_cap": 4, "azr.seed_tasks": 4},
            id="more seeds than room",
        ),
        pytest.param(
            "references_exist",
            {"azr.buffer_cap": 3, "azr.references": 4, **BASE},
            {"azr.buffer_cap": 4, "azr.references": 4, **BASE},
            id="more references than tasks",
        ),
        pytest.param(
            "sequences_are_possible",
            {"sampling.max_prompt_tokens": 32_000, "sampling.max_completion_tokens": 769},
            {"sampling.max_prompt_tokens": 32_000, "sampling.max_completion_tokens": 768},
            id="a sequence that no model takes",
        ),
        pytest.param(
            "fallbacks_are_other_engines",
            {"sampling.engine": "vllm", "sampling.fallback": ("native", "native")},
            {"sampling.engine": "vllm", "sampling.fallback": ("native", "hf")},
            id="a fallback twice",
        ),
        pytest.param(
            "fallbacks_are_other_engines",
            {"sampling.engine": "hf", "sampling.fallback": ("hf",)},
            {"sampling.engine": "hf", "sampling.fallback": ("native",)},
            id="an engine that falls back on itself",
        ),
        pytest.param(
            "vllm_batches_hold_a_token_each",
            {"vllm.max_num_batched_tokens": 255, "vllm.max_num_seqs": 256},
            {"vllm.max_num_batched_tokens": 256, "vllm.max_num_seqs": 256},
            id="more sequences than tokens",
        ),
        pytest.param(
            "vllm_has_a_gpu",
            {"sampling.engine": "vllm", "run.device": "cpu"},
            {"sampling.engine": "vllm", "run.device": "cpu", "sampling.fallback": ("native",)},
            id="vLLM on a CPU",
        ),
        *(
            pytest.param(
                "vllm_has_room_for_the_adapter",
                {"adapter.rank": 513, "sampling.engine": engine, "sampling.fallback": fallback},
                {"adapter.rank": 512, "sampling.engine": engine, "sampling.fallback": fallback},
                id=f"an adapter that vLLM has no room for: {engine} {fallback}",
            )
            for engine, fallback in (("vllm", ()), ("vllm", ("native",)), ("native", ("vllm",)))
        ),
        pytest.param(
            "warmup_ends_before_decay",
            {"optimizer.warmup_steps": 10, "optimizer.decay_steps": 10},
            {"optimizer.warmup_steps": 9, "optimizer.decay_steps": 10},
            id="warm-up as long as the decay",
        ),
        pytest.param(
            "decay_goes_down",
            {"optimizer.decay_steps": 100, "optimizer.final_learning_rate": 3e-4},
            {"optimizer.decay_steps": 100, "optimizer.final_learning_rate": 2e-4},
            id="a decay upwards",
        ),
        pytest.param(
            "decay_goes_down",
            {"optimizer.final_learning_rate": 1e-5},
            {"optimizer.final_learning_rate": 1e-5, "optimizer.decay_steps": 100},
            id="a decay without an end",
        ),
        pytest.param(
            "betas_are_shares",
            {"optimizer.betas": (0.9, 1.0)},
            {"optimizer.betas": (0.0, 0.999)},
            id="a moment that never forgets",
        ),
        pytest.param(
            "exhaustion_has_a_source",
            {"data.on_exhausted": "stop"},
            {"data.on_exhausted": "stop", "data.tasks": "tasks.jsonl"},
            id="the end of what has no end",
        ),
        pytest.param(
            "sources_fill_buffers",
            {"data.sources": ["previous"], "data.tasks": "tasks.jsonl"},
            {"data.sources": ["previous"]},
            id="buffers that nobody plays with",
        ),
        pytest.param(
            "programs_end",
            {"sandbox.cpu_s": 2.0, "sandbox.wall_s": 1.9},
            {"sandbox.cpu_s": 2.0, "sandbox.wall_s": 2.0},
            id="a wall clock that judges",
        ),
        pytest.param(
            "something_required",
            {"sandbox.require": ("userns",)},
            {"sandbox.require": ("userns",), "sandbox.allow_weak": True},
            id="no sandbox at all",
        ),
        pytest.param(
            "something_required",
            {"sandbox.require": ()},
            {"sandbox.require": ("seccomp",)},
            id="one layer at least",
        ),
        *(
            pytest.param("suites_are_known", {"validation.suites": wrong}, {"validation.suites": ("pocket",)}, id=label)
            for wrong, label in ((("pocket", "poket"), "a suite that nobody knows"), (("nowhere:SUITE",), "no module"))
        ),
        pytest.param(
            "suite_fits_the_worker",
            {"validation.suites": ("pocket", "fake")},
            {"validation.suites": ("fake",), "run.worker": "fake"},
            id="a suite of another worker",
        ),
        pytest.param(
            "suite_fits_the_style",
            {"validation.suites": ("pocket", "gsm8k")},
            {"validation.suites": ("pocket", "gsm8k"), "model.prompt_style": "azr", "model.path": "models/base"},
            id="a suite that the pocket style has no words for",
        ),
        *(
            pytest.param(
                "thinking_needs_a_template",
                {"model.thinking": thinking, "model.prompt_style": style, "model.path": "models/base"},
                {"model.thinking": right, "model.prompt_style": right_style, "model.path": "models/base"},
                id=f"thinking {thinking} with the style {style}",
            )
            for thinking, style, right, right_style in (
                ("on", "azr", "on", "azr-chat"),
                ("off", "azr", "template", "azr"),
                ("off", "azr-chat", "template", "azr-chat"),
            )
        ),
        pytest.param(
            "backoff_grows",
            {"retry.backoff_s": 301.0},
            {"retry.backoff_s": 300.0},
            id="a first wait over the longest",
        ),
        pytest.param(
            "fault_is_for_the_fake",
            {"fake.step_s": 1.0},
            {"fake.step_s": 1.0, "run.worker": "fake", "validation.suites": ("fake",)},
            id="a fault that nobody would make",
        ),
        *(
            pytest.param(
                "the_pocket_style_is_one_form",
                {knob: value},
                {knob: value, **BASE},
                id=f"what the pocket style cannot say: {knob} = {value}",
            )
            for knob, value in (
                ("azr.variants.composite_from_step", 1),
                ("azr.references", 2),
                ("azr.references", 0),
                ("azr.variants.hide_input", True),
                ("azr.variants.program_fence", "last"),
                ("azr.variants.lenient_fallbacks", True),
                ("azr.variants.seed_parse", "answer"),
            )
        ),
        *DATA_ROWS,
        *GRPO_ROWS,
        *VERL_ROWS,
        *(
            pytest.param(rule, wrong, {**wrong, **right}, id=rule)
            for rule, wrong, right in (
                ("ranks_draw_rollouts_themselves", {**TWO, "sampling.engine": "vllm"}, {"sampling.engine": "hf"}),
                ("ranks_share_exact_moments", {**TWO, "optimizer.kind": "adamw8bit"}, {"optimizer.kind": "adamw"}),
                ("ranks_share_exact_moments", {**TWO, "optimizer.kind": "adamw8bit"}, {"adapter.rank": 8}),
                ("hosts_have_a_network", {"run.hosts": 2, "launch.launcher": "slurm"}, {"launch.interface": "ib0"}),
                ("hosts_come_from_a_launcher", {"run.hosts": 2}, {"launch.launcher": "mine:Mine"}),
                ("hosts_come_from_a_launcher", {"run.hosts": 2, "launch.launcher": "ray"}, {"run.hosts": 1}),
                (
                    "ray_has_no_partitions",
                    {"launch.launcher": "ray", "launch.options": ("--hold",)},
                    {"launch.options": ()},
                ),
                ("an_address_is_a_url", {"launch.address": "head:8265"}, {"launch.address": "http://head:8265"}),
                (
                    "an_address_is_a_url",
                    {"launch.address": "http://[head:8265"},
                    {"launch.address": "http://[::1]:8265"},
                ),
                ("an_address_is_a_url", {"launch.address": "http://head:port"}, {"launch.address": "https://head/ray"}),
                ("ranks_have_work", {**TWO, "run.worker": "fake", "validation.suites": ("fake",)}, {"run.gpus": 1}),
            )
        ),
    ],
)
def test_knobs_that_contradict_each_other_are_refused(rule: str, wrong: Knobs, right: Knobs) -> None:
    broken = [each.__name__ for each in RULES if each(profile_with("mine", wrong)) is not None]
    assert broken == [rule]
    assert check(profile_with("mine", right)) == []


def test_every_rule_has_its_row_above() -> None:
    (mark,) = test_knobs_that_contradict_each_other_are_refused.pytestmark
    assert {row.values[0] for row in mark.args[1]} == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize("name", shipped_profiles())
def test_the_shipped_profiles_break_no_rule(name: str) -> None:
    assert check(load_profile(name).profile) == []


def test_the_defaults_break_no_rule() -> None:
    assert check(Profile(name="x")) == []


def test_a_problem_names_knobs_that_exist() -> None:
    (mark,) = test_knobs_that_contradict_each_other_are_refused.pytestmark
    for row in mark.args[1]:
        for problem in check(profile_with("mine", row.values[1])):
            assert set(problem.knobs) <= set(knobs())
