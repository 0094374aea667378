"""Tell what a profile needs and what would fit; or what is wrong with a YAML of open-instruct, in numbers.

Nothing is started. The exit code is 71 where it does not fit, 73 where the disk is too small.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from time import time as now

from orchestrator import verl_job
from orchestrator.arguments import OF_A_RUN, add_overrides
from orchestrator.cluster_plan import Cluster, Job, least_hosts, refusals
from orchestrator.cluster_text import facts, head, plan_text
from orchestrator.commands.run import choose, stored_with
from orchestrator.deadlines import STEPS_TIMED, StepTimes
from orchestrator.disk import Room, disk_facts, disk_line, room_for
from orchestrator.display.wording import among, size
from orchestrator.hours.history import history_facts, history_text
from orchestrator.hours.prediction import Prediction, facts_of, growth, predict
from orchestrator.hours.prediction import time_line as step_line
from orchestrator.hours.records import known_step, outcomes
from orchestrator.hours.room import is_out_of_memory
from orchestrator.job_time import SLOWEST_DISK, JobTime, asked_time, in_jobs, time_facts
from orchestrator.judging import ProfileVerdict
from orchestrator.open_instruct.render import stops_after
from orchestrator.preflight import command_of, examined, gigabytes, plan_facts
from orchestrator.preflight import plan_text as plan_here
from orchestrator.ram import ram_total
from orchestrator.resume_profile import has_begun
from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB
from profiles.schema import Profile
from profiles.worker_kinds import worker_kind_of
from state.layout import RunDir
from state.reader import Reader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", metavar="NAME|FILE", help="a shipped profile's name, or a TOML file")
    add_overrides(parser, OF_A_RUN)
    parser.add_argument("--card", type=gigabytes, metavar="GB", help="plan for GPUs of so many GB, not for those here")
    parser.add_argument("--measure", action="store_true", help="time two real steps here, in a run that is removed")
    parser.add_argument("--steps", type=_steps, metavar="N", help="say how long so many steps take (those of the run)")
    parser.add_argument("--history", action="store_true", help="show what was predicted beside what runs measured")
    parser.add_argument("--card-name", metavar="NAME", default="", help="time on a GPU by name, as in 'RTX 4090'")
    parser.add_argument("--explain", action="store_true", help="say how each part is counted (several hosts)")
    guide = parser.add_argument_group("a YAML of open-instruct")
    guide.add_argument(
        "--import", metavar="FILE.yaml", dest="guide", help="find what is wrong with it; it stays as it is"
    )
    guide.add_argument("--out", metavar="DIR", type=Path, help="write the corrected YAML and what starts it")
    guide.add_argument("--hosts", metavar="N", type=_count, help="hosts of the cluster")
    guide.add_argument("--gpus", metavar="N", type=_count, help="GPUs of each host")
    cluster = parser.add_argument_group("time of a job")
    for name, text in (
        ("--limit-h", "hours after which the scheduler ends a job (launch.time_limit_minutes)"),
        ("--step-s", "seconds of a step, if you know them (the median of a run that has begun)"),
        ("--start-s", "seconds from a job's start to its first step (timeouts.startup_s; verl.start_s; 1200)"),
        ("--save-s", "seconds of a checkpoint (by 100 MB/s on each host)"),
    ):
        cluster.add_argument(name, metavar=name[-1].upper(), type=_number, help=text)


def run(args: argparse.Namespace) -> int:
    if args.guide is not None:
        from orchestrator.import_guide import import_guide

        _refuse_what_an_import_has_not(args)
        return import_guide(args)
    if args.history:
        return show_history(args)
    chosen = choose(args)
    is_begun = has_begun(chosen.run)
    profile = chosen.profile or stored_with(chosen.run, [])
    if worker_kind_of(profile).has_own_engine and profile.run.device != "cpu":
        return plan_engine(profile, args)
    verdict = examined(profile, args, is_new=not is_begun, card=args.card, is_only_planned=True)
    room = room_for(verdict.profile, chosen.run)
    prediction = predicted(verdict, room, chosen.run, args)
    time = native_time(verdict.profile, room, args, chosen.run if is_begun else None)
    return say_plan(verdict, room, args, time, prediction)


def predicted(verdict: ProfileVerdict, room: Room, run: RunDir, args: argparse.Namespace) -> Prediction:
    """By the best that is known: two steps now, what somebody says, this run or one like it, tables."""
    known = known_step(verdict, run, args.runs) if not (args.card or args.card_name) else None
    if args.step_s is not None:
        known = args.step_s, "as --step-s says"
    if args.measure:
        from orchestrator.hours.measure import measured_step

        known = measured_step(verdict, args.runs, args), "measured here, the second of two steps"
    return predict(verdict, room, now(), known, args.card_name)


def show_history(args: argparse.Namespace) -> int:
    """Every run below the folder of all runs that has a prediction, or the named one."""
    found = [one for one in outcomes(args.runs) if args.run in (None, one.run)]
    if args.json:
        sys.stdout.write(json.dumps([history_facts(one) for one in found], indent=2) + "\n")
    else:
        sys.stdout.write(history_text(found))
    return int(ExitCode.OK)


def native_time(profile: Profile, room: Room, args: argparse.Namespace, run: RunDir | None) -> JobTime | None:
    """What is known of the time of this run's jobs; None: they have no limit. run: one that has begun."""
    step_s = None
    if run is not None:
        with closing(Reader.open(run)) as reader:
            step_s = StepTimes(reader.step_seconds(STEPS_TIMED)).median_s or None
    return asked_time(
        args,
        profile.launch.time_limit_minutes,
        start_s=profile.timeouts.startup_s,
        save_s=room.plan.checkpoint / SLOWEST_DISK if room.plan is not None else 0.0,
        step_s=step_s,
    )


def of_verl(profile: Profile, args: argparse.Namespace, again: str) -> Job:
    from orchestrator.import_guide import card_bytes, counted_shape, time_of

    shape = counted_shape(profile.model.path, "model.path")
    time = time_of(args, shape, profile.run.hosts, profile.verl.start_s, profile.launch.time_limit_minutes)
    return verl_job.job_of(profile, shape, card_bytes(args, again), time)


def of_open_instruct(profile: Profile, args: argparse.Namespace, again: str) -> Job:
    """Its model, batch and lengths are in its YAML."""
    from orchestrator.import_guide import START_S, card_bytes, counted_shape, time_of
    from orchestrator.open_instruct import findings
    from profiles.open_instruct.document import value
    from profiles.open_instruct.guide import settings_to_start

    settings = settings_to_start(profile.open_instruct.guide, profile.run)
    shape = counted_shape(value(settings, "model_name_or_path"), "model_name_or_path")
    cluster = Cluster(profile.run.hosts, profile.run.gpus, card_bytes(args, again))
    return findings.job_of(
        settings, shape, cluster, time_of(args, shape, profile.run.hosts, START_S, profile.launch.time_limit_minutes)
    )


JOBS: Mapping[str, Callable[[Profile, argparse.Namespace, str], Job]] = {
    "verl": of_verl,
    "open_instruct": of_open_instruct,
}
"""By worker: the job that its engine would make of a profile. The text is the command's words, for a refusal."""


def plan_engine(profile: Profile, args: argparse.Namespace) -> int:
    """The plan of another engine's job; the exit code says whether it fits. Its disk is the cluster's."""
    again = command_of(args, ["run.hosts"]).removeprefix("python -m orchestrator run ")
    job = JOBS[profile.run.worker](profile, args, again)
    refused = refusals(job)
    every = profile.run.checkpoint_every
    if args.json:
        told = {"profile": profile.name, "checkpoint_every": every, **facts(job)}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return int(ExitCode.CUDA_OOM if refused else ExitCode.OK)
    sys.stdout.write(f"{profile.name}: {head(job)}\n{plan_text(job, explain=args.explain)}\n")
    if not worker_kind_of(profile).saves_when_asked:
        sys.stdout.write(stops_after(every, job.time) + "\n")
    if any(one.about in ("memory", "cache") for one in refused):
        least = least_hosts(job)
        more = (
            f"python -m orchestrator plan {again} --set run.hosts={least} --card {job.cluster.card_bytes / GIB:g}"
            if least
            else "larger GPUs, or an adapter"
        )
        sys.stdout.write(f"next:  {more}\n")
    return int(ExitCode.CUDA_OOM if refused else ExitCode.OK)


def say_plan(
    verdict: ProfileVerdict, room: Room, args: argparse.Namespace, time: JobTime | None, prediction: Prediction
) -> int:
    """Print the plan; the exit code says whether it fits. With --card the disk is that of another machine, too."""
    run = verdict.profile.run
    steps = args.steps or run.max_cycles * run.steps_per_cycle or None
    if args.json:
        hours = facts_of(prediction, steps)
        facts = {**plan_facts(verdict), "disk": disk_facts(room), "time": time_facts(time, steps), "prediction": hours}
        said = json.dumps(facts, indent=2) + "\n"
    else:
        said = among(args.runs, plan_here(verdict, args)) + disk_line(room) + "\n"
        said += "".join(f"{line}\n" for line in hours_lines(verdict, prediction, steps, args))
        said += time_line(time, steps) if time is not None else ""
    sys.stdout.write(said)
    is_too_large = verdict.plan is not None and not verdict.plan.fits
    if is_too_large or (not args.card and is_out_of_memory(prediction, verdict)):
        return int(ExitCode.CUDA_OOM)
    return int(ExitCode.DISK if room.is_refused and not args.card else ExitCode.OK)


def hours_lines(
    verdict: ProfileVerdict, prediction: Prediction, steps: int | None, args: argparse.Namespace
) -> list[str]:
    """Host memory, growth of the store, time. With --card the memory is that of another machine."""
    here = "" if args.card else f" of {size(ram_total())}"
    return [
        f"RAM: up to {size(prediction.ram_bytes)}{here} expected, all processes together",
        growth(steps),
        step_line(prediction, steps),
    ]


def time_line(time: JobTime, steps: int | None) -> str:
    """Steps of the run, and jobs that they take. (pure)"""
    all_steps = "as many steps as it takes" if steps is None else f"{steps:,} step{'s' * (steps != 1)}"
    line = f"time: {all_steps}; {in_jobs(time, steps)}\n"
    if not time.problem:
        return line
    return f"{line}too short: {time.problem}\nnext:  launch.time_limit_minutes = {time.least_limit_s / 60:.0f}\n"


def _refuse_what_an_import_has_not(args: argparse.Namespace) -> None:
    """Raises LonghaulError (USAGE)."""
    beside = [name for name in ("profile", "run") if getattr(args, name)] + ["set"] * bool(args.overrides)
    missing = [name for name in ("hosts", "gpus") if getattr(args, name) is None]
    if not beside and not missing:
        return
    what = (
        f"--import does not take --{', --'.join(beside)}" if beside else f"--import needs --{' and --'.join(missing)}"
    )
    raise LonghaulError(
        f"{what}: its settings are those of the file, and only the cluster is not in it",
        kept="everything; nothing was written",
        next_command="python -m orchestrator plan --import FILE.yaml --hosts 16 --gpus 4 --card 95.6",
        exit_code=ExitCode.USAGE,
    )


def _count(text: str) -> int:
    """Of hosts and GPUs. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"a whole number from 1 to 10,000 is needed, not {text!r}")
    return int(text)


def _steps(text: str) -> int:
    """Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1_000_000_000:
        raise argparse.ArgumentTypeError(f"a whole number from 1 to 1,000,000,000 is needed, not {text!r}")
    return int(text)


def _number(text: str) -> float:
    """Of hours and seconds. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:  # False for nan, too
        raise argparse.ArgumentTypeError(f"a number above 0 is needed, not {text!r}")
    return number
