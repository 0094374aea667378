"""Checks before a start whether this machine has what the profile needs, and suggests what would fit."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator import planner
from orchestrator.display.wording import harmless
from orchestrator.judging import ProfileVerdict, judge, shape_for
from orchestrator.machine import Card, Machine, this_machine
from orchestrator.planner import Plan
from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB, beside_of
from profiles.knobs import knobs, with_values
from profiles.load import load_profile, shipped_profiles
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of

LARGEST_CARD_GB = 100_000


def gigabytes(text: str) -> float:
    """Parse the value of `--card`. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LARGEST_CARD_GB:  # also rejects nan
        raise argparse.ArgumentTypeError(f"a number above 0 and up to {LARGEST_CARD_GB:,} is needed, not {text!r}")
    return value


def examined(
    profile: Profile,
    args: argparse.Namespace,
    *,
    is_new: bool,
    card: float | None = None,
    is_only_planned: bool = False,
) -> ProfileVerdict:
    """The verdict for `run` as it was typed; the driver is asked only where the answer matters.

    card: GB of a card that is not here. is_only_planned: nothing is to be started.
    Raises LonghaulError (GPU) where the profile needs a GPU, there is none, and more is asked than a plan; INPUT where
    its adapters name layers that the model has not.
    """
    if (error := planner.refused_targets(profile, shape_for(profile.model))) is not None:
        raise error
    if card:
        return judge(profile, a_card_of(card, this_machine().has_vllm, profile.run.cards), is_new=is_new)
    kind, is_here = worker_kind_of(profile), profile.launch.launcher == "local"
    matters = is_here and profile.run.device != "cpu" and kind.uses_model and not kind.has_own_engine
    if not matters or not (is_only_planned or profile.run.device == "cuda" or shape_for(profile.model) is not None):
        return judge(profile, Machine(None), is_new=is_new)
    machine = this_machine()
    if profile.run.device == "cuda" and machine.has_no_gpu and not is_only_planned:
        raise no_gpu(profile, machine)
    if (
        profile.run.cards > 1
        and machine.lacks(profile.run.cards)
        and not is_only_planned
        and not on_cpu(profile, machine)
    ):
        raise too_few(profile, machine, args)
    return judge(profile, machine, is_new=is_new)


def command_of(args: argparse.Namespace, without: Collection[str] = ()) -> str:
    """The `run` command as typed, without --plan and similar options. without: knobs to leave out. (pure)"""
    words = ["python -m orchestrator run"]
    words += [f"--{name} {shlex.quote(value)}" for name in ("run", "profile") if (value := getattr(args, name))]
    kept = [override for override in args.overrides if override.partition("=")[0].strip() not in without]
    return " ".join([*words, *(f"--set {shlex.quote(override)}" for override in kept)])


def on_cpu(profile: Profile, machine: Machine) -> bool:
    """Whether a worker would run on the CPU because there is no GPU."""
    return profile.run.device == "auto" and machine.has_no_gpu


def a_card_of(gigabytes: float, has_vllm: bool, count: int = 1) -> Machine:
    """A hypothetical machine with `count` such cards."""
    return Machine((Card(f"a card of {gigabytes:g} GB", int(gigabytes * GIB)),) * count, has_vllm=has_vllm)


def fitting(machine: Machine) -> list[str]:
    """Shipped profiles that fit this machine."""
    found = []
    for name in shipped_profiles():
        profile = load_profile(name).profile
        if profile.run.device == "cuda" and (not machine.card or worker_kind_of(profile).has_own_engine):
            continue
        verdict = judge(profile, machine)
        if verdict.plan is None or verdict.plan.fits:
            found.append(name)
    return found


def nearest_first(names: Collection[str], profile: Profile) -> list[str]:
    """Sort shipped profiles that could replace `profile`: the same algorithm first, debug and fake profiles last."""

    def distance(name: str) -> tuple[bool, bool]:
        other = load_profile(name).profile
        return name.endswith("-debug") or not worker_kind_of(other).uses_model, other.run.worker != profile.run.worker

    return sorted(names, key=lambda name: (*distance(name), name))


def without_twins(names: Sequence[str]) -> Sequence[str]:
    """Leave out `-debug` profiles, which fit anywhere and learn nothing, where there are others. (pure)"""
    return [name for name in names if not name.endswith("-debug")] or names


# --- messages ---------------------------------------------------------------------------------------------------------


def no_gpu(profile: Profile, machine: Machine) -> LonghaulError:
    fits = fitting(machine)
    twin = f"{profile.name}-debug"
    other = twin if twin in fits else "pocket"
    tail = "   (the same code path with a tiny model)" if other == twin else ""
    return LonghaulError(
        f'profile {profile.name!r} needs a GPU (run.device = "cuda"), but this machine has none: '
        f"{harmless(machine.why)}\n  these fit: {', '.join(without_twins(fits))}",
        kept="nothing was started",
        next_command=f"python -m orchestrator run --profile {other}{tail}",
        exit_code=ExitCode.GPU,
    )


def too_few(profile: Profile, machine: Machine, args: argparse.Namespace) -> LonghaulError:
    there = len(machine.cards or ())
    knob, fewer = fewer_cards(profile, there)
    wanted = f"profile {profile.name!r} needs {profile.run.cards}"
    return LonghaulError(
        f"{wanted} GPUs (run.gpus), but this machine has {there}"
        if knob == "run.gpus"
        else f"{wanted} GPUs (run.sampler_device), but this machine has {there}",
        kept="nothing was started",
        next_command=f"{command_of(args, [knob])} --set {fewer}",
        exit_code=ExitCode.GPU,
    )


def fewer_cards(profile: Profile, there: int) -> tuple[str, str]:
    """The knob that asks for more GPUs than there are, and the setting that does not. (pure)"""
    if profile.run.sampler_device:
        return "run.sampler_device", "run.sampler_device="
    return "run.gpus", f"run.gpus={max(1, there)}"


def too_small(verdict: ProfileVerdict, args: argparse.Namespace) -> LonghaulError:
    plan, card = verdict.plan, verdict.machine.card
    assert plan is not None and plan.usable_bytes is not None and card is not None
    what = (
        f"profile {verdict.profile.name!r} needs up to {gib(plan.demand.device)} GiB of the GPU "
        f"({plan.demand.worst}), but only {gib(plan.usable_bytes)} GiB of {harmless(card.name)} are usable"
    )
    return LonghaulError(
        what + "\n" + indented(table(plan)),
        kept="nothing was started",
        next_command=advice(verdict, args),
        exit_code=ExitCode.CUDA_OOM,
    )


def advice(verdict: ProfileVerdict, args: argparse.Namespace) -> str:
    """The next command if a profile does not fit."""
    anyway = "       or start anyway: --set memory.on_small_card=warn"
    if verdict.changes:
        return f"{command_of(args, verdict.changes)} {as_words(verdict)}\n{anyway}"
    others = [name for name in nearest_first(fitting(verdict.machine), verdict.profile) if name != verdict.profile.name]
    return (
        f"python -m orchestrator run --profile {others[0]}   ({why_none_fits(verdict)}; these fit: "
        f"{', '.join(without_twins(others))})\n{anyway}"
    )


def why_none_fits(verdict: ProfileVerdict) -> str:
    """Why no settings make a profile fit, and whether shorter sequences would. (pure)"""
    least, plan = verdict.least, verdict.plan
    assert least is not None and plan is not None and plan.usable_bytes is not None
    if least.device <= plan.usable_bytes:
        return "this one may fit with shorter sequences"
    help_ = "a larger card, a smaller model"
    if verdict.profile.model.quantization == "none":
        help_ += ", a 4-bit base with an adapter"
    return (
        f"no setting of this one fits: with sequences of {2 * planner.SHORT} tokens it still needs {gib(least.device)} "
        f"GiB, of which loading the model takes {gib(least.devices['load'])}; what can help: {help_}"
    )


def as_words(verdict: ProfileVerdict) -> str:
    """The settings that fit, as options of `run`. (pure)"""
    changes = verdict.changes or {}
    words = [f"--set {name}={str(one).lower() if isinstance(one, bool) else one}" for name, one in changes.items()]
    is_guarded = not verdict.is_new and any(knobs()[name].kind == "guarded" for name in changes)
    return " ".join([*words, *(["--accept-changes"] if is_guarded else [])])


def memory_line(verdict: ProfileVerdict) -> str:
    """One line about memory, printed before the first step; empty if there is no plan. (pure)"""
    plan, card = verdict.plan, verdict.machine.card
    if plan is None or card is None or plan.usable_bytes is None:
        return ""
    line = (
        f"memory: up to {gib(plan.demand.device)} of {gib(plan.usable_bytes)} GiB of {harmless(card.name)} expected "
        f"({plan.demand.worst}); {rollouts_by(verdict)}"
    )
    if not plan.fits:
        return line + "; that is too much, but memory.on_small_card allows the start"
    return line + ("; that is tight" if plan.is_tight else "")


def rollouts_by(verdict: ProfileVerdict) -> str:
    """The engine, and why if `auto` chose it. (pure)"""
    engine = verdict.profile.sampling.engine
    if verdict.is_plain:
        return f"rollouts by {engine}"  # `path` explains it
    return f"rollouts by {engine} (auto: {verdict.why})" if verdict.why else f"rollouts by {engine}"


def engine_kept(verdict: ProfileVerdict, args: argparse.Namespace) -> str:
    """A hint that a stored run keeps its engine although `auto` would now choose another; otherwise empty."""
    names = {override.partition("=")[0].strip() for override in args.overrides}
    engine = verdict.profile.sampling.engine
    if "sampling.engine" in names or not any(name.startswith(("model.", "run.", "vllm.")) for name in names):
        return ""
    afresh = with_values(verdict.profile, {"sampling.engine": "auto"})
    by_auto = judge(afresh, verdict.machine).profile.sampling.engine
    if by_auto == engine:
        return ""
    return f"rollouts stay with {engine}; --set sampling.engine=auto would choose {by_auto}"


def table(plan: Plan) -> str:
    """A table in GiB of each phase: allocated, on the card, and its parts, largest first. (pure)"""
    devices = plan.demand.devices
    lines = ["phase     allocated   on the card   what takes it (GiB)"]
    for phase, parts in plan.demand.parts.items():
        named: dict[str, int] = dict(parts)
        if beside := plan.demand.beside.get(phase):
            named[beside_of(plan.profile)] = beside
        largest = sorted(named.items(), key=lambda part: -part[1])
        details = ", ".join(f"{name} {gib(size)}" for name, size in largest if size >= GIB / 200)
        lines.append(f"{phase:<8}  {gib(sum(parts.values())):>9}   {gib(devices[phase]):>11}   {details}")
    return "\n".join(lines)


def plan_text(verdict: ProfileVerdict, args: argparse.Namespace) -> str:
    """What `plan` prints. (pure)"""
    profile, plan, card = verdict.profile, verdict.plan, verdict.machine.card
    path = f"path: {verdict.path}\n" if verdict.path else ""
    if plan is None:
        why = "the model is built in, unknown, or runs on the CPU"
        return f"profile {profile.name!r} is not planned: {why}\n{path}"
    lines = [f"memory of {profile.name} at its largest shapes, {rollouts_by(verdict)}", table(plan)]
    if profile.run.ranks > 1:
        lines.insert(1, division(profile))
        if verdict.machine.lacks(profile.run.gpus):
            lines.append(f"this machine has {len(verdict.machine.cards or ())} GPUs: a run would be refused here")
    if profile.run.sampler_device:
        lines.insert(
            1, f"two cards: rollout is all that {profile.run.sampler_device} holds, the others train on cuda:0"
        )
        if verdict.machine.lacks(profile.run.cards):
            lines.append(f"this machine has {len(verdict.machine.cards or ())} GPUs: a run would be refused here")
    if plan.usable_bytes is None:
        lines.append(f"needs {gib(plan.demand.device)} GiB; no card is known here ({harmless(verdict.machine.why)})")
    else:
        where = harmless(card.name) if card else f"memory.cap_gib = {profile.memory.cap_gib:g}"
        details = f"{gib(plan.demand.device)} of {gib(plan.usable_bytes)} GiB usable of {where}, in {plan.demand.worst}"
        lines.append(
            ("fits, but is tight: " if plan.is_tight else "fits: " if plan.fits else "does not fit: ") + details
        )
    if not plan.fits:
        lines.append(f"next:  {advice(verdict, args)}")
    return "\n".join(lines) + "\n" + path


def division(profile: Profile) -> str:
    """One line about what each GPU holds whole, and what is divided. (pure)"""
    base = "the frozen base and the adapter in use" if profile.adapter.rank else "the weights in use"
    return (
        f"on each of {profile.run.ranks} GPUs; whole on each: {base}, the cache of its own rollouts; divided by "
        f"{profile.run.ranks}: shards of what is trained, its float32 copies, gradients and moments, rollouts, passes"
    )


def plan_facts(verdict: ProfileVerdict) -> Mapping[str, Any]:
    """The same facts for programs, in bytes. (pure)"""
    plan, card = verdict.plan, verdict.machine.card
    if plan is None:
        return {
            "profile": verdict.profile.name,
            "planned": False,
            "engine": verdict.profile.sampling.engine,
            "engine_why": verdict.why,
            "path": verdict.path,
        }
    return {
        "path": verdict.path,
        "profile": verdict.profile.name,
        "planned": True,
        "engine": verdict.profile.sampling.engine,
        "engine_why": verdict.why,
        "gpus": verdict.profile.run.gpus,
        "hosts": verdict.profile.run.hosts,
        "card": card.name if card else None,
        "usable_bytes": plan.usable_bytes,
        "device_bytes": plan.demand.device,
        "worst_phase": plan.demand.worst,
        "fits": plan.fits if plan.usable_bytes is not None else None,
        "phases": {
            phase: {"allocated": sum(parts.values()), "device": plan.demand.devices[phase], "parts": dict(parts)}
            for phase, parts in plan.demand.parts.items()
        },
        "changes": verdict.changes,
    }


def indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def gib(count: float) -> str:
    return f"{count / GIB:.2f}"
