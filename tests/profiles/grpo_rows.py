"""Knobs of [grpo] that are fine one by one and wrong together: rule, wrong knobs, and what makes them right."""

from __future__ import annotations

from typing import Any

import pytest

Knobs = dict[str, Any]
DETACHED: Knobs = {"grpo.old_source": "detach"}
WORD_PROBLEMS: Knobs = {
    "run.worker": "grpo", "model.path": "pocket-words", "model.prompt_style": "verbatim",
    "validation.suites": ("words",),
}  # fmt: skip
SEGMENTED: Knobs = {**WORD_PROBLEMS, "grpo.segment_tokens": 24}  # of 96
BESIDE: Knobs = {**WORD_PROBLEMS, "run.overlap": 1}
ON_A_SECOND: Knobs = {"run.sampler_device": "cuda:1"}
PLAYED: Knobs = {**WORD_PROBLEMS, "grpo.environment.name": "guess", "grpo.rewards": ("environment",)}

GRPO_ROWS = [
    pytest.param(
        "problems_are_asked_in_words",
        {"run.worker": "grpo", "validation.suites": ("gsm8k",), "model.path": "m", "model.prompt_style": "azr"},
        {"run.worker": "grpo", "validation.suites": ("gsm8k",), "model.path": "m", "model.prompt_style": "boxed"},
        id="problems in the words of self-play",
    ),
    pytest.param(
        "groups_fill_the_updates",
        {**WORD_PROBLEMS, "optimizer.updates_per_step": 3},
        {**WORD_PROBLEMS, "optimizer.updates_per_step": 3, "grpo.groups_per_step": 3},
        id="more updates than groups",
    ),
    pytest.param(
        "a_curriculum_has_no_end",
        {**WORD_PROBLEMS, "grpo.sent.enabled": True, "data.on_exhausted": "stop"},
        {**WORD_PROBLEMS, "grpo.sent.enabled": False, "data.on_exhausted": "stop"},
        id="the end of problems that come again and again",
    ),
    pytest.param(
        "threshold_is_used",
        {"grpo.entropy_mask": "threshold"},
        {"grpo.entropy_mask": "threshold", "grpo.variants.entropy_threshold": 0.5},
        id="a mask without its threshold",
    ),
    pytest.param(
        "threshold_is_used",
        {"grpo.entropy_mask": "percentile", "grpo.variants.entropy_threshold": 0.5},
        {"grpo.entropy_mask": "percentile"},
        id="a threshold without its mask",
    ),
    pytest.param(
        "selected_tokens_have_a_mask",
        {"grpo.variants.mask_norm": "selected"},
        {"grpo.variants.mask_norm": "selected", "grpo.entropy_mask": "running"},
        id="selected by no mask",
    ),
    pytest.param(
        "kl_has_a_reference",
        {"grpo.kl_coef": 0.04},
        {"grpo.kl_coef": 0.04, "adapter.rank": 16},
        id="a divergence from nothing",
    ),
    pytest.param(
        "kl_has_a_reference",
        {"grpo.variants.low_entropy_kl": 0.04, "grpo.entropy_mask": "percentile"},
        {"grpo.variants.low_entropy_kl": 0.04, "grpo.entropy_mask": "percentile", "adapter.rank": 16},
        id="a divergence of dropped tokens from nothing",
    ),
    pytest.param(
        "dropped_tokens_have_a_mask",
        {"grpo.variants.low_entropy_kl": 0.04, "adapter.rank": 16},
        {"grpo.variants.low_entropy_kl": 0.04, "adapter.rank": 16, "grpo.entropy_mask": "percentile"},
        id="dropped by no mask",
    ),
    pytest.param(
        "a_firmer_hold_has_a_share",
        {"grpo.variants.low_entropy_cov_share": 0.1},
        {"grpo.variants.low_entropy_cov_share": 0.0},
        id="a share that gets nothing",
    ),
    pytest.param(
        "extra_draws_replace_something",
        {"grpo.dynamic_sampling": True, "grpo.uniform": "keep"},
        {"grpo.dynamic_sampling": True},
        id="draws in place of groups that stay",
    ),
    pytest.param(
        "extra_draws_replace_something",
        {"grpo.dynamic_sampling": True, "grpo.max_extra_rounds": 0},
        {"grpo.dynamic_sampling": True, "grpo.max_extra_rounds": 1},
        id="draws in no round",
    ),
    *(
        pytest.param(rule, wrong, {**wrong, **right}, id=rule)
        for rule, wrong, right in (
            ("a_ratio_of_one_has_one_update", {**DETACHED, "grpo.inner_epochs": 2}, {"grpo.inner_epochs": 1}),
            ("selected_kl_has_a_mask", {"grpo.variants.kl_tokens": "selected"}, {"grpo.entropy_mask": "running"}),
            ("the_cap_is_over_the_clip", {"grpo.variants.ratio_cap": 1.1}, {"grpo.variants.ratio_cap": 1.2}),
        )
    ),
    pytest.param(
        "stages_can_end", {"grpo.sent.min_steps": 501}, {"grpo.sent.min_steps": 500}, id="longer than it may last"
    ),
    *(
        pytest.param(rule, {**SEGMENTED, **wrong}, {**SEGMENTED, **right}, id=f"segments: {rule}, {wrong}")
        for rule, wrong, right in (
            ("segments_fill_a_completion", {"grpo.segment_tokens": 36}, {"grpo.segment_tokens": 32}),
            ("segments_fill_a_completion", {"grpo.segment_tokens": 96}, {"grpo.segment_tokens": 48}),
            ("segments_are_drawn_in_order", {"grpo.dynamic_sampling": True}, {"grpo.dynamic_sampling": False}),
            ("segments_are_drawn_in_order", {"grpo.sent.enabled": True}, {"grpo.sent.enabled": False}),
            ("segments_are_drawn_in_order", PLAYED, WORD_PROBLEMS),
            ("older_tokens_are_corrected", {"grpo.old_source": "rollout"}, {"grpo.old_source": "trainer"}),
            ("older_tokens_are_corrected", {"optimizer.tis_cap": 0.0}, {"optimizer.tis_cap": 3.0}),
        )
    ),
    *(
        pytest.param(rule, {**BESIDE, **wrong}, {**BESIDE, **right}, id=f"overlap: {rule}, {wrong}")
        for rule, wrong, right in (
            ("older_tokens_are_corrected", {"grpo.old_source": "detach"}, {"grpo.old_source": "auto"}),
            ("older_tokens_are_corrected", {"optimizer.tis_cap": 0.0}, {"optimizer.tis_cap": 3.0}),
            ("overlap_has_one_engine", {"sampling.engine": "hf"}, {"sampling.engine": "native"}),
            ("overlap_has_one_engine", {"sampling.fallback": ("hf",)}, {"sampling.fallback": ()}),
            ("overlap_has_one_engine", {"run.gpus": 2}, {"run.gpus": 1}),
            ("sampler_is_a_second_device", {"run.sampler_device": "gpu"}, {"run.sampler_device": "cuda:1"}),
            ("sampler_is_a_second_device", {"run.sampler_device": "cuda"}, {"run.sampler_device": "cuda:2"}),
            ("sampler_is_a_second_device", {"run.sampler_device": "cuda:0"}, {"run.sampler_device": "cuda:10"}),
            ("sampler_is_a_second_device", {"run.sampler_device": "cuda:1\n"}, {"run.sampler_device": "cpu"}),
            ("sampler_is_a_second_device", {**ON_A_SECOND, "run.overlap": 0}, ON_A_SECOND),
            ("overlap_has_one_engine", {**ON_A_SECOND, "run.gpus": 2}, ON_A_SECOND),
            ("sampler_is_a_second_device", {**ON_A_SECOND, "run.device": "cpu"}, {**ON_A_SECOND, "run.device": "cuda"}),
        )
    ),
    pytest.param(
        "segments_have_a_worker",
        {"grpo.segment_tokens": 24},
        {**WORD_PROBLEMS, "grpo.segment_tokens": 24},
        id="segments of another worker",
    ),
    pytest.param(
        "rewards_are_known", {"grpo.rewards": ("corect",)}, {"grpo.rewards": ("mine.py:good",)}, id="no such reward"
    ),
    pytest.param(
        "rewards_have_names_of_their_own",
        {"grpo.rewards": ("a.py:good", "b.py:good")},
        {"grpo.rewards": ("a.py:good", "b.py:better")},
        id="two rewards of one name",
    ),
    pytest.param(
        "each_reward_has_a_weight",
        {"grpo.rewards": ("correct", "format"), "grpo.reward_weights": (1.0,)},
        {"grpo.rewards": ("correct", "format"), "grpo.reward_weights": (1.0, 0.2)},
        id="a reward without a weight",
    ),
    pytest.param(
        "a_curriculum_has_answers",
        {"grpo.sent.enabled": True, "grpo.rewards": ("format",)},
        {"grpo.sent.enabled": True, "grpo.rewards": ("format", "correct")},
        id="a curriculum without answers",
    ),
    *(
        pytest.param(rule, wrong, right, id=rule)
        for rule, wrong, right in (
            ("an_environment_gives_a_reward", {**WORD_PROBLEMS, "grpo.environment.name": "guess"}, PLAYED),
            ("an_environment_gives_a_reward", {**WORD_PROBLEMS, "grpo.rewards": ("environment",)}, PLAYED),
            (
                "an_environment_is_known",
                PLAYED | {"grpo.environment.name": "gess"},
                PLAYED | {"grpo.environment.name": "verifiers:wordle"},
            ),
            (
                "an_environment_has_no_curriculum",
                PLAYED | {"grpo.sent.enabled": True, "grpo.rewards": ("environment", "correct")},
                PLAYED,
            ),
            ("verl_has_no_environment", {"grpo.environment.name": "guess", "grpo.rewards": ("environment",)}, PLAYED),
        )
    ),
    pytest.param(
        "options_belong_to_a_reward",
        {"grpo.reward.options": {"xml": {"tags": ["a"]}}},
        {"grpo.reward.options": {"xml": {"tags": ["a"]}}, "grpo.rewards": ("correct", "xml")},
        id="options of a reward that is not named",
    ),
]
