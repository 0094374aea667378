"""What is wrong with a YAML of open-instruct, in numbers, and what it should say instead. (pure)

Whatever a person chose stays: model, data, lengths, batch, number of steps. Changed is what cannot work, and what the
makers of such models changed, too: learners packed on whole hosts, weights handed over by tensor, no second copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.cluster_plan import Cluster, Job, Rollouts, fitting, gib, gpus, refusals
from orchestrator.job_time import JobTime
from profiles.open_instruct.demands import FORCED, FREQUENCY, batch_of, is_forced, learners_of, steps_of
from profiles.open_instruct.document import Settings, value
from profiles.open_instruct.options import FORK_ALONE, RENAMED, UPSTREAM, WORDS
from profiles.shapes import Shape
from profiles.sharded import Sharding, handing_over, total_state, training

DEBUG_STEPS = 5
"""Of a file whose episodes make no step at all."""
SAVE_EVERY = 20
EVALUATE_EVERY = 50


@dataclass(frozen=True)
class Fault:
    """One finding. name: one word. becomes: option -> what the corrected file says."""

    name: str
    text: str
    becomes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """A YAML and what it means on a cluster. fit: the nearest job that can work; None: none can."""

    settings: Settings
    as_is: Job
    fit: Job | None
    faults: tuple[Fault, ...]
    corrected: Mapping[str, Any]
    """In upstream's names; with `fit` None of no use."""

    @property
    def job(self) -> Job | None:
        """Of the corrected settings."""
        if self.fit is None:
            return None
        return job_of(self.corrected, self.as_is.shape, self.as_is.cluster, self.as_is.time)


def job_of(settings: Settings, shape: Shape, cluster: Cluster, time: JobTime | None = None) -> Job:
    """The job that open-instruct would make of settings. It counts learners as upstream does: the sum of the list."""
    learners = learners_of(settings)
    sharding = Sharding(
        "zero3",
        shards=sum(learners),
        tokens=value(settings, "pack_length") * value(settings, "per_device_train_batch_size"),
        is_checkpointed=value(settings, "gradient_checkpointing"),
        gathers_whole=value(settings, "gather_whole_model"),
        secondary=value(settings, "deepspeed_zpg"),
        has_reference=value(settings, "load_ref_policy"),
        offloads_optimizer=value(settings, "deepspeed_offload_optimizer"),
        offloads_weights=value(settings, "deepspeed_offload_param"),
    )
    return Job(
        engine="open-instruct",
        model=value(settings, "model_name_or_path"),
        shape=shape,
        cluster=cluster,
        learners=learners,
        sharding=sharding,
        rollouts=Rollouts(
            engines=value(settings, "vllm_num_engines"),
            tensor_parallel=value(settings, "vllm_tensor_parallel_size"),
            share=value(settings, "vllm_gpu_memory_utilization"),
        ),
        prompts=value(settings, "num_unique_prompts_rollout"),
        samples=value(settings, "num_samples_per_prompt_rollout"),
        longest=value(settings, "max_prompt_token_length") + value(settings, "response_length"),
        steps=steps_of(settings),
        time=time,
    )


def read_for(settings: Settings, shape: Shape, cluster: Cluster, time: JobTime | None = None) -> Reading:
    """Every finding, and the corrected settings."""
    as_is = job_of(settings, shape, cluster, time)
    faults: list[Fault] = []
    now = dict(settings)
    # What does not depend on the GPUs comes first: the layout is chosen for what is left.
    for rule in (_stage, _recomputation, _reference, _pack):
        _apply(rule(now, job_of(now, shape, cluster, time)), faults, now)
    fit = fitting(job_of(now, shape, cluster, time))
    if fit is not None:  # a GPU that is reserved and idle helps nobody
        fit = replace(fit, rollouts=replace(fit.rollouts, engines=fit.room_for_engines))
    laid_out = fit or job_of(now, shape, cluster, time)
    first = [_learners(now, as_is, laid_out), _whole_gather(now, laid_out), _second_copy(now, laid_out)]
    for fault in [*first, _steps(now, as_is)]:
        _apply(fault, faults, now)
    steps = job_of(now, shape, cluster, time).steps or 0
    per_job = time.steps_per_job if time else None
    for fault in (_save(now, as_is, steps, per_job), _engines(now, laid_out), _evaluation(now, as_is, steps)):
        _apply(fault, faults, now)
    for other in (_sync_backend, _hub, _fork):
        _apply(other(now), faults, now)
    return Reading(settings, as_is, fit, tuple(faults), _in_upstream_words(now))


def _apply(fault: Fault | None, faults: list[Fault], now: dict[str, Any]) -> None:
    if fault is not None:
        faults.append(fault)
        now |= fault.becomes


def _forced(name: str) -> Mapping[str, Any]:
    return {name: FORCED[name]}


# --- rules ------------------------------------------------------------------------------------------------------------


def _stage(now: Settings, job: Job) -> Fault | None:
    if is_forced(now, "deepspeed_stage"):
        return None
    stage = value(now, "deepspeed_stage")
    each = gib(total_state(job.shape)[1])
    text = f"deepspeed_stage {stage} does not divide the weights; whole, the state of a GPU would be {each} GiB"
    return Fault("stage", text, _forced("deepspeed_stage"))


def _recomputation(now: Settings, job: Job) -> Fault | None:
    if is_forced(now, "gradient_checkpointing"):
        return None
    kept = gib(training(job.shape, job.sharding)["activations"])
    text = f"without gradient_checkpointing the activations of {job.sharding.tokens:,} tokens are {kept} GiB"
    return Fault("recomputation", text, _forced("gradient_checkpointing"))


def _reference(now: Settings, job: Job) -> Fault | None:
    beta, loads = value(now, "beta"), value(now, "load_ref_policy")
    if beta > 0 and not loads:
        text = f"beta {beta:g} needs a reference policy: with load_ref_policy false the program ends"
        return Fault("reference", text, {"load_ref_policy": True})
    if beta == 0 and loads:
        text = f"with beta 0 the reference policy is loaded, {gib(2 * job.shape.parameters)} GiB over all, for nothing"
        return Fault("reference", text, {"load_ref_policy": False, "beta": 0.0})
    return None


def _pack(now: Settings, job: Job) -> Fault | None:
    pack = value(now, "pack_length")
    if pack >= job.longest:
        return None
    text = f"pack_length {pack:,} is less than prompt and response, {job.longest:,} tokens: the program ends"
    return Fault("pack", text, {"pack_length": job.longest})


def _learners(now: Settings, as_is: Job, laid_out: Job) -> Fault | None:
    given, count = as_is.learners, as_is.sharding.shards
    if given == laid_out.learners:
        return None
    state = gib(total_state(as_is.shape)[1] / count)
    trains = "1 GPU trains" if count == 1 else f"{count} GPUs train"
    text = f"num_learners_per_node {list(given)}: the list is added up, so {trains} with {state} GiB of state on each"
    if len(given) == 1 and as_is.cluster.hosts > 1:
        fork = replace(laid_out, learners=given * as_is.cluster.hosts)
        fork = replace(fork, sharding=replace(fork.sharding, shards=sum(fork.learners)))
        text += f"; the fork repeats it for each host: {gpus(fork.sharding.shards)}, {_why_not(fork, laid_out)}"
    else:
        text += f"; {_why_not(replace(as_is, sharding=replace(laid_out.sharding, shards=count)), laid_out)}"
    return Fault("learners", text, {"num_learners_per_node": list(laid_out.learners)})


def _why_not(job: Job, laid_out: Job) -> str:
    """Why these learners are not those that were chosen."""
    if refused := [one.text for one in refusals(job) if one.about in ("memory", "learners", "batch")]:
        return refused[0]
    lost, room = laid_out.room_for_engines - job.room_for_engines, laid_out.room_for_engines
    each = gpus(job.rollouts.tensor_parallel)
    if lost > 0:
        return f"which leave room for {job.room_for_engines} engines of {each}, not for {room}"
    return f"where {laid_out.sharding.shards} on whole hosts do"


def _whole_gather(now: Settings, laid_out: Job) -> Fault | None:
    if is_forced(now, "gather_whole_model"):
        return None
    whole = replace(laid_out.sharding, gathers_whole=True, secondary=1)
    weights = gib(handing_over(laid_out.shape, whole)["whole weights"])
    needed, usable = replace(laid_out, sharding=whole).demand.devices["sync"], laid_out.cluster.usable_bytes
    text = (
        f"gather_whole_model puts all weights, {weights} GiB, on each of {whole.shards} GPUs at the first sync: "
        f"{gib(needed)} of {gib(usable)} GiB"
    )
    return Fault("whole gather", text, _forced("gather_whole_model"))


def _second_copy(now: Settings, laid_out: Job) -> Fault | None:
    if is_forced(now, "deepspeed_zpg"):
        return None
    zpg = value(now, "deepspeed_zpg")
    each = gib(2 * laid_out.shape.parameters / zpg)
    text = f"deepspeed_zpg {zpg} keeps a second copy of the weights among {zpg} GPUs, {each} GiB on each"
    if zpg > laid_out.cluster.gpus:
        text += f", over hosts of {laid_out.cluster.gpus}: it saves no traffic between them"
    return Fault("second copy", text, _forced("deepspeed_zpg"))


def _steps(now: Settings, as_is: Job) -> Fault | None:
    if as_is.steps:
        return None
    episodes = value(now, "total_episodes")
    text = (
        f"total_episodes {episodes} make 0 steps, since a step takes {as_is.prompts} prompts x {as_is.samples} samples "
        f"= {as_is.batch}: nothing is trained, and no memory tested"
    )
    return Fault("steps", text, {"total_episodes": DEBUG_STEPS * batch_of(now)})


def _save(now: Settings, as_is: Job, steps: int, per_job: int | None) -> Fault | None:
    """Its own checkpoints are the only places where it can stop, so a job has four at least."""
    most = min(steps, max(1, per_job // 4)) if per_job else steps
    names = ("save_freq", FREQUENCY)
    late = [name for name in names if name in now or name == "save_freq" if not 0 < value(now, name) <= most]
    if not late and FREQUENCY in now:
        return None
    if not late:
        text = f"no {FREQUENCY}: by default it could stop after every {value(now, FREQUENCY)} steps only"
        return Fault("save", text, {FREQUENCY: min(SAVE_EVERY, most)})
    given = " and ".join(f"{name} {value(now, name)}" for name in late)
    had = f"{as_is.steps} step{'s' * (as_is.steps != 1)}"
    why = f"no save in {had}" if most == steps else f"less than 4 saves in a job of {per_job} steps"
    return Fault("save", f"{given}: {why}", dict.fromkeys(names, min(SAVE_EVERY, most)))


def _engines(now: Settings, laid_out: Job) -> Fault | None:
    wanted = Rollouts(
        value(now, "vllm_num_engines"),
        value(now, "vllm_tensor_parallel_size"),
        value(now, "vllm_gpu_memory_utilization"),
    )
    if wanted == laid_out.rollouts:
        return None
    asked = replace(laid_out, rollouts=wanted)
    why = [one.text for one in refusals(asked) if one.about in ("engines", "cache", "heads")]
    if not why:
        room, each = laid_out.rollouts.engines, gpus(wanted.tensor_parallel)
        idle = gpus((room - wanted.engines) * wanted.tensor_parallel)
        why = [f"{wanted.engines} engines of {each} leave {idle} idle; there is room for {room}"]
    becomes = {
        "vllm_num_engines": laid_out.rollouts.engines,
        "vllm_tensor_parallel_size": laid_out.rollouts.tensor_parallel,
    }
    return Fault("engines", "; ".join(why), becomes)


def _evaluation(now: Settings, as_is: Job, steps: int) -> Fault | None:
    every = value(now, "local_eval_every")
    if every <= steps:  # 0 and below: off
        return None
    becomes = max(1, min(EVALUATE_EVERY, steps // 2))
    text = f"local_eval_every {every}: no evaluation in {as_is.steps} step{'s' * (as_is.steps != 1)}"
    return Fault("evaluation", text, {"local_eval_every": becomes})


def _sync_backend(now: Settings) -> Fault | None:
    if is_forced(now, "vllm_sync_backend"):
        return None
    backend = value(now, "vllm_sync_backend")
    text = f"vllm_sync_backend {backend} moves the weights through host memory"
    return Fault("sync backend", text, _forced("vllm_sync_backend"))


def _hub(now: Settings) -> Fault | None:
    if is_forced(now, "push_to_hub"):
        return None
    return Fault("hub", "push_to_hub, upstream's default, uploads the model", _forced("push_to_hub"))


def _fork(now: Settings) -> Fault | None:
    """They are told, and left out: what they did is then not done."""
    lost = [name for name in now if name in FORK_ALONE and name not in RENAMED]
    if not lost:
        return None
    return Fault("fork", f"upstream refuses a file with the fork's {', '.join(lost)}; they are left out")


def _in_upstream_words(now: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a run gives on the command line: its folders."""
    said: dict[str, Any] = {}
    for name, one in now.items():
        if name == "truncated_importance_sampling_ratio_cap" and one == 0:
            said["use_rho_correction"] = False
            continue
        own = RENAMED.get(name, name)
        if own in UPSTREAM and own not in FOLDERS:
            said[own] = WORDS.get(own, {}).get(one, one) if isinstance(one, str) else one
    return said


FOLDERS = ("checkpoint_state_dir", "output_dir", "rollouts_save_path", "dataset_local_cache_dir")
"""Options that name places: a run has its own."""
