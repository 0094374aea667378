"""The rules of [grpo], which rules.py includes. (pure)"""

from __future__ import annotations

from profiles.finding import Finding
from profiles.knobs import value_of
from profiles.rewards import BUILT_IN, ENVIRONMENT, ENVIRONMENTS, LIBRARY, ON_ANSWERS, is_function, part_name
from profiles.schema import Profile
from profiles.suites import FOR_PROBLEMS


def problems_are_asked_in_words(p: Profile) -> Finding | None:
    if p.run.worker not in ("grpo", "verl") or p.model.prompt_style in FOR_PROBLEMS:
        return None
    return Finding(
        ("model.prompt_style", "run.worker"), 'cannot express problems with known answers; use "boxed" or "verbatim"'
    )


def groups_fill_the_updates(p: Profile) -> Finding | None:
    if p.run.worker not in ("grpo", "verl") or p.optimizer.updates_per_step <= p.grpo.groups_per_step:
        return None
    return Finding(
        ("optimizer.updates_per_step", "grpo.groups_per_step"),
        f"needs a group for each update, but a step has only {p.grpo.groups_per_step}",
    )


def a_curriculum_has_no_end(p: Profile) -> Finding | None:
    if p.run.worker != "grpo" or not p.grpo.sent.enabled or p.data.on_exhausted == "reshuffle":
        return None
    return Finding(
        ("data.on_exhausted", "grpo.sent.enabled"),
        'is "stop", but a curriculum repeats problems; use "reshuffle", or no curriculum',
    )


def threshold_is_used(p: Profile) -> Finding | None:
    if (p.grpo.entropy_mask == "threshold") == (p.grpo.variants.entropy_threshold > 0):
        return None
    return Finding(
        ("grpo.variants.entropy_threshold", "grpo.entropy_mask"),
        'belongs to entropy_mask = "threshold": above 0 with it, 0 without',
    )


def selected_tokens_have_a_mask(p: Profile) -> Finding | None:
    if p.grpo.variants.mask_norm == "all" or p.grpo.entropy_mask != "off":
        return None
    return Finding(
        ("grpo.variants.mask_norm", "grpo.entropy_mask"),
        'counts the tokens of a mask, but entropy_mask is "off"',
    )


def kl_has_a_reference(p: Profile) -> Finding | None:
    weighed = [name for name in ("grpo.kl_coef", "grpo.variants.low_entropy_kl") if value_of(p, name) > 0]
    if not weighed or p.adapter.rank > 0 or p.run.worker == "verl":
        return None
    return Finding((weighed[0], "adapter.rank"), "refers to the model without its adapter; set adapter.rank, or 0 here")


def dropped_tokens_have_a_mask(p: Profile) -> Finding | None:
    if p.grpo.variants.low_entropy_kl == 0 or p.grpo.entropy_mask != "off":
        return None
    return Finding(
        ("grpo.variants.low_entropy_kl", "grpo.entropy_mask"),
        'is for tokens that a mask drops, but entropy_mask is "off"',
    )


def a_firmer_hold_has_a_share(p: Profile) -> Finding | None:
    has_share, has_weight = p.grpo.variants.low_entropy_cov_share > 0, p.grpo.variants.low_entropy_cov_kl > 0
    if has_share == has_weight and (p.grpo.variants.low_entropy_kl > 0 or not has_share):
        return None
    return Finding(
        ("grpo.variants.low_entropy_cov_share", "grpo.variants.low_entropy_cov_kl", "grpo.variants.low_entropy_kl"),
        "is a share of the tokens with low_entropy_kl, and uses low_entropy_cov_kl: "
        "set all three above 0, or the first two to 0",
    )


def extra_draws_replace_something(p: Profile) -> Finding | None:
    if not p.grpo.dynamic_sampling or (p.grpo.uniform == "skip" and p.grpo.max_extra_rounds > 0):
        return None
    return Finding(
        ("grpo.dynamic_sampling", "grpo.uniform", "grpo.max_extra_rounds"),
        'replaces skipped groups, so it needs uniform = "skip" and max_extra_rounds >= 1',
    )


def a_ratio_of_one_has_one_update(p: Profile) -> Finding | None:
    if p.grpo.old_source != "detach" or p.optimizer.updates_per_step * p.grpo.inner_epochs == 1:
        return None
    return Finding(
        ("grpo.old_source", "optimizer.updates_per_step", "grpo.inner_epochs"),
        'is "detach", which needs one update per step: in a second update the ratio is not 1',
    )


def selected_kl_has_a_mask(p: Profile) -> Finding | None:
    if p.grpo.variants.kl_tokens == "all" or p.grpo.entropy_mask != "off":
        return None
    return Finding(
        ("grpo.variants.kl_tokens", "grpo.entropy_mask"), 'counts the tokens of a mask, but entropy_mask is "off"'
    )


def the_cap_is_over_the_clip(p: Profile) -> Finding | None:
    if p.grpo.variants.ratio_cap == 0 or p.grpo.variants.ratio_cap >= 1 + p.optimizer.clip_ratio_high:
        return None
    return Finding(
        ("grpo.variants.ratio_cap", "optimizer.clip_ratio_high"),
        f"is less than 1 + clip_ratio_high ({1 + p.optimizer.clip_ratio_high:g})",
    )


def segments_fill_a_completion(p: Profile) -> Finding | None:
    segment, longest = p.grpo.segment_tokens, p.sampling.max_completion_tokens
    if segment == 0 or (segment < longest and longest % segment == 0):
        return None
    return Finding(
        ("grpo.segment_tokens", "sampling.max_completion_tokens"),
        f"must divide the longest completion ({longest}) into several segments of one length; 0: none",
    )


def segments_have_a_worker(p: Profile) -> Finding | None:
    if p.grpo.segment_tokens == 0 or p.run.worker == "grpo":
        return None
    return Finding(("grpo.segment_tokens", "run.worker"), "is for the worker grpo alone; use 0")


def segments_are_drawn_in_order(p: Profile) -> Finding | None:
    """What asks for whole groups in the step that draws them."""
    if p.grpo.segment_tokens == 0:
        return None
    asks = {
        "grpo.dynamic_sampling": p.grpo.dynamic_sampling,
        "grpo.sent.enabled": p.grpo.sent.enabled,
        "grpo.environment.name": bool(p.grpo.environment.name),
    }
    if used := [name for name, is_on in asks.items() if is_on]:
        return Finding(
            ("grpo.segment_tokens", *used), f"lets groups end in later steps, which {used[0]} does not allow"
        )
    return None


def stages_can_end(p: Profile) -> Finding | None:
    if p.grpo.sent.min_steps <= p.grpo.sent.max_steps:
        return None
    return Finding(("grpo.sent.min_steps", "grpo.sent.max_steps"), f"is more than max_steps ({p.grpo.sent.max_steps})")


def rewards_are_known(p: Profile) -> Finding | None:
    unknown = [name for name in p.grpo.rewards if name not in BUILT_IN and not is_function(name)]
    if not unknown:
        return None
    return Finding(
        ("grpo.rewards",),
        f"names {unknown[0]!r}, which is neither a built-in part ({', '.join(BUILT_IN)}) "
        "nor a function (FILE.py:NAME or MODULE:NAME)",
    )


def rewards_have_names_of_their_own(p: Profile) -> Finding | None:
    names = [part_name(name) for name in p.grpo.rewards]
    twice = [name for name in names if names.count(name) > 1]
    return Finding(("grpo.rewards",), f"names {twice[0]!r} twice") if twice else None


def each_reward_has_a_weight(p: Profile) -> Finding | None:
    if len(p.grpo.reward_weights) in (0, len(p.grpo.rewards)):
        return None
    return Finding(
        ("grpo.reward_weights", "grpo.rewards"),
        f"has {len(p.grpo.reward_weights)} numbers for {len(p.grpo.rewards)} parts; leave it empty for 1 each",
    )


def a_curriculum_has_answers(p: Profile) -> Finding | None:
    if not p.grpo.sent.enabled or ON_ANSWERS & {*p.grpo.rewards}:
        return None
    return Finding(
        ("grpo.sent.enabled", "grpo.rewards"),
        "orders problems by their right answers, and no part of the reward needs one; "
        'set it to false, or add "correct" to grpo.rewards (with a weight of 0, if it shall not count)',
    )


def an_environment_gives_a_reward(p: Profile) -> Finding | None:
    has_name, has_part = bool(p.grpo.environment.name), ENVIRONMENT in p.grpo.rewards
    if has_name == has_part:
        return None
    if has_name:
        return Finding(
            ("grpo.rewards", "grpo.environment.name"), 'needs the part "environment", which is what it gives'
        )
    return Finding(("grpo.environment.name", "grpo.rewards"), 'is empty, but the part "environment" needs one: name it')


def an_environment_is_known(p: Profile) -> Finding | None:
    name = p.grpo.environment.name
    if not name or name in ENVIRONMENTS or is_function(name) or (name.startswith(LIBRARY) and name != LIBRARY):
        return None
    return Finding(
        ("grpo.environment.name",),
        f"is {name!r}, which is neither a built-in environment ({', '.join(ENVIRONMENTS)}) "
        "nor FILE.py:NAME, MODULE:NAME or verifiers:ID",
    )


def an_environment_has_no_curriculum(p: Profile) -> Finding | None:
    if not p.grpo.environment.name or not p.grpo.sent.enabled:
        return None
    return Finding(
        ("grpo.sent.enabled", "grpo.environment.name"),
        "orders problems by single answers, and an environment holds conversations; set it to false",
    )


def verl_has_no_environment(p: Profile) -> Finding | None:
    if p.run.worker == "grpo" or not p.grpo.environment.name:
        return None
    return Finding(("grpo.environment.name", "run.worker"), f'is for the worker "grpo", and this is "{p.run.worker}"')


def options_belong_to_a_reward(p: Profile) -> Finding | None:
    idle = [name for name in p.grpo.reward.options if name not in p.grpo.rewards]
    if not idle:
        return None
    return Finding(("grpo.reward.options", "grpo.rewards"), f"has options for {idle[0]!r}, which rewards does not name")


RULES = (
    rewards_are_known,
    rewards_have_names_of_their_own,
    each_reward_has_a_weight,
    a_curriculum_has_answers,
    an_environment_gives_a_reward,
    an_environment_is_known,
    an_environment_has_no_curriculum,
    verl_has_no_environment,
    options_belong_to_a_reward,
    problems_are_asked_in_words,
    groups_fill_the_updates,
    a_curriculum_has_no_end,
    threshold_is_used,
    selected_tokens_have_a_mask,
    kl_has_a_reference,
    dropped_tokens_have_a_mask,
    a_firmer_hold_has_a_share,
    extra_draws_replace_something,
    a_ratio_of_one_has_one_update,
    selected_kl_has_a_mask,
    the_cap_is_over_the_clip,
    stages_can_end,
    segments_fill_a_completion,
    segments_have_a_worker,
    segments_are_drawn_in_order,
)
