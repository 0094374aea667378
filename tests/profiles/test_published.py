"""The published setting of Absolute Zero is the profile `azr-paper`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from profiles.load import load_profile
from profiles.schema import Profile

DOCS = Path(__file__).parents[2] / "docs" / "algorithm.md"


@pytest.fixture(scope="module")
def published() -> Profile:
    return load_profile("azr-paper").profile


def test_the_documented_way_to_its_choices_for_another_model_keeps_them(published: Profile, tmp_path: Path) -> None:
    _, _, section = DOCS.read_text(encoding="utf-8").partition("### The published setting")
    found = re.search(r"```toml\n(.*?)```", section, re.DOTALL)
    assert found
    path = tmp_path / "published.toml"
    path.write_text(found.group(1), encoding="utf-8")
    other = load_profile(str(path)).profile
    assert (other.azr, other.sampling, other.run) == (published.azr, published.sampling, published.run)
    assert (other.model.path, other.optimizer.kind) == ("models/Qwen2.5-Coder-0.5B", "adamw8bit")


def test_a_known_proposal_is_paid_as_a_new_one_and_known_by_its_text(published: Profile) -> None:
    azr, variants = published.azr, published.azr.variants
    assert (variants.repeats, azr.novelty, azr.proposer_zero_reward, variants.adv_norm) == (
        "as_new",
        "text",
        -0.5,
        "token",
    )
    assert (
        variants.single_def_only
        and variants.lenient_fallbacks
        and variants.allow_none_output
        and not variants.strict_types
    )


def test_no_rule_ends_it_early(published: Profile) -> None:
    assert (published.stagnation.on_plateau, published.stagnation.on_no_data) == ("continue", "continue")


def test_a_step_has_384_rollouts_in_3_updates_of_128(published: Profile) -> None:
    azr, variants = published.azr, published.azr.variants
    rows = len(azr.tasks) * (azr.proposals_per_task + azr.solve_batch)
    assert (rows, rows // published.optimizer.updates_per_step) == (384, 128)
    assert not azr.train_on_estimates and variants.minibatch_order == "task" and variants.train_proposer


def test_a_run_has_500_steps(published: Profile) -> None:
    assert published.run.max_cycles * published.run.steps_per_cycle == 500


def test_seeds_references_estimates_and_cap(published: Profile) -> None:
    azr, variants = published.azr, published.azr.variants
    assert (azr.seed_tasks, azr.references, azr.group_size, azr.buffer_cap) == (256, 6, 8, 16384)
    assert (variants.reference_weighting, variants.solver_mix, variants.buffer_filter) == (
        "uniform",
        "max_new",
        "all",
    )
    assert (variants.composite_from_step, variants.seed_parse, variants.induction_reward) == (
        0,
        "whole_response",
        "binary",
    )


def test_lengths_and_sampler(published: Profile) -> None:
    sampling = published.sampling
    assert (sampling.max_prompt_tokens, sampling.max_completion_tokens, sampling.temperature) == (6144, 8096, 1.0)


def test_what_a_program_may_use(published: Profile) -> None:
    assert (published.sandbox.cpu_s, published.sandbox.memory_mb) == (10, 1024)


def test_the_optimiser(published: Profile) -> None:
    knobs = published.optimizer
    assert (knobs.kind, knobs.learning_rate, knobs.weight_decay, knobs.max_grad_norm) == ("adamw", 1e-6, 0.01, 1.0)
    assert (knobs.warmup_steps, knobs.decay_steps) == (0, 0)
    assert (knobs.clip_ratio_low, knobs.clip_ratio_high, knobs.entropy_coef) == (0.2, 0.2, 0.001)
    assert (published.azr.loss_divisor, published.azr.advantages) == ("tokens", "cell")


@pytest.mark.parametrize(
    ("knob", "paper"),
    [
        ("azr.proposer_zero_reward", "0.0"),
        ("azr.variants.adv_norm", "sample"),
        ("azr.variants.single_def_only", "false"),
    ],
)
def test_where_paper_and_code_differ_both_can_be_had(knob: str, paper: str) -> None:
    load_profile("azr-0.5b", [f"{knob}={paper}"])


@pytest.mark.parametrize("name", ["azr-0.5b", "azr-3b-qlora", "azr-3b-qlora-8gb"])
def test_the_shipped_profiles_keep_the_published_algorithm(name: str) -> None:
    profile = load_profile(name).profile
    azr, knobs = profile.azr, profile.optimizer
    assert set(azr.tasks) == {"abd", "ded", "ind"} and azr.seed_tasks == 256
    assert (azr.proposer_zero_reward, azr.advantages, knobs.updates_per_step) == (-0.5, "cell", 3)
    assert (knobs.entropy_coef, profile.sampling.temperature, profile.run.steps_per_cycle) == (0.001, 1.0, 20)
    assert profile.validation.every == 1
    rule = profile.stagnation
    assert (rule.min_cycles * profile.run.steps_per_cycle, rule.patience_cycles, rule.poor_cycles) == (200, 24, 3)
    assert rule.min_new_share == rule.min_learnable_share == 0.05
    if profile.adapter.rank:
        assert profile.run.checkpoint_every == 2 and profile.model.quantization == "nf4"
