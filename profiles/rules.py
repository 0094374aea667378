"""Rules across knobs, each returning a Finding or None; none raises. (pure, except for importing suites' modules)

Bounds of a single knob belong to its type in schema.py.
"""

from __future__ import annotations

import re
from contextlib import suppress

from profiles import data_rules, grpo_rules, ranks_rules, style_rules, verl_rules, vllm_rules
from profiles.built_in import BUILT_IN
from profiles.finding import Finding
from profiles.goal import parse_goal, why_never
from profiles.launchers import LAUNCHERS
from profiles.passes import has_older_tokens
from profiles.schema import Profile
from profiles.suites import FOR_PROBLEMS, SuiteRecord, UnknownSuite, record_of, shipped_suites

MAX_POSITIONS = 32_768
"""Longest sequence of any supported model. Catches a typo in a token limit at once instead of after an hour."""
LONGEST_NAME = 64
SAMPLER_DEVICES = re.compile(r"cpu|cuda:[1-9][0-9]{0,2}")


def name_is_a_file_name(p: Profile) -> Finding | None:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", p.name) and len(p.name) <= LONGEST_NAME:
        return None
    return Finding(
        ("name",),
        f"names a folder: at most {LONGEST_NAME} letters, digits, dots, dashes, underscores; a letter or digit first",
    )


def rollouts_fill_the_updates(p: Profile) -> Finding | None:
    """Each update needs at least one rollout."""
    if p.run.worker != "azr":
        return None
    # If every proposal is invalid, old tasks from the buffer fill the solver's share with at least one group.
    solved = p.azr.group_size if p.azr.train_on_estimates else (p.azr.solve_batch or p.azr.proposals_per_task)
    fewest = len(p.azr.tasks) * (solved + (p.azr.proposals_per_task if p.azr.variants.train_proposer else 0))
    if fewest >= p.optimizer.updates_per_step:
        return None
    return Finding(
        ("optimizer.updates_per_step", "azr.tasks", "azr.proposals_per_task", "azr.solve_batch", "azr.group_size"),
        f"needs at least that many rollouts, but a step of this profile may have only {fewest}",
    )


def launcher_is_known(p: Profile) -> Finding | None:
    """Only checks the form of an external class; the start of a run loads it."""
    if p.launch.launcher in LAUNCHERS or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", p.launch.launcher):
        return None
    return Finding(("launch.launcher",), f"is one of {', '.join(LAUNCHERS)}, or a class of your own as module:Class")


def _is_validated(p: Profile) -> bool:
    from profiles.worker_kinds import worker_kind_of  # slow to import, and most profiles need no answer

    return worker_kind_of(p).validates


def goal_can_be_met(p: Profile) -> Finding | None:
    if not p.run.until:
        return None
    if not _is_validated(p):
        return Finding(("run.until", "run.worker"), "names a score of a validation, and this worker has none")
    try:
        goal = parse_goal(p.run.until)
    except ValueError as error:
        return Finding(("run.until",), str(error))
    records = _records(p)
    if len(records) < len({*p.validation.suites}):
        return None
    reason = why_never(goal, {name: record.tasks for name, record in records.items()})
    return Finding(("run.until", "validation.suites"), reason) if reason else None


def a_run_begins_with_seeding(p: Profile) -> Finding | None:
    if p.run.phases in (("seed",), ("seed", "train")):
        return None
    return Finding(("run.phases",), 'must be ["seed"] or ["seed", "train"]; the latter trains after seeding')


def adapter_has_no_dropout(p: Profile) -> Finding | None:
    if p.adapter.dropout == 0:
        return None
    return Finding(
        ("adapter.dropout",),
        "must be 0: rollouts and old log-probs are computed without dropout, so every ratio would be noise",
    )


def adapter_has_targets(p: Profile) -> Finding | None:
    if p.adapter.rank == 0 or p.adapter.targets:
        return None
    return Finding(
        ("adapter.targets", "adapter.rank"), "is empty, so nothing would be trained; name layers, or set rank to 0"
    )


def quantized_weights_are_frozen(p: Profile) -> Finding | None:
    if p.model.quantization == "none" or p.adapter.rank > 0:
        return None
    return Finding(("model.quantization", "adapter.rank"), "needs an adapter: weights in 4 bits cannot be trained")


def moments_have_one_home(p: Profile) -> Finding | None:
    if not p.optimizer.offload or p.optimizer.kind == "adamw":
        return None
    return Finding(
        ("optimizer.offload", "optimizer.kind"),
        f'needs kind = "adamw": in host memory, {p.optimizer.kind} saves little and rounds every moment',
    )


def pages_need_a_gpu(p: Profile) -> Finding | None:
    if p.optimizer.kind != "paged_adamw8bit" or p.run.device != "cpu":
        return None
    return Finding(("optimizer.kind", "run.device"), 'pages GPU memory; on a CPU use "adamw8bit"')


def random_weights_need_no_path(p: Profile) -> Finding | None:
    if p.model.random_init == "off" or p.model.path == "pocket":
        return None
    return Finding(
        ("model.path", "model.random_init"), f'is not read with random_init = "{p.model.random_init}"; remove one'
    )


def solve_batch_is_used(p: Profile) -> Finding | None:
    if p.run.worker != "azr" or p.azr.solve_batch == 0 or not p.azr.train_on_estimates:
        return None
    return Finding(
        ("azr.solve_batch", "azr.train_on_estimates"),
        "is unused while train_on_estimates = true; set that to false, or this to 0",
    )


def the_built_in_model_has_its_own_style(p: Profile) -> Finding | None:
    known = BUILT_IN.get(p.model.path)
    if p.run.worker == "fake" or known is None or p.model.random_init != "off":
        return None
    if p.model.prompt_style == known.prompt_style:
        return None
    return Finding(
        ("model.prompt_style", "model.path"),
        f'is for other models; the built-in one (path = "{p.model.path}") only knows "{known.prompt_style}"',
    )


def inputs_are_kept_alone(p: Profile) -> Finding | None:
    if not p.model.offload_inputs or (p.model.gradient_checkpointing and p.run.worker in ("azr", "grpo", "fake")):
        return None
    what = "needs gradient_checkpointing, without which a layer keeps more than its input, and the worker azr or grpo"
    return Finding(("model.offload_inputs", "model.gradient_checkpointing", "run.worker"), what)


def layers_are_kept_beside_recomputed_ones(p: Profile) -> Finding | None:
    is_own = p.adapter.implementation == "own" if p.adapter.rank else p.run.ranks == 1
    if not p.model.keep_gib or (p.model.gradient_checkpointing and is_own):
        return None
    what = "needs gradient_checkpointing, without which all layers are kept; an adapter also needs implementation = "
    what += '"own", and training of all weights one GPU'
    knobs = "model.keep_gib", "model.gradient_checkpointing", "adapter.rank", "adapter.implementation", "run.gpus"
    return Finding(knobs, what)


def eight_bits_have_frozen_weights(p: Profile) -> Finding | None:
    has_own = p.adapter.rank > 0 and p.adapter.implementation == "own"
    is_written_out = has_own and p.model.gradient_checkpointing and p.model.dtype == "bfloat16"
    if not p.model.fp8 or (is_written_out and p.run.worker in ("azr", "grpo", "fake")):
        return None
    return Finding(
        (
            "model.fp8",
            "adapter.rank",
            "adapter.implementation",
            "model.gradient_checkpointing",
            "model.dtype",
            "run.worker",
        ),
        'needs an adapter with implementation = "own", gradient_checkpointing, dtype = "bfloat16", and the worker azr '
        "or grpo: only their written-out layers compute products in 8 bits",
    )


def overlap_has_a_worker(p: Profile) -> Finding | None:
    if p.run.overlap == 0 or p.run.worker in ("grpo", "azr", "fake"):
        return None
    return Finding(("run.overlap", "run.worker"), "is for the workers azr and grpo; use 0")


def overlap_has_one_engine(p: Profile) -> Finding | None:
    """Which reads the trainer's own weights, in the trainer's process."""
    if p.run.overlap == 0 or p.run.worker not in ("grpo", "azr"):
        return None
    asks = {
        "sampling.engine": p.sampling.engine != "native",
        "sampling.fallback": bool(p.sampling.fallback),
        "run.gpus": p.run.gpus > 1,
        "run.hosts": p.run.hosts > 1,
    }
    if used := [name for name, is_on in asks.items() if is_on]:
        return Finding(
            ("run.overlap", *used), 'needs one GPU and sampling.engine = "native" without a fallback; or use 0'
        )
    return None


def sampler_is_a_second_device(p: Profile) -> Finding | None:
    """Of the trainer's kind: rounding differs between a CPU and a GPU."""
    run, knob = p.run, "run.sampler_device"
    if not run.sampler_device:
        return None
    if not SAMPLER_DEVICES.fullmatch(run.sampler_device):
        return Finding(
            (knob,), 'is "cuda:1" or a later GPU, as the trainer has "cuda:0"; or "cpu" beside run.device=cpu'
        )
    if run.overlap == 0 or run.worker not in ("grpo", "azr"):
        return Finding((knob, "run.overlap", "run.worker"), "needs run.overlap = 1 and the worker azr or grpo")
    if run.device != "auto" and not run.sampler_device.startswith(run.device):
        return Finding((knob, "run.device"), "is of another kind than the device that trains")
    return None


def older_tokens_are_corrected(p: Profile) -> Finding | None:
    is_weighed = p.optimizer.tis_cap != 0
    needs_source = p.run.worker == "grpo" and p.grpo.old_source not in ("auto", "trainer")
    if not has_older_tokens(p) or (is_weighed and not needs_source):
        return None
    return Finding(
        ("grpo.segment_tokens" if p.grpo.segment_tokens else "run.overlap", "grpo.old_source", "optimizer.tis_cap"),
        "trains on tokens of older policies, which importance weights correct: "
        'use old_source = "auto" and a tis_cap other than 0',
    )


def overlapped_validation_has_a_worker(p: Profile) -> Finding | None:
    if p.validation.overlap == 0:
        return None
    asks = {
        "run.worker": p.run.worker not in ("azr", "grpo", "fake"),
        "launch.launcher": p.launch.launcher != "local",
        "sampling.engine": p.sampling.engine == "vllm",
        "run.gpus": p.run.gpus > 1,
        "run.hosts": p.run.hosts > 1,
    }
    if used := [name for name, is_on in asks.items() if is_on]:
        what = "needs a local worker azr or grpo on one GPU, and another engine than vLLM; or use 0"
        return Finding(("validation.overlap", *used), what)
    return None


def thinking_needs_a_template(p: Profile) -> Finding | None:
    if p.model.thinking == "template" or p.run.worker == "fake":
        return None
    knobs = ("model.thinking", "model.prompt_style")
    if p.model.prompt_style not in ("azr-chat", "chat", "boxed-chat"):
        return Finding(knobs, f'is read by chat templates only, and prompt_style = "{p.model.prompt_style}" has none')
    if p.model.thinking == "off" and p.model.prompt_style == "azr-chat":
        return Finding(knobs, 'contradicts prompt_style = "azr-chat", whose prompts end inside a thought')
    return None


def self_play_has_words(p: Profile) -> Finding | None:
    if p.run.worker != "azr" or p.model.prompt_style not in FOR_PROBLEMS:
        return None
    return Finding(("model.prompt_style", "run.worker"), "cannot express self-play proposals")


def proposer_share_is_used(p: Profile) -> Finding | None:
    if p.azr.proposer_share == 0 or p.azr.variants.train_proposer:
        return None
    return Finding(
        ("azr.proposer_share", "azr.variants.train_proposer"),
        "is unused while train_proposer = false; set that to true, or this to 0",
    )


def solver_mix_is_used(p: Profile) -> Finding | None:
    if p.run.worker != "azr" or p.azr.variants.solver_mix == "max_new" or not p.azr.train_on_estimates:
        return None
    return Finding(
        ("azr.variants.solver_mix", "azr.train_on_estimates"),
        "is unused while train_on_estimates = true, which trains on every new task; set that to false",
    )


def token_statistics_have_cells(p: Profile) -> Finding | None:
    if p.azr.variants.adv_norm == "sample" or p.azr.advantages == "cell":
        return None
    return Finding(("azr.variants.adv_norm", "azr.advantages"), 'needs advantages = "cell": groups are over samples')


def tasks_are_named_once(p: Profile) -> Finding | None:
    if len(set(p.azr.tasks)) == len(p.azr.tasks):
        return None
    return Finding(("azr.tasks",), "names a task twice")


def buffer_holds_the_seeds(p: Profile) -> Finding | None:
    if p.azr.buffer_cap >= p.azr.seed_tasks:
        return None
    return Finding(("azr.buffer_cap", "azr.seed_tasks"), f"is less than the {p.azr.seed_tasks} seed tasks (seed_tasks)")


def references_exist(p: Profile) -> Finding | None:
    if p.azr.references <= p.azr.buffer_cap:
        return None
    return Finding(("azr.references", "azr.buffer_cap"), f"is more than the buffer holds ({p.azr.buffer_cap})")


def sequences_are_possible(p: Profile) -> Finding | None:
    total = p.sampling.max_prompt_tokens + p.sampling.max_completion_tokens
    if total <= MAX_POSITIONS:
        return None
    return Finding(
        ("sampling.max_completion_tokens", "sampling.max_prompt_tokens"),
        f"allows sequences of {total} tokens with max_prompt_tokens; the longest supported is {MAX_POSITIONS}",
    )


def fallbacks_are_other_engines(p: Profile) -> Finding | None:
    if len({p.sampling.engine, *p.sampling.fallback}) == 1 + len(p.sampling.fallback):
        return None
    return Finding(("sampling.fallback", "sampling.engine"), "names an engine twice, or `sampling.engine` itself")


def warmup_ends_before_decay(p: Profile) -> Finding | None:
    warmup, decay = p.optimizer.warmup_steps, p.optimizer.decay_steps
    if decay == 0 or warmup < decay:
        return None
    return Finding(
        ("optimizer.warmup_steps", "optimizer.decay_steps"),
        f"must be less than decay_steps ({decay}), or the learning rate never reaches its value",
    )


def decay_goes_down(p: Profile) -> Finding | None:
    final, peak = p.optimizer.final_learning_rate, p.optimizer.learning_rate
    if p.optimizer.decay_steps == 0:
        if final == 0:
            return None
        return Finding(
            ("optimizer.final_learning_rate", "optimizer.decay_steps"),
            "is unused without decay_steps; set the step at which the decay ends",
        )
    if final <= peak:
        return None
    return Finding(
        ("optimizer.final_learning_rate", "optimizer.learning_rate"),
        f"is more than learning_rate ({peak:g})",
    )


def betas_are_shares(p: Profile) -> Finding | None:
    if all(0 <= beta < 1 for beta in p.optimizer.betas):
        return None
    return Finding(("optimizer.betas",), "must both be >= 0 and < 1")


def exhaustion_has_a_source(p: Profile) -> Finding | None:
    if p.data.tasks or p.data.on_exhausted == "reshuffle" or p.run.worker in ("grpo", "verl"):
        return None
    return Finding(
        ("data.on_exhausted", "data.tasks"),
        "needs data.tasks: self-play never runs out of proposals",
    )


def programs_end(p: Profile) -> Finding | None:
    if p.sandbox.wall_s >= p.sandbox.cpu_s:
        return None
    return Finding(
        ("sandbox.wall_s", "sandbox.cpu_s"),
        f"is less than cpu_s ({p.sandbox.cpu_s:g}): a busy machine would judge the same program differently",
    )


def something_required(p: Profile) -> Finding | None:
    if p.run.worker != "azr" or p.sandbox.allow_weak or {"landlock", "seccomp"} & set(p.sandbox.require):
        return None
    return Finding(
        ("sandbox.require", "sandbox.allow_weak"),
        "needs landlock or seccomp: without either, model-written programs run unconfined (allow_weak permits that)",
    )


def _records(p: Profile) -> dict[str, SuiteRecord]:
    """Records of the suites that can be found."""
    found = {}
    for name in p.validation.suites:
        with suppress(UnknownSuite):
            found[name] = record_of(name)
    return found


def suites_are_known(p: Profile) -> Finding | None:
    for name in p.validation.suites:
        try:
            record_of(name)
        except UnknownSuite as error:
            return Finding(("validation.suites",), f"cannot be: {error}")
    return None


def suite_fits_the_worker(p: Profile) -> Finding | None:
    wrong = [name for name, record in _records(p).items() if p.run.worker not in record.workers]
    if not wrong or not _is_validated(p):
        return None
    fits = [name for name in shipped_suites() if p.run.worker in record_of(name).workers]
    return Finding(
        ("validation.suites", "run.worker"),
        f"has {', '.join(wrong)}, which the worker {p.run.worker} cannot answer; use {', '.join(fits)}",
    )


def suite_fits_the_style(p: Profile) -> Finding | None:
    if p.run.worker in ("grpo", "verl") and p.model.prompt_style not in FOR_PROBLEMS:
        return None  # grpo_rules reports it
    fitting = {name: record for name, record in _records(p).items() if p.run.worker in record.workers}
    wrong = [name for name, record in fitting.items() if record.styles and p.model.prompt_style not in record.styles]
    if not wrong:
        return None
    return Finding(
        ("validation.suites", "model.prompt_style"),
        f"has {', '.join(wrong)}, which the prompt style {p.model.prompt_style} cannot express",
    )


def backoff_grows(p: Profile) -> Finding | None:
    if p.retry.backoff_s <= p.retry.backoff_max_s:
        return None
    return Finding(
        ("retry.backoff_s", "retry.backoff_max_s"), f"is more than backoff_max_s ({p.retry.backoff_max_s:g} s)"
    )


def fault_is_for_the_fake(p: Profile) -> Finding | None:
    if p.run.worker == "fake" or p.fake == type(p.fake)():
        return None
    return Finding(
        ("run.worker", "fake.step_s", "fake.fault", "fake.state_bytes"),
        'ignores [fake]; only worker = "fake" reads it',
    )


RULES = (
    name_is_a_file_name,
    rollouts_fill_the_updates,
    launcher_is_known,
    goal_can_be_met,
    a_run_begins_with_seeding,
    adapter_has_no_dropout,
    adapter_has_targets,
    quantized_weights_are_frozen,
    moments_have_one_home,
    pages_need_a_gpu,
    random_weights_need_no_path,
    solve_batch_is_used,
    the_built_in_model_has_its_own_style,
    inputs_are_kept_alone,
    layers_are_kept_beside_recomputed_ones,
    eight_bits_have_frozen_weights,
    overlap_has_a_worker,
    overlap_has_one_engine,
    sampler_is_a_second_device,
    older_tokens_are_corrected,
    overlapped_validation_has_a_worker,
    thinking_needs_a_template,
    self_play_has_words,
    proposer_share_is_used,
    solver_mix_is_used,
    token_statistics_have_cells,
    tasks_are_named_once,
    buffer_holds_the_seeds,
    references_exist,
    sequences_are_possible,
    fallbacks_are_other_engines,
    warmup_ends_before_decay,
    decay_goes_down,
    betas_are_shares,
    exhaustion_has_a_source,
    programs_end,
    something_required,
    suites_are_known,
    suite_fits_the_worker,
    suite_fits_the_style,
    backoff_grows,
    fault_is_for_the_fake,
    *data_rules.RULES,
    *grpo_rules.RULES,
    *ranks_rules.RULES,
    *style_rules.RULES,
    *verl_rules.RULES,
    *vllm_rules.RULES,
)


def check(profile: Profile) -> list[Finding]:
    """All problems with a profile, in the order of RULES."""
    return [problem for rule in RULES if (problem := rule(profile)) is not None]
