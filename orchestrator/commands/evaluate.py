"""Score a checkpoint or a model directory on held-out suites.

Killed at any point, the same command goes on where it was; asked again, it tells the results. A run may train
meanwhile. See docs/evaluation.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from orchestrator.commands.run import program_version
from orchestrator.evaluation.progress import Progress
from orchestrator.evaluation.render import as_json, how, table, to_stderr_or_stdout
from orchestrator.evaluation.target import Chosen, choose_checkpoint, choose_model, hold, let_go
from orchestrator.line_worker import started
from orchestrator.path_errors import writing
from orchestrator.runs import find_run
from profiles.errors import ExitCode, LonghaulError
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
"""The worker of a killed command needs a moment to notice, and holds the lock until then."""


KEPT = "every answer so far; the same command resumes from there"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = "; ".join(f"{name}: {record_of(name).about}" for name in suites_for_models())
    parser.add_argument(
        "--on",
        metavar="LIST",
        help=f"suites, with commas between (those of the run's profile). {known}. module:NAME: one of your own",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--checkpoint", default="latest", metavar="WHICH", help="latest, best, a step, or a path (latest)"
    )
    which.add_argument("--model", metavar="DIR", help="a Hugging Face model directory instead, or `pocket`")
    parser.add_argument("--out", type=Path, metavar="DIR", help="with --model: where results go (./evaluations/NAME)")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="answers to each problem (1)")
    parser.add_argument("--temperature", type=float, metavar="T", help="of sampling; 0 is greedy (0; 1 with --samples)")
    parser.add_argument("--k", metavar="LIST", help="for pass@k, each at most N, as in 1,4,16 (1 and N)")
    parser.add_argument("--examples", type=int, metavar="N", help="a fixed subset of N problems a task (all)")
    parser.add_argument("--style", choices=("run", "plain", "plain-chat", "auto"), help="how the model is asked")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="longest answer (that of the run's profile)")
    parser.add_argument("--data", default="", metavar="DIR", help="where the data files are ($LONGHAUL_DATA)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the model lives (as the run says)")
    parser.add_argument("--engine", choices=("native", "hf", "continuous", "vllm"), help="what completes prompts")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="answers written side by side (128)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the samples (0)")


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    refuse_bad_numbers(args)
    chosen = choose_model(args.model, args.out) if args.model else choose_checkpoint(find_run(args), args.checkpoint)
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
            progress.say(f"stopped; {progress.answered} answers are kept, the same command resumes from there")
            return 130
        finally:
            store.close()
    finally:
        lock.release()
    mine = results(chosen.where, evaluation_id, suites)
    shown = json.dumps({"folder": str(chosen.where.root), "suites": [as_json(one) for one in mine]}, indent=2) + "\n"
    sys.stdout.write(shown if args.json else f"\n{table(mine)}\nanswers: {chosen.where.folder(evaluation_id)}\n")
    return 0


class Session:
    """What one command holds while a worker works."""

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
    """Let a worker do it, and write down what it says."""
    store, progress = session.store, session.progress
    durable.make_dir(chosen.where.folder(evaluation_id))
    held = chosen.where.model(evaluation_id)
    directory = chosen.directory
    if chosen.subject.kind == "checkpoint":
        directory = hold(chosen.directory, chosen.subject.identity, held)
    store.begin(evaluation_id, chosen.subject, settings, program_version(), time.time())
    progress.say(
        f"evaluating {title(chosen)} on {', '.join(suites)}: {how(settings)}, "
        f"at most {settings['max_new_tokens']} tokens an answer"
    )
    folder = chosen.where.folder(evaluation_id)
    log = folder / "worker.log"
    # It holds the lock as well, so that no second one starts while it lives.
    with started(
        "workers.evaluate",
        spec_of(args, chosen, settings, suites, folder, directory),
        name="evaluation",
        kept=KEPT,
        next_command=f"tail {log}",
        owner=evaluation_id,
        log=log,
        pass_fds=(session.lock.fd,),
    ) as worker:
        for message in worker.hear():
            take(store, evaluation_id, message)
            progress.hear(message)
    let_go(held)


def take(store: EvaluationStore, evaluation_id: str, message: Said) -> None:
    """One message of the worker into the store."""
    match message:
        case SuiteBegun(suite=suite):
            store.begin_suite(evaluation_id, suite, message.fingerprint, message.n, time.time())
        case Answered(suite=suite):
            store.add_answers(evaluation_id, suite, message.rows)
        case Scores(suite=suite, metrics=metrics):
            mean = metrics["mean"]
            score = mean["accuracy"] if "accuracy" in mean else mean["pass_at_1"]
            store.end_suite(evaluation_id, suite, (score, mean["low"], mean["high"]), metrics, time.time())


# --- what is asked for -----------------------------------------------------------------------------------------------


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
        (args.examples is None or args.examples >= 1, f"--examples {args.examples}: zero examples tell nothing"),
        (
            args.max_new_tokens is None or args.max_new_tokens > 0,
            f"--max-new-tokens {args.max_new_tokens}: at least 1",
        ),
        (args.batch_size >= 1, f"--batch-size {args.batch_size}: at least 1"),
        (all(1 <= k <= args.samples for k in ks), f"--k {args.k}: numbers from 1 to {args.samples} (--samples)"),
    )
    for is_fine, text in checks:
        if not is_fine:
            raise LonghaulError(
                text,
                kept="everything; nothing was asked",
                next_command="python -m orchestrator evaluate --help",
                exit_code=ExitCode.USAGE,
            )


def suites_of(args: argparse.Namespace, chosen: Chosen) -> tuple[str, ...]:
    """Each once, in the order given. An unknown name is told by the worker, which knows them all."""
    names = [name.strip() for name in args.on.split(",")] if args.on else list(chosen.suites)
    if names := [name for name in dict.fromkeys(names) if name]:
        return tuple(names)
    raise LonghaulError(
        "no suite is named",
        kept="everything; nothing was asked",
        next_command="python -m orchestrator evaluate --on " + ",".join(suites_for_models()),
        exit_code=ExitCode.USAGE,
    )


def settings_of(args: argparse.Namespace, chosen: Chosen) -> dict[str, Any]:
    """What an answer depends on beside the weights and the question."""
    return {
        "style": args.style or chosen.style,
        "samples": args.samples,
        "temperature": args.temperature,
        "max_new_tokens": args.max_new_tokens or chosen.max_new_tokens,
        "examples": args.examples or 0,
        "seed": args.seed,
    }


def id_of(chosen: Chosen, settings: Mapping[str, Any]) -> str:
    """Equal for what would give equal answers; so the same command finds its own work."""
    text = json.dumps([chosen.subject.identity, settings], sort_keys=True)
    label = "model" if chosen.subject.step is None else f"step-{chosen.subject.step}"
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
        step=chosen.subject.step,
        profile=profile,
        suites=suites,
        data=data,
        ks=args.ks,
        batch_size=args.batch_size,
        **settings,
    )


def title(chosen: Chosen) -> str:
    subject = chosen.subject
    return f"model {subject.name}" if subject.step is None else f"step {subject.step} of run {subject.name}"


def results(where: EvaluationDir, evaluation_id: str, suites: tuple[str, ...]) -> list[SuiteFacts]:
    found = {one.suite: one for one in read_evaluations(where, 1 << 20) if one.evaluation_id == evaluation_id}
    return [found[suite] for suite in suites]


def await_lock(where: EvaluationDir) -> EvaluationLock:
    """Raises LonghaulError (LOCKED) where another evaluation goes on."""
    deadline = time.monotonic() + LOCK_PATIENCE_S
    with writing(where.root, "everything; nothing was asked"):
        durable.make_dir(where.root)
    while (lock := EvaluationLock.acquire(where)) is None:
        if time.monotonic() > deadline:
            holder = holder_of(where)
            raise LonghaulError(
                f"another evaluation works in {where.root}" + (f" (pid {holder})" if holder else ""),
                kept="everything; it goes on",
                next_command="the same command when it is done, or --out with another folder for a --model",
                exit_code=ExitCode.LOCKED,
            )
        time.sleep(0.1)
    return lock
