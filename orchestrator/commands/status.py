"""Show where a run stands.

Reads the store without a lock, so it works at any time. Shows process ids only of living processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from orchestrator.alive import master_pid, worker_pid
from orchestrator.display.reading import NEWEST, Reading, reading_of
from orchestrator.display.scores import task_scores
from orchestrator.display.wording import TASK_NAMES, among, count, duration, go_on, harmless, percent, score
from orchestrator.evaluation.render import as_json, scores, short
from orchestrator.exactness import exactness
from orchestrator.nearness import nearest
from orchestrator.nodes import as_lines
from orchestrator.runs import find_run
from profiles.worker_kinds import kind_of_stored
from state import event_kinds
from state.cycle_times import CycleTime, learning_share, of_one_clock
from state.evaluations import EvaluationDir, read_evaluations
from state.history import History, ValidationFacts
from state.layout import RunDir
from state.reader import Reader
from state.states import UNDER_A_MASTER, CycleState, RunState

if TYPE_CHECKING:
    from profiles.schema import Stagnation

EVALUATIONS_SHOWN = 6
VALIDATIONS_READ = 16
"""The newest validations, over all suites."""
INTERRUPTED = "interrupted"
"""The store says running, but no process holds the lock: the master died. `run` resumes from the head."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only the common arguments."""


def run(args: argparse.Namespace) -> int:
    facts = collect(find_run(args), time.time())
    sys.stdout.write(json.dumps(facts, indent=2) + "\n" if args.json else among(args.runs, render(facts)))
    return 0


def collect(run_dir: RunDir, now: float) -> dict[str, Any]:
    """All printed facts, as JSON types. now: UTC seconds."""
    reader = Reader.open(run_dir)
    try:
        history = reader.history()
        validations = reader.validations(VALIDATIONS_READ)
        profile = json.loads(reader.profile_json())
        versions = started_versions(reader)
        path = computed_by(reader)
        age = max(0.0, now - history.heartbeat_at)
        master = master_pid(run_dir, age)
        worker = worker_pid(reader.open_attempts(), master) if master is not None else None
        trained = newest_step(reader, history.step)
        reading = reading_of(reader.steps(NEWEST))
        nodes = as_lines(reader.node_failures(), now)
        times = reader.cycle_times()
    finally:
        reader.close()
    exact, reason = exactness(profile, versions)
    near = nearness_of(history, profile)
    current = history.current
    return {
        "run": history.name,
        "profile": profile.get("name", ""),
        "phase": phase(history),
        "phases": list(profile.get("run", {}).get("phases", ("seed", "train"))),
        "state": INTERRUPTED if history.state in UNDER_A_MASTER and master is None else history.state.value,
        "cycle": current.cycle if current else 0,
        "step": trained,
        "steps_total": steps_total(history, profile),
        "head": head(history),
        "validation": validation(history),
        "other_suites": other_suites(validations, history),
        "master_pid": master,
        "worker_pid": worker,
        "stop_reason": history.stop_reason,
        "exactness": exact,
        "exactness_reason": reason,
        "path": path,
        "cycles_done": history.cycles_done,
        "examples": history.examples,
        "finds_tasks": kind_of_stored(profile).finds_tasks,
        "problems": problems(reading),
        "training_s": round(history.training_s, 3),
        "time": time_of(times),
        "heartbeat_age_s": round(age, 3),
        "paused_s": None if history.paused_at is None else round(max(0.0, now - history.paused_at), 3),
        "validation_asked": history.validation_asked,
        "stagnation": near,
        "reseeds": history.reseeds,
        "failures": len(history.failures),
        "jobs": jobs_of(run_dir),
        "nodes_left_out": nodes,
        "evaluations": [as_json(one) for one in read_evaluations(EvaluationDir.of(run_dir), EVALUATIONS_SHOWN)],
    }


def jobs_of(run_dir: RunDir) -> list[str]:
    """Jobs of schedulers that may be queued or at work. Reads the handles as JSON: their type takes time to import."""
    found = []
    for path in sorted(run_dir.workers.glob("[!.]*.json")):
        with suppress(OSError, ValueError):
            handle = json.loads(path.read_bytes())
            if isinstance(handle, dict) and handle.get("job"):
                found.append(f"{handle['job']} of {handle.get('launcher', '')}")
    return found


def time_of(cycles: Sequence[CycleTime]) -> dict[str, Any] | None:
    """Shares of the newest cycles' time; None before the first is committed. (pure)"""
    cycles = of_one_clock(cycles)
    whole = sum(one.whole for one in cycles)
    if not whole:
        return None
    learning, validation = learning_share(cycles), sum(one.validation for one in cycles) / whole
    return {
        "first": cycles[0].cycle,
        "last": cycles[-1].cycle,
        "learning": round(learning, 4),
        "validation": round(validation, 4),
        "rest": round(max(0.0, 1.0 - learning - validation), 4),
    }


def nearness_of(history: History, profile: Mapping[str, Any]) -> dict[str, Any] | None:
    """How near the stagnation rule is to firing; None before the first trained cycle is done."""
    try:
        # Not the schema's own type, whose library takes a tenth of a second to import.
        found = nearest(history, cast("Stagnation", SimpleNamespace(**profile.get("stagnation", {}))))
    except AttributeError:  # a profile of an older version
        return None
    return found.as_json() if found is not None else None


def phase(history: History) -> str:
    current = history.current
    if current is None:
        return "seed"
    is_validated = current.state in (CycleState.VALIDATING, CycleState.VALIDATED)
    return "validate" if is_validated else current.phase


def steps_total(history: History, profile: Mapping[str, Any]) -> int | None:
    """Last step of the run's last cycle; None without a limit on cycles. (pure)"""
    current, run = history.current, profile.get("run", {})
    if not run.get("max_cycles"):
        return None
    if current is None:
        return int(run["max_cycles"]) * int(run.get("steps_per_cycle", 0))
    left = max(0, int(run["max_cycles"]) - current.cycle)
    return current.end_step - 1 + left * int(run.get("steps_per_cycle", 0))


def head(history: History) -> dict[str, Any] | None:
    if history.head is None:
        return None
    return {"path": history.head.path, "step": history.head.step, "digest": history.head.digest}


def validation(history: History) -> dict[str, Any] | None:
    last = history.last_validation
    return None if last is None else {"step": last.step, "suite": last.suite, "metrics": dict(last.metrics)}


def problems(reading: Reading | None) -> dict[str, Any] | None:
    """How far a run has read its problem file; None for self-play. (pure)"""
    if reading is None:
        return None
    place = {"stage": reading.stage, "stages": reading.stages} if reading.stage else {"epoch": reading.epoch}
    return {
        "problems": reading.problems,
        "drawn": reading.drawn,
        **place,
        "accuracy": reading.accuracy,
        "text": f"{reading.place}; {reading.right}",
    }


def other_suites(validations: Sequence[ValidationFacts], history: History) -> dict[str, dict[str, Any]]:
    """The last validation on each suite except the run's first suite. (pure)"""
    first = history.last_validation.suite if history.last_validation else ""
    found = {one.suite: {"step": one.step, "metrics": dict(one.metrics)} for one in validations if one.suite != first}
    return dict(sorted(found.items()))


def newest_step(reader: Reader, step: int) -> int:
    """Last finished step, whether or not a checkpoint holds it."""
    row = reader.connection.execute(
        "SELECT max(step_reached) FROM (SELECT step_reached FROM attempts"
        " WHERE role='train' ORDER BY rowid DESC LIMIT 1)"
    ).fetchone()
    return max(step, int(row[0] or 0)) if row else step


def started_versions(reader: Reader) -> list[dict[str, str]]:
    """Library versions reported by the first and the newest train worker."""
    found = []
    for order in ("ASC", "DESC"):
        row = reader.connection.execute(
            f"SELECT payload FROM events WHERE type=? AND role='train' ORDER BY rowid {order} LIMIT 1",
            [event_kinds.STARTED.name],
        ).fetchone()
        versions = json.loads(row[0]).get("versions") if row else None
        if isinstance(versions, dict):
            found.append({str(name): str(value) for name, value in versions.items()})
    return found


def computed_by(reader: Reader) -> str | None:
    """What computes the model, as last reported by a worker."""
    row = reader.connection.execute(
        "SELECT payload FROM events WHERE type=? ORDER BY rowid DESC LIMIT 1", [event_kinds.PATH.name]
    ).fetchone()
    return str(json.loads(row[0]).get("text", "")) or None if row else None


# --- text ------------------------------------------------------------------------------------------------------------


def render(facts: Mapping[str, Any]) -> str:
    """The facts as text, with the run's own texts made harmless."""
    total = f" of {count(facts['steps_total'])}" if facts["steps_total"] else ""
    lines = [
        f"run         {facts['run']} (profile {facts['profile']})",
        f"state       {facts['state']}" + (f": {facts['stop_reason']}" if facts["stop_reason"] else ""),
        f"at          {facts['phase']}, cycle {facts['cycle']}, step {count(facts['step'])}{total}",
    ]
    if facts["head"]:
        lines.append(
            f"head        step {facts['head']['step']}, {facts['head']['path']}, {facts['head']['digest'][:12]}"
        )
    lines += [f"accuracy    {line}" for line in _scores(facts)]
    if near := facts.get("stagnation"):
        share = percent(near["share"])
        lines.append(f"stagnation  {near['rule']} {share} of the way (then {near['action']}): {near['text']}")
    lines += [f"evaluated   {line}" for line in map(short, facts["evaluations"])]
    if facts["path"]:
        lines.append(f"model       {facts['path']}")
    lines += [
        f"work        {duration(facts['training_s'])} of training, {_worked_on(facts)}",
        *([f"time        {_time(facts['time'])}"] if facts["time"] else []),
        f"resume      {facts['exactness']}: {facts['exactness_reason']}",
        f"processes   {_processes(facts)}",
    ]
    lines += [f"job         {job}" for job in facts["jobs"]]
    lines += [f"left out    {line}" for line in facts["nodes_left_out"]]
    if facts["failures"]:
        lines.append(f"failures    {facts['failures']} since the last progress")
    lines.append(f"next        {_next(facts)}")
    return "".join(harmless(line) + "\n" for line in lines)


def _worked_on(facts: Mapping[str, Any]) -> str:
    if facts["problems"]:
        return str(facts["problems"]["text"])
    return f"{count(facts['examples'])} distinct tasks found" if facts["finds_tasks"] else "no problem read yet"


def _time(found: Mapping[str, Any]) -> str:
    shares = f"{percent(found['learning'])} rollouts and updates, {percent(found['validation'])} validation"
    return f"{shares}, {percent(found['rest'])} all else (cycles {found['first']} to {found['last']})"


def _scores(facts: Mapping[str, Any]) -> list[str]:
    if not facts["validation"]:
        return ["not validated yet"]
    metrics, step = facts["validation"]["metrics"], facts["validation"]["step"]
    rows = task_scores([ValidationFacts(0, step, "", 0.0, 0, 0, metrics)], None)
    lines = []
    for row in rows:
        last = row.last
        text = f"{TASK_NAMES.get(row.task, row.task):<10} {score(last.greedy)} [{last.low:.2f}, {last.high:.2f}]"
        text += f", sampled {score(last.sampled)}" if last.sampled is not None else ""
        lines.append(text + (f", mean reward {last.reward:.3g}" if last.reward is not None else ""))
    lines[0] += f"   (step {step})"
    for suite, found in facts["other_suites"].items():
        lines.append(f"{suite:<10} {scores(found['metrics'], 'mean')}   (step {found['step']})")
    return lines


def _processes(facts: Mapping[str, Any]) -> str:
    if facts["master_pid"] is None:
        return f"none; last heartbeat of a master {duration(facts['heartbeat_age_s'])} ago"
    worker = f"worker {facts['worker_pid']}" if facts["worker_pid"] else "no worker at the moment"
    return f"master {facts['master_pid']}, {worker}"


def _next(facts: Mapping[str, Any]) -> str:
    name = facts["run"]
    if facts["master_pid"] is not None:
        return f"python -m orchestrator top --run {name}"
    if facts["state"] in (INTERRUPTED, RunState.STOPPED, RunState.FAILED):
        return go_on(name, facts["phases"], is_seeded=facts["head"] is not None)
    return f"python -m orchestrator report --run {name}"
