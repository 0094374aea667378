"""Decides from the profile whether a step needs a scoring pass over its rollouts before the update. (pure)"""

from __future__ import annotations

from profiles.schema import Profile

OWN_NUMBERS = frozenset({"vllm", "continuous"})
"""Engines with their own kernels, which report no entropies; the others run the trainer's modules."""


def engines_of(profile: Profile) -> frozenset[str]:
    """The engines that may generate rollouts."""
    return frozenset({profile.sampling.engine, *profile.sampling.fallback})


def is_corrected(profile: Profile) -> bool:
    """Whether tokens get importance weights, because the engine's log-probs differ from the trainer's."""
    cap = profile.optimizer.tis_cap
    # Below float32, the same modules round a decoded token differently from one in a whole row.
    is_rounded = profile.model.dtype != "float32" or profile.model.quantization != "none"
    is_other = is_rounded or bool(engines_of(profile) & OWN_NUMBERS) or has_older_tokens(profile)
    return cap > 0 or (cap < 0 and is_other)


def has_older_tokens(profile: Profile) -> bool:
    """Whether a step may train on tokens that an older policy drew."""
    return profile.grpo.segment_tokens > 0 or (profile.run.worker in ("grpo", "azr") and profile.run.overlap > 0)


def can_be_one_pass(profile: Profile) -> bool:
    """Whether a step's only GRPO update can take the old log-probs from its own forward pass.

    It can if it passes over its tokens once and needs nothing about all of them beforehand.
    """
    grpo = profile.grpo
    # Without importance weights, the ratio needs the old log-probs first. So do tokens of older policies: how far off
    # the engine is, only the others tell.
    if profile.optimizer.tis_cap == 0 or has_older_tokens(profile):
        return False
    is_of_tokens = grpo.variants.ratio_level == "token" and grpo.variants.tis_mode != "sequence_mask"
    return grpo.inner_epochs == 1 and is_of_tokens and not grpo.variants.low_entropy_kl


def is_scored(profile: Profile) -> bool:
    """Whether the trainer may score a step's rollouts without gradient before the update.

    GRPO does so for old log-probs (even the engine's may turn out too far off), for entropies that a mask needs and the
    engine does not report, and for the reference.
    """
    if profile.run.worker != "grpo":
        return is_corrected(profile)
    grpo = profile.grpo
    has_reference = grpo.kl_coef > 0 or grpo.variants.low_entropy_kl > 0
    lacks_entropies = grpo.entropy_mask != "off" and bool(engines_of(profile) & OWN_NUMBERS)
    is_one_pass = profile.optimizer.updates_per_step == 1 and can_be_one_pass(profile)
    return has_reference or lacks_entropies or (grpo.old_source != "detach" and not is_one_pass)
