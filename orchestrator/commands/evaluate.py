"""Score a checkpoint or a model directory on held-out suites.

After a kill, the same command resumes where it stopped; once finished, it prints the results again. A run may be
training meanwhile. See docs/evaluation.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from orchestrator.arguments import add_overrides
from orchestrator.commands.run import program_version
from orchestrator.evaluation.on_cluster import KEPT, LAUNCHER, OnCluster
from orchestrator.evaluation.progress import Progress
from orchestrator.evaluation.render import as_json, how, table, to_stderr_or_stdout
from orchestrator.evaluation.shards import MOST_SHARDS
from orchestrator.evaluation.target import Chosen, choose_checkpoint, choose_model, hold, let_go
from orchestrator.line_worker import started
from orchestrator.path_errors import writing
from orchestrator.runs import find_run
from profiles.errors import ExitCode, LonghaulError
from profiles.load import override_profile
from profiles.suites import record_of, suites_for_models
from state import durable
from state.evaluations import (
    EvaluationDir,
    EvaluationLock,
    EvaluationStore,
    SuiteFacts,
    holder_of,
    read_evaluations,
)
from workers.line_contract import Answered, EvaluationSpec, Said, Scores, SuiteBegun

LOCK_PATIENCE_S = 10.0
"""The worker of a killed command holds the lock until it notices that the command is gone."""
SETTABLE = ("launch.", "retry.")
"""Beginnings of the knobs that do not change an answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = "; ".join(f"{name}: {record_of(name).about}" for name in suites_for_models())
    parser.add_argument(
        "--on",
        metavar="LIST",
        help=f"comma-separated suites (those of the run's profile). {known}. module:NAME: a suite of your own",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--checkpoint", default="latest", metavar="WHICH", help="latest, best, a step, or a path (latest)"
    )
    which.add_argument("--model", metavar="DIR", help="a Hugging Face model directory instead, or `pocket`")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="with --model: folder for the results (./evaluations/NAME)"
    )
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="answers per problem (1)")
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="sampling temperature; 0 is greedy (0; 1 with --samples)"
    )
    parser.add_argument("--k", metavar="LIST", help="values of k for pass@k, each at most N, as in 1,4,16 (1 and N)")
    parser.add_argument("--examples", type=int, metavar="N", help="a fixed subset of N problems per task (all)")
    parser.add_argument("--style", choices=("run", "plain", "plain-chat", "auto"), help="prompt style")
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="longest answer in tokens (as in the run's profile)"
    )
    parser.add_argument("--data", default="", metavar="DIR", help="folder of the data files ($LONGHAUL_DATA)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="device of the model (as in the run)")
    parser.add_argument("--engine", choices=("native", "hf", "continuous", "vllm"), help="rollout engine")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="answers generated at a time (128)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of the samples (0)")
    parser.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help=f"on a cluster: jobs that share the questions ({MOST_SHARDS}, or one per batch if that is fewer)",
    )
    parser.add_argument(
        "--at-once", type=int, default=0, metavar="N", help="on a cluster: how many of them run side by side (all)"
    )
    add_overrides(parser, "override a knob of [launch] or [retry], as in --set launch.launcher=slurm")


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    refuse_bad_numbers(args)
    chosen = choose_model(args.model, args.out) if args.model else choose_checkpoint(find_run(args), args.checkpoint)
    chosen = overridden(args, chosen)
    settings = settings_of(args, chosen)
    suites = suites_of(args, chosen)
    evaluation_id = id_of(chosen, settings)
    progress = Progress(to_stderr_or_stdout(as_json=args.json))
    lock = await_lock(chosen.where)
    try:
        store = EvaluationStore(chosen.where)
        try:
            work(args, chosen, settings, suites, evaluation_id, Session(store, lock, progress))
        except KeyboardInterrupt:
            progress.say(f"stopped; {progress.answered} answers are kept; the same command resumes from there")
            return 130
        finally:
            store.close()
    finally:
        lock.release()
    mine = results(chosen.where, evaluation_id, suites)
    rendered = json.dumps({"folder": str(chosen.where.root), "suites": [as_json(one) for one in mine]}, indent=2) + "\n"
    sys.stdout.write(rendered if args.json else f"\n{table(mine)}\nanswers: {chosen.where.folder(evaluation_id)}\n")
    return 0


class Session:
    """The store, lock and progress display of one command."""

    def __init__(self, store: EvaluationStore, lock: EvaluationLock, progress: Progress) -> None:
        self.store, self.lock, self.progress = store, lock, progress


def work(
    args: argparse.Namespace,
    chosen: Chosen,
    settings: Mapping[str, Any],
    suites: tuple[str, ...],
    evaluation_id: str,
    session: Session,
) -> None:
    """Run the evaluation in a worker and store its results."""
    store, progress = session.store, session.progress
    durable.make_dir(chosen.where.folder(evaluation_id))
    held = chosen.where.model(evaluation_id)
    directory = chosen.directory
    if chosen.target.kind == "checkpoint":
        directory = hold(chosen.directory, chosen.target.identity, held)
    store.begin(evaluation_id, chosen.target, settings, program_version(), time.time())
    progress.say(
        f"evaluating {title(chosen)} on {', '.join(suites)}: {how(settings)}, "
        f"at most {settings['max_new_tokens']} tokens per answer"
    )
    spec = spec_of(args, chosen, settings, suites, chosen.where.folder(evaluation_id), directory)

    def hear(message: Said) -> None:
        take(store, evaluation_id, message)
        progress.hear(message)

    def ask(spec: EvaluationSpec) -> Generator[Said]:
        return asked_here(spec, evaluation_id, session.lock)

    if is_on_cluster(chosen):
        OnCluster(spec, evaluation_id, args.at_once, ask, hear, progress).answer()
    else:
        with closing(ask(spec)) as messages:
            for message in messages:
                hear(message)
    let_go(held)


def asked_here(spec: EvaluationSpec, evaluation_id: str, lock: EvaluationLock) -> Generator[Said]:
    """The messages of a worker on this host. It holds the lock too, so that no second evaluation starts while it
    lives."""
    log = Path(spec.folder) / "worker.log"
    with started(
        "workers.evaluate",
        spec,
        name="evaluation",
        kept=KEPT,
        next_command=f"tail {log}",
        owner=evaluation_id,
        log=log,
        pass_fds=(lock.fd,),
    ) as worker:
        yield from worker.hear()


def take(store: EvaluationStore, evaluation_id: str, message: Said) -> None:
    """Store one message of the worker."""
    match message:
        case SuiteBegun(suite=suite):
            store.begin_suite(evaluation_id, suite, message.fingerprint, message.n, time.time())
        case Answered(suite=suite):
            store.add_answers(evaluation_id, suite, message.rows)
        case Scores(suite=suite, metrics=metrics):
            mean = metrics["mean"]
            score = mean["accuracy"] if "accuracy" in mean else mean["pass_at_1"]
            store.end_suite(evaluation_id, suite, (score, mean["low"], mean["high"]), metrics, time.time())


# --- arguments -------------------------------------------------------------------------------------------------------


def refuse_bad_numbers(args: argparse.Namespace) -> None:
    """Raises LonghaulError (USAGE)."""
    if args.temperature is None:
        args.temperature = 0.0 if args.samples == 1 else 1.0
    try:
        ks = sorted({int(part) for part in args.k.split(",")} if args.k else {1, args.samples})
    except ValueError:
        ks = [0]
    args.ks = tuple(ks)
    checks = (
        (args.samples >= 1, f"--samples {args.samples}: at least 1"),
        (0 <= args.temperature <= 2, f"--temperature {args.temperature:g}: between 0 and 2"),
        (args.samples == 1 or args.temperature > 0, f"--samples {args.samples} at temperature 0 are all the same"),
        (args.examples is None or args.examples >= 1, f"--examples {args.examples}: at least 1"),
        (
            args.max_new_tokens is None or args.max_new_tokens > 0,
            f"--max-new-tokens {args.max_new_tokens}: at least 1",
        ),
        (args.batch_size >= 1, f"--batch-size {args.batch_size}: at least 1"),
        (all(1 <= k <= args.samples for k in ks), f"--k {args.k}: numbers from 1 to {args.samples} (--samples)"),
        (args.shards is None or args.shards >= 1, f"--shards {args.shards}: at least 1"),
        (args.at_once >= 0, f"--at-once {args.at_once}: at least 1"),
    )
    for is_fine, text in checks:
        if not is_fine:
            raise refused(text)


def refused(what: str, next_command: str = "python -m orchestrator evaluate --help") -> LonghaulError:
    return LonghaulError(
        what,
        kept="everything; nothing was evaluated",
        next_command=next_command,
        exit_code=ExitCode.USAGE,
    )


def overridden(args: argparse.Namespace, chosen: Chosen) -> Chosen:
    """With the knobs of --set. Raises LonghaulError: USAGE for one that could change an answer, INPUT for a bad one."""
    for override in args.overrides:
        if not override.strip().startswith(SETTABLE):
            raise refused(
                f"--set {override}: only knobs of [launch] and [retry] can be set; answers stay the run's own"
            )
    if args.overrides:
        chosen = changed(chosen, profile=override_profile(chosen.profile, args.overrides))
    if (args.shards or args.at_once) and not is_on_cluster(chosen):
        raise refused(
            f"--shards and --at-once divide an evaluation among the jobs of a cluster; "
            f"launch.launcher is {chosen.profile.launch.launcher}",
            f"the same command with --set launch.launcher={LAUNCHER}",
        )
    return chosen


def is_on_cluster(chosen: Chosen) -> bool:
    return chosen.profile.launch.launcher == LAUNCHER


def suites_of(args: argparse.Namespace, chosen: Chosen) -> tuple[str, ...]:
    """The suites without duplicates, in the given order. The worker refuses unknown names."""
    names = [name.strip() for name in args.on.split(",")] if args.on else list(chosen.suites)
    if names := [name for name in dict.fromkeys(names) if name]:
        return tuple(names)
    raise refused("no suite is named", "python -m orchestrator evaluate --on " + ",".join(suites_for_models()))


def settings_of(args: argparse.Namespace, chosen: Chosen) -> dict[str, Any]:
    """Everything an answer depends on besides the weights and the problem."""
    return {
        "style": args.style or chosen.style,
        "samples": args.samples,
        "temperature": args.temperature,
        "max_new_tokens": args.max_new_tokens or chosen.max_new_tokens,
        "examples": args.examples or 0,
        "seed": args.seed,
    }


def id_of(chosen: Chosen, settings: Mapping[str, Any]) -> str:
    """Equal for evaluations that give equal answers, so that repeating a command finds its own results."""
    text = json.dumps([chosen.target.identity, settings], sort_keys=True)
    label = "model" if chosen.target.step is None else f"step-{chosen.target.step}"
    return f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def spec_of(
    args: argparse.Namespace,
    chosen: Chosen,
    settings: Mapping[str, Any],
    suites: tuple[str, ...],
    folder: Path,
    directory: Path,
) -> EvaluationSpec:
    profile = chosen.profile
    if args.device:
        profile = replace(profile, run=replace(profile.run, device=args.device))
    if args.engine:
        profile = replace(profile, sampling=replace(profile.sampling, engine=args.engine, fallback=()))
    data = str(Path(args.data).expanduser().resolve()) if args.data else ""
    return EvaluationSpec(
        folder=str(folder.resolve()),
        model=str(directory.resolve()),
        step=chosen.target.step,
        profile=profile,
        suites=suites,
        data=data,
        ks=args.ks,
        batch_size=args.batch_size,
        shards=(args.shards or MOST_SHARDS) if is_on_cluster(chosen) else 0,
        **settings,
    )


def title(chosen: Chosen) -> str:
    target = chosen.target
    return f"model {target.name}" if target.step is None else f"step {target.step} of run {target.name}"


def results(where: EvaluationDir, evaluation_id: str, suites: tuple[str, ...]) -> list[SuiteFacts]:
    found = {one.suite: one for one in read_evaluations(where, 1 << 20) if one.evaluation_id == evaluation_id}
    return [found[suite] for suite in suites]


def await_lock(where: EvaluationDir) -> EvaluationLock:
    """Raises LonghaulError (LOCKED) if another evaluation keeps the lock."""
    deadline = time.monotonic() + LOCK_PATIENCE_S
    with writing(where.root, "everything; nothing was evaluated"):
        durable.make_dir(where.root)
    while (lock := EvaluationLock.acquire(where)) is None:
        if time.monotonic() > deadline:
            holder = holder_of(where)
            raise LonghaulError(
                f"another evaluation is running in {where.root}" + (f" (pid {holder})" if holder else ""),
                kept="everything; the other evaluation goes on",
                next_command="the same command when the other is done, or with --model another --out folder",
                exit_code=ExitCode.LOCKED,
            )
        time.sleep(0.1)
    return lock
