"""The job that verl makes of a profile, for the planner. (pure)"""

from __future__ import annotations

from orchestrator.cluster_plan import Cluster, Job, Rollouts
from orchestrator.job_time import JobTime
from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import trained_parameters
from profiles.schema import Profile
from profiles.shapes import Shape
from profiles.sharded import Sharding


def job_of(profile: Profile, shape: Shape, card_bytes: int, time: JobTime | None = None) -> Job:
    """Raises LonghaulError (INPUT) for Megatron, of which no formulas are known here."""
    run, verl, sampling = profile.run, profile.verl, profile.sampling
    if verl.strategy != "fsdp2":
        raise LonghaulError(
            f'the plan knows verl.strategy = "fsdp2" alone, and profile {profile.name!r} has "{verl.strategy}"',
            kept="nothing was started",
            next_command=f"python -m orchestrator plan --profile {profile.name} --set verl.strategy=fsdp2",
            exit_code=ExitCode.INPUT,
        )
    shares, training = not verl.rollout_gpus, run.gpus - verl.rollout_gpus
    drawing = (verl.rollout_gpus or run.gpus) * run.hosts
    share = profile.vllm.gpu_memory_utilization
    sharding = Sharding(
        "fsdp2",
        shards=training * run.hosts,
        tokens=verl.tokens_per_gpu,
        trained=trained_parameters(profile, shape),
        is_checkpointed=profile.model.gradient_checkpointing,
        has_reference=profile.grpo.kl_coef > 0 and profile.adapter.rank == 0,  # else the base without its adapter
        has_entropy=profile.optimizer.entropy_coef > 0,
        offloads_optimizer=profile.optimizer.offload,
        rollout_bytes=int(share * card_bytes) if shares else 0,
    )
    return Job(
        engine="verl",
        model=profile.model.path,
        shape=shape,
        cluster=Cluster(run.hosts, run.gpus, card_bytes),
        learners=(training,) * run.hosts,
        sharding=sharding,
        rollouts=Rollouts(drawing // verl.tensor_parallel, verl.tensor_parallel, share),
        prompts=profile.grpo.groups_per_step,
        samples=profile.grpo.group_size,
        longest=sampling.max_prompt_tokens + sampling.max_completion_tokens,
        steps=run.max_cycles * run.steps_per_cycle or None,
        time=time,
    )
