"""Derives the profiles that rehearse another one. (pure)

`run --dry-run` runs a few steps with a tiny random model on a CPU: sizes and model are replaced, and so are data that
are not there; every choice of the method is kept. `doctor --one-step` runs one step of the profile as it is.
"""

from __future__ import annotations

from msgspec.structs import replace

from profiles.built_in import BUILT_IN
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile

STEPS = 3
OWN_TRACKERS = ("tensorboard",)
"""Those that write into the run's folder, which is gone afterwards; others would list a run that never was."""
PROMPT_TOKENS = {"azr": 3584, "grpo": 512, "verl": 512}
"""Of the tiny model, to which a token is a byte."""
OWN_PROMPT_TOKENS = 3584
"""Of the tiny model with problems of the user's own, which are rarely as short as the built-in ones."""
COMPLETION_TOKENS = 16
FEW_BATCHES = 4
"""Batches of problems for one step, which may draw again for groups that teach nothing."""


def rehearsal_of(profile: Profile, *, has_data: bool = False) -> Profile:
    """A small version of `profile`. has_data: whether the file of `data.tasks` is there; GRPO then reads its problems.

    A random model gets random rewards: it answers nothing right, and groups of equal rewards would give no update.
    Raises LonghaulError (INPUT) for a worker whose sizes are not in the profile.
    """
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
    tiny = {"azr": _tiny_azr, "grpo": _tiny_grpo, "verl": _tiny_verl}.get(profile.run.worker)
    if tiny is None:
        raise LonghaulError(
            f"the worker {profile.run.worker} has no dry run: its model and sizes are not in the profile",
            kept="nothing was started",
            next_command=f"python -m orchestrator plan --profile {profile.name}",
            exit_code=ExitCode.INPUT,
        )
    rehearsal = tiny(small)
    brings_rows = bool(profile.grpo.environment.name) and not profile.data.names
    is_own = profile.run.worker == "grpo" and (has_data or brings_rows)
    return _with_own_problems(rehearsal, profile) if is_own else rehearsal


def _with_own_problems(p: Profile, profile: Profile) -> Profile:
    """Rewards of the user's own may need columns that the built-in problems lack."""
    p = replace(p, data=profile.data)
    if p.model.random_init == "off":
        return p
    longest = OWN_PROMPT_TOKENS
    return replace(
        p,
        sampling=replace(p.sampling, max_prompt_tokens=longest),
        optimizer=replace(p.optimizer, row_tokens=longest + 64),
    )


def one_step_of(profile: Profile) -> Profile:
    """One step of `profile` with a checkpoint, as `steps_of`."""
    return steps_of(profile, 1)


def steps_of(profile: Profile, steps: int) -> Profile:
    """Some steps of `profile` with a checkpoint: its own model, data, lengths, batch, GPUs and launcher.

    Only what comes before and after a step is less: tasks found by seeding, problems whose difficulty is measured,
    held-out problems.
    """
    short = replace(
        profile,
        name="one-step" if steps == 1 else f"{steps}-steps",
        run=replace(
            profile.run,
            max_cycles=1,
            max_hours=0.0,
            until="",
            phases=("seed", "train"),
            steps_per_cycle=steps,
            checkpoint_every=steps,
        ),
        validation=replace(profile.validation, examples_per_task=2, every=1),
        trackers=replace(profile.trackers, use=()),
    )
    if profile.run.worker == "azr":
        return replace(short, azr=replace(short.azr, seed_tasks=1))
    if profile.run.worker == "fake":
        return short
    return replace(short, grpo=replace(short.grpo, problems=FEW_BATCHES * short.grpo.groups_per_step))


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
        truncated="keep" if is_random else p.grpo.truncated,  # random weights rarely stop
    )
    return replace(
        p,
        grpo=grpo,
        data=type(p.data)(tasks="pocket-words"),
        validation=replace(p.validation, suites=(BUILT_IN["pocket-words"].suite,)),
    )


def _tiny_verl(p: Profile) -> Profile:
    """Two processes of one host. verl has no coins for rewards: of a random model every group is uniform, and kept."""
    is_random = p.model.random_init != "off" or p.model.path not in BUILT_IN
    p = _tiny(p) if is_random else p
    grpo = replace(p.grpo, group_size=4, groups_per_step=4 * p.optimizer.updates_per_step, problems=16)
    return replace(
        p,
        run=replace(p.run, gpus=2, hosts=1),
        verl=type(p.verl)(kl_in=p.verl.kl_in),
        sampling=replace(p.sampling, engine="hf"),
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
    """Use the tiny random model, with lengths that it supports."""
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
