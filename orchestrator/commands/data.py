"""Import, merge, count, show and export tasks, all verified again; preview the problems of GRPO.

  import SOURCE...   add to the data set --into (data/tasks.jsonl); importing twice adds nothing
  merge [SOURCE...]  rebuild the data set --into from the sources only, by default from all runs
  stats, show        count or print the tasks of a data set, file or run (the data set, else the newest run)
  export SOURCE...   write --out in this project's JSONL, or with --format triplet in Absolute Zero's original format
  preview FILE       show problems of GRPO as the model will see them; FILE may be a profile, a folder or hf:owner/name

A SOURCE is a file of JSON lines, a run directory or a run's name. Sources are never changed. See docs/data.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from orchestrator.arguments import add_overrides
from orchestrator.data_sets.render import Progress, preview_lines, report_lines, stats_lines, task_lines
from orchestrator.data_sets.worker import KEPT, data_worker
from orchestrator.display.wording import count, harmless
from orchestrator.runs import all_runs, find_run
from profiles.errors import ExitCode, LonghaulError
from profiles.load import load_profile, override_profile, shipped_profiles
from profiles.schema import Model, Profile
from profiles.task_kinds import NAMES
from profiles.worker_kinds import worker_kind_of
from state.layout import RunDir
from workers.line_contract import Consolidated, DataSpec, Exported, Previewed, Statistics, Task

DEFAULT_SET = Path("data/tasks.jsonl")
SHOW = 5
ROWS = 3
PREVIEW_PROFILE = "pocket-grpo"
"""Profile of a preview that names none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("import", "merge", "stats", "show", "export", "preview"),
        metavar="ACTION",
        help="import, merge, stats, show, export or preview",
    )
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="a file, a run's directory or a run's name")
    parser.add_argument("--into", type=Path, default=DEFAULT_SET, metavar="FILE", help=f"data set ({DEFAULT_SET})")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file that export writes")
    parser.add_argument(
        "--format", choices=("longhaul", "triplet"), default="longhaul", help="format that export writes (longhaul)"
    )
    parser.add_argument("--task", choices=NAMES, default="", help="show, export: only this kind of task")
    parser.add_argument("--key", default="", metavar="PREFIX", help="show: only tasks whose key starts with PREFIX")
    parser.add_argument(
        "--limit", type=int, metavar="N", help=f"show, export: the last N tasks (show {SHOW}, export all)"
    )
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"preview: rows to show ({ROWS})")
    parser.add_argument("--completion", metavar="TEXT", help="preview: judge this text as an answer to each row")
    parser.add_argument("--profile", metavar="NAME|FILE", help="profile whose [azr], [sandbox] and [validation] apply")
    add_overrides(parser, "override a knob of the profile")
    parser.add_argument("--data", default="", metavar="DIR", help="folder of the held-out files ($LONGHAUL_DATA)")


def run(args: argparse.Namespace) -> int:
    os.umask(0o077)
    refuse_nonsense(args)
    spec = preview_spec(args) if args.action == "preview" else spec_of(args)
    progress = Progress(sys.stderr if args.json else sys.stdout)
    facts: dict[str, Any] = {"tasks": []}
    try:
        with data_worker(spec) as worker:
            for message in worker.hear():
                progress.hear(message)
                match message:
                    case Task(record=record):
                        facts["tasks"].append(record)
                    case Consolidated(report=told) | Statistics(counts=told) | Previewed(facts=told):
                        facts = told
                    case Exported():
                        facts = msgspec.structs.asdict(message)
    except KeyboardInterrupt:
        progress.say(f"stopped; kept: {KEPT}")
        return 130
    sys.stdout.write(json.dumps(facts, indent=2) + "\n" if args.json else render(args.action, facts))
    if args.action in ("import", "merge") and not facts["valid"]:
        raise nothing_valid(facts)
    return 0


def nothing_valid(report: Mapping[str, Any]) -> LonghaulError:
    names = ", ".join(source["source"] for source in report["sources"])
    return LonghaulError(
        f"{harmless(names)}: no valid task among {count(report['read'])}",
        kept=f"{report['into']}, unchanged; {report['report']} says why each was refused",
        next_command=f"python -m orchestrator data show {harmless(report['sources'][0]['source'])}   "
        "(docs/data.md says what a line looks like)",
        exit_code=ExitCode.INPUT,
    )


def render(action: str, facts: Mapping[str, Any]) -> str:
    """The result as text."""
    if action in ("import", "merge"):
        lines = report_lines(facts)
    elif action == "stats":
        lines = stats_lines(facts)
    elif action == "preview":
        lines = preview_lines(facts)
    elif action == "show":
        lines = [line for task in facts["tasks"] for line in ["", *task_lines(task)]] or ["no such task"]
    else:
        lines = [f"{path}: {number} lines" for path, number in facts["files"].items()]
    return "".join(line + "\n" for line in lines)


# --- arguments -------------------------------------------------------------------------------------------------------


def refuse_nonsense(args: argparse.Namespace) -> None:
    """Raises LonghaulError (USAGE)."""
    if args.limit is None:
        args.limit = SHOW if args.action == "show" else 0
    checks = (
        (args.action != "import" or args.sources or args.run, "import needs a SOURCE"),
        (args.action != "export" or args.out is not None, "export needs --out FILE"),
        (args.action != "preview" or len(args.sources) <= 1, "preview takes one FILE or profile"),
        (args.action != "preview" or args.sources or args.profile, "preview needs a FILE or --profile"),
        (args.rows >= 1, f"--rows {args.rows}: 1 or more"),
        (args.limit >= 0, f"--limit {args.limit}: 0 (all) or more"),
    )
    for is_fine, text in checks:
        if not is_fine:
            raise LonghaulError(
                text,
                kept="everything; nothing was read",
                next_command="python -m orchestrator data --help",
                exit_code=ExitCode.USAGE,
            )


def spec_of(args: argparse.Namespace) -> DataSpec:
    named = [(name, locate(name, args.runs)) for name in args.sources]
    if args.run:
        named.append((args.run, find_run(args).root))
    if not named:
        named = [(name, path) for name, path in sources_meant(args)]
    into = args.out if args.action == "export" else args.into
    return DataSpec(
        action=args.action,
        profile=profile_of(args),
        names=tuple(name for name, _ in named),
        form=args.format,
        sources=tuple(str(path.resolve()) for _, path in named),
        into=str(into),
        task=args.task,
        key=args.key,
        limit=args.limit,
    )


def preview_spec(args: argparse.Namespace) -> DataSpec:
    """The source is a profile if it has the name of one, else the data of the profile that --profile names."""
    name = args.sources[0] if args.sources else ""
    is_profile = name.endswith(".toml") or (name in shipped_profiles() and not Path(name).exists())
    overrides = list(args.overrides)
    if name and not is_profile:
        is_path = not name.startswith("hf:") and Path(name).expanduser().exists()
        tasks = str(Path(name).expanduser().resolve()) if is_path else name
        overrides = [f"data.tasks={json.dumps(tasks, ensure_ascii=False)}", "data.weights=[]", *overrides]
    profile = load_profile(name if is_profile else args.profile or PREVIEW_PROFILE, overrides).profile
    if worker_kind_of(profile).finds_tasks:
        raise LonghaulError(
            f"the profile {profile.name} trains by {profile.run.worker}: it has no problems with known answers",
            kept="everything; nothing was read",
            next_command=f"python -m orchestrator data preview FILE --profile {PREVIEW_PROFILE}",
            exit_code=ExitCode.USAGE,
        )
    if args.data:
        profile = replace(profile, validation=replace(profile.validation, data=str(Path(args.data).resolve())))
    return DataSpec("preview", profile, (), (name,), limit=args.rows, completion=args.completion)


def locate(name: str, runs: Path) -> Path:
    """The file or run that `name` means: an existing path, else a run of that name."""
    path = Path(name).expanduser()
    return path if path.exists() or not (runs / name / "state.db").is_file() else runs / name


def sources_meant(args: argparse.Namespace) -> list[tuple[str, Path]]:
    """The default sources: for merge all runs, oldest first; otherwise the data set, or else the newest run."""
    if args.action == "merge":
        found = [(one.run.name, one.run.root) for one in reversed(all_runs(args.runs))]
        if found:
            return found
    elif args.into.is_file():
        return [(str(args.into), args.into)]
    run_dir: RunDir = find_run(args)
    return [(run_dir.name, run_dir.root)]


def profile_of(args: argparse.Namespace) -> Profile:
    """The named profile, or else a default one that refuses the programs of every available suite."""
    if args.profile:
        profile = load_profile(args.profile, args.overrides).profile
    else:
        profile = Profile(name="data", model=Model(path="", prompt_style="azr"))
        profile = override_profile(profile, args.overrides) if args.overrides else profile
    if args.data:
        profile = replace(profile, validation=replace(profile.validation, data=str(Path(args.data).resolve())))
    return profile
