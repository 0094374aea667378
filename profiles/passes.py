"""Whether a step reads its rollouts once more before the update: what of that the profile alone decides. (pure)"""

from __future__ import annotations

from profiles.schema import Profile

OWN_NUMBERS = frozenset({"vllm", "continuous"})
"""Engines that compute logits by kernels of their own and tell no entropies; the others run the trainer's modules."""


def engines_of(profile: Profile) -> frozenset[str]:
    """Those that may draw a rollout."""
    return frozenset({profile.sampling.engine, *profile.sampling.fallback})


def is_corrected(profile: Profile) -> bool:
    """Whether tokens get importance weights, as the engine's log-probs are not those that the trainer would compute."""
    cap = profile.optimizer.tis_cap
    # In fewer bits than float32, the same modules round a decoded token and one of a whole row differently.
    is_rounded = profile.model.dtype != "float32" or profile.model.quantization != "none"
    return cap > 0 or (cap < 0 and (is_rounded or bool(engines_of(profile) & OWN_NUMBERS)))


def can_be_one_pass(profile: Profile) -> bool:
    """Whether the forward pass of GRPO's update can itself say the trainer's old log-probs, where it is the only update
    of a step: it goes over its tokens once, and wants to know nothing of all of them before it."""
    grpo = profile.grpo
    if profile.optimizer.tis_cap == 0:  # without weights the ratio needs them before
        return False
    is_of_tokens = grpo.variants.ratio_level == "token" and grpo.variants.tis_mode != "sequence_mask"
    return grpo.inner_epochs == 1 and is_of_tokens and not grpo.variants.low_entropy_kl


def is_scored(profile: Profile) -> bool:
    """Whether the trainer may read a step's rollouts without gradient before the update.

    GRPO does so for old log-probs (also the engine's may be found far off), for the entropies of a mask that nobody
    tells, and for a reference.
    """
    if profile.run.worker != "grpo":
        return is_corrected(profile)
    grpo = profile.grpo
    has_reference = grpo.kl_coef > 0 or grpo.variants.low_entropy_kl > 0
    lacks_entropies = grpo.entropy_mask != "off" and bool(engines_of(profile) & OWN_NUMBERS)
    is_one_pass = profile.optimizer.updates_per_step == 1 and can_be_one_pass(profile)
    return has_reference or lacks_entropies or (grpo.old_source != "detach" and not is_one_pass)
