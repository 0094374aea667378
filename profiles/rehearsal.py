"""The same path with a tiny random model on a CPU, for a few steps: what `run --dry-run` runs. (pure)

Sizes are small, and where the model lies and what it is asked come from here; every choice of the method stays.
"""

from __future__ import annotations

from msgspec.structs import replace

from profiles.built_in import BUILT_IN
from profiles.schema import Profile

STEPS = 3
OWN_TRACKERS = ("tensorboard",)
"""Those that write into the run's folder, which is gone afterwards; others would list a run that never was."""
PROMPT_TOKENS = {"azr": 3584, "grpo": 512}
"""Of the tiny model, to which a token is a byte."""
COMPLETION_TOKENS = 16


def rehearsal_of(profile: Profile) -> Profile:
    """`profile` in small. Rewards are coins where the model is a random one: it gets nothing right, and groups of equal
    rewards would rehearse no update."""
    small = replace(
        profile,
        name="rehearsal",
        run=replace(
            profile.run,
            max_cycles=1,
            max_hours=0.0,
            until="",
            phases=("seed", "train"),
            steps_per_cycle=STEPS,
            checkpoint_every=2,
            device="cpu",
            threads=1,
        ),
        validation=replace(profile.validation, examples_per_task=2, every=1),
        stagnation=replace(profile.stagnation, min_cycles=STEPS),
        memory=replace(profile.memory, cap_gib=0.0),
        trackers=replace(profile.trackers, use=tuple(one for one in profile.trackers.use if one in OWN_TRACKERS)),
    )
    if profile.run.worker == "fake":
        return small
    return _tiny_grpo(small) if profile.run.worker == "grpo" else _tiny_azr(small)


def _tiny_grpo(p: Profile) -> Profile:
    is_random = p.model.random_init != "off" or p.model.path not in BUILT_IN
    p = _tiny(p) if is_random else p
    grpo = replace(
        p.grpo,
        group_size=4,
        problems=16,
        entropy_min_tokens=min(p.grpo.entropy_min_tokens, 4),
        sent=replace(p.grpo.sent, samples=2),
        variants=replace(p.grpo.variants, random_rewards=True),
        truncated="keep" if is_random else p.grpo.truncated,  # of random weights nearly every completion is cut
    )
    return replace(
        p,
        grpo=grpo,
        data=replace(p.data, tasks="pocket-words"),
        validation=replace(p.validation, suites=(BUILT_IN["pocket-words"].suite,)),
    )


def _tiny_azr(p: Profile) -> Profile:
    is_random = p.model.random_init != "off" or p.model.path not in BUILT_IN
    azr = replace(p.azr, proposals_per_task=2, group_size=2, references=1, seed_tasks=1, solve_batch=0)
    if is_random:
        variants = replace(azr.variants, random_rewards=True, solver_mix="max_new")
        azr = replace(azr, train_on_estimates=True, variants=variants)
    p = _tiny(p) if is_random else p
    suites = (BUILT_IN["pocket"].suite,)
    return replace(p, azr=azr, data=type(p.data)(), validation=replace(p.validation, suites=suites))


def _tiny(p: Profile) -> Profile:
    """With the tiny random model, and what it can hold."""
    kind = "adamw8bit" if p.optimizer.kind == "paged_adamw8bit" else p.optimizer.kind
    longest = PROMPT_TOKENS[p.run.worker]
    return replace(
        p,
        model=replace(p.model, path="pocket", random_init="qwen2-tiny"),
        sampling=replace(
            p.sampling,
            engine="native",
            fallback=(),
            max_rows=8,
            max_prompt_tokens=longest,
            max_completion_tokens=COMPLETION_TOKENS,
        ),
        optimizer=replace(p.optimizer, kind=kind, micro_batch_size=2, row_tokens=longest + 64),
    )
