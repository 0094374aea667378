"""What a YAML of open-instruct must say before Longhaul starts a job of it. (pure)

The numbers of a job (steps, batch, learners) are counted here once, for the import that corrects a YAML, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from profiles.open_instruct.document import Settings, value
from profiles.open_instruct.options import FORK_ALONE, RENAMED
from profiles.schema import Run

FORCED: Mapping[str, Any] = {
    "deepspeed_stage": 3,
    "deepspeed_zpg": 1,
    "gather_whole_model": False,
    "gradient_checkpointing": True,
    "push_to_hub": False,
    "vllm_sync_backend": "nccl",
}
"""Option -> the only value that an import writes and a start accepts."""
FREQUENCY = "checkpoint_state_freq"
UNSUPPORTED = (
    "cache_dataset_only",
    "deepspeed_checkpoint_load_universal",
    "gs_bucket_path",
    "gs_checkpoint_state_dir",
    "ref_policy_update_freq",
)
"""Options that end the program before a step, move its checkpoints away from where a run finds them, or change a
reference policy that is then part of the state."""


def batch_of(settings: Settings) -> int:
    """Rollouts of a step."""
    return int(value(settings, "num_unique_prompts_rollout") * value(settings, "num_samples_per_prompt_rollout"))


def steps_of(settings: Settings) -> int:
    """Steps of the whole training: the program counts in episodes, and drops what makes no whole step."""
    return int(value(settings, "total_episodes") // batch_of(settings))


def learners_of(settings: Settings) -> tuple[int, ...]:
    """GPUs that train, for each host that has some."""
    return tuple(value(settings, "num_learners_per_node"))


def is_forced(settings: Settings, name: str) -> bool:
    """Whether an option of FORCED has its value."""
    return bool(value(settings, name) == FORCED[name])


def is_packed(learners: Sequence[int], gpus: int) -> bool:
    """Whether hosts with learners are full of them, but for the last. gpus: of a host."""
    return all(count == gpus for count in learners[:-1]) and learners[-1] <= gpus


def problems(settings: Settings, run: Run) -> list[str]:
    """Everything that stands against starting a job of `settings` in a run with [run] `run`; empty: nothing does."""
    return [*_of_options(settings), *_of_layout(settings, run), *_of_steps(settings, run)]


def _of_options(settings: Settings) -> Iterator[str]:
    for name, wanted in FORCED.items():
        if not is_forced(settings, name):
            yield f"{name} is {_word(value(settings, name))}; it must be {_word(wanted)}"
    if forks := [name for name in settings if name in FORK_ALONE]:
        known = {name: RENAMED[name] for name in forks if name in RENAMED}
        hint = "".join(f"; {name} is {upstream} there" for name, upstream in known.items())
        yield f"upstream does not know {', '.join(forks)}{hint}"
    for name in UNSUPPORTED:
        if settings.get(name):
            yield f"{name} is set, which a run cannot work with"
    for name, one in settings.items():
        if isinstance(one, list) and (not one or any(str(word).startswith("-") for word in one)):
            yield f"{name} is {_word(one)}, which its command line cannot say"


def _of_layout(settings: Settings, run: Run) -> Iterator[str]:
    learners, batch = learners_of(settings), batch_of(settings)
    count = sum(learners)
    if not is_packed(learners, run.gpus):
        packed = [run.gpus] * (count // run.gpus) + [count % run.gpus] * bool(count % run.gpus)
        yield f"num_learners_per_node {list(learners)} is not packed on hosts of {run.gpus} GPUs (run.gpus): {packed}"
    if batch % count:
        yield f"{batch} rollouts a step do not divide among {count} GPUs that train"
    drawing = value(settings, "vllm_num_engines") * value(settings, "vllm_tensor_parallel_size")
    if count + drawing > run.ranks and not settings.get("single_gpu_mode"):
        yield (
            f"{count} GPUs that train and {drawing} that draw are more than {run.ranks} "
            f"(run.hosts = {run.hosts}, run.gpus = {run.gpus})"
        )


def _of_steps(settings: Settings, run: Run) -> Iterator[str]:
    steps, every = steps_of(settings), settings.get(FREQUENCY, 0)
    if steps == 0:
        yield f"total_episodes {value(settings, 'total_episodes')} make 0 steps of {batch_of(settings)} rollouts"
    elif (run.steps_per_cycle, run.max_cycles) != (steps, 1):
        yield (
            f"its {steps} steps are one job, as they share one learning-rate schedule: run.steps_per_cycle = {steps} "
            f"and run.max_cycles = 1, not {run.steps_per_cycle} and {run.max_cycles}"
        )
    if every < 1:
        yield f"it has no {FREQUENCY}, so a crash or a stop would lose every step"
    elif every != run.checkpoint_every:
        yield f"{FREQUENCY} is {every}, and run.checkpoint_every is {run.checkpoint_every}: they must agree"


def _word(one: Any) -> str:
    return str(one).lower() if isinstance(one, bool) else str(one)
