"""Begin a job on your own data: write a profile and a reward file, try them, and say how to start.

Asks at a terminal; every question has a default. Flags answer questions in advance, and --yes takes the defaults of the
others. Nothing is overwritten unless you say so, and Ctrl+C before the files are written leaves nothing.

  python -m orchestrator init
  python -m orchestrator init --model pocket-words --data train.jsonl --card cpu --yes
  python -m orchestrator init --model models/Qwen2.5-1.5B-Instruct --data rows.parquet --prompt-column question \\
      --answer-column solution --reward correct,own --card 12gb --dir job
  python -m orchestrator init --data poems.jsonl --reward own --yes

--run NAME names the profile and its runs (default: the folder's name).
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from orchestrator.display.wording import among, harmless
from orchestrator.new_job.asking import Asker, asker_here, settled
from orchestrator.new_job.data import BUILT_IN_PROBLEMS, likely_data, look_at
from orchestrator.new_job.hardware import AUTO, CARDS, CPU, Hardware, hardware_of
from orchestrator.new_job.mapping import NONE, ColumnMap, columns_text, mapping_of
from orchestrator.new_job.models import likely_model, model_of
from orchestrator.new_job.profile_text import profile_text
from orchestrator.new_job.reward_text import function_of, reward_text
from orchestrator.new_job.rewards import OWN, likely_reward, reward_of
from orchestrator.new_job.settings import REWARD_FILE, Job, rows_of, settings_of
from orchestrator.new_job.trial import INTERRUPTED, tried
from orchestrator.new_job.writing import entries_of, in_the_way, write_all
from orchestrator.streams import say
from profiles.errors import ExitCode, LonghaulError
from profiles.load import load_profile, shipped_profiles
from profiles.rewards import ON_COMPLETIONS
from state.layout import name_problem
from workers.line_contract import Looked

FALLBACK_NAME = "mine"
KEPT = "everything; nothing was written"
NEEDED = ("model", "data", "reward", "card")
"""Flags that must answer where nobody can, unless --yes takes the defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="DIR", help="a model directory, or pocket-words, which is built in")
    parser.add_argument(
        "--data", metavar="PATH", help="a .jsonl or .parquet file, a data set's folder, or pocket-words"
    )
    parser.add_argument(
        "--reward", metavar="NAMES", help="parts with commas: correct, own (the file it writes), FILE.py:FUNCTION, ..."
    )
    parser.add_argument("--card", metavar="SIZE", help=f"{', '.join(CARDS)}, {CPU}, or {AUTO} (ask the driver)")
    parser.add_argument("--prompt-column", metavar="NAME", help="column that is asked (guessed by name)")
    parser.add_argument("--answer-column", metavar="NAME", help=f"column of right answers, or {NONE} (guessed by name)")
    parser.add_argument("--dir", metavar="DIR", type=Path, help="folder to write into (this one, if it is empty)")
    parser.add_argument("--yes", action="store_true", help="ask nothing; take the defaults of what no flag says")
    parser.add_argument("--force", action="store_true", help="overwrite the files of an earlier init")
    parser.add_argument("--no-dry-run", action="store_true", help="write, plan and preview, but train no step")


def run(args: argparse.Namespace) -> int:
    asker = None if args.yes else asker_here()
    if asker is None and not args.yes:
        _refuse_missing(args)
    try:
        job, function = _decided(args, asker)
    except (EOFError, KeyboardInterrupt):
        sys.stderr.write(f"\nkept:  {KEPT}\n")
        return INTERRUPTED
    settings = settings_of(job, function)
    longest = load_profile(settings.base).profile.sampling.max_completion_tokens
    texts = {
        job.profile_file.name: profile_text(job, settings, function),
        job.reward_file.name: reward_text(job.mapping, longest),
    }
    write_all(job.folder, texts)
    say(f"\nwritten  {harmless(str(job.profile_file))}   extends {settings.base}\n")
    say(f"         {harmless(str(job.reward_file))}   function {function}\n")
    card = "" if job.hardware.is_cpu or args.card in (None, AUTO) else f"{job.hardware.gigabytes:g}"
    if code := tried(job, args.runs, card, with_dry_run=not args.no_dry_run):
        return code
    profile, rewards = _near(job.profile_file), _near(job.reward_file)
    say(f"\n-- ready\nchange   {profile} and {rewards} as you like\n")
    say(f"try      python -m orchestrator rewards test {shlex.quote(rewards)} --profile {shlex.quote(profile)}\n")
    say(among(args.runs, f"start    python -m orchestrator run --profile {shlex.quote(profile)}\n"))
    return int(ExitCode.OK)


def _decided(args: argparse.Namespace, asker: Asker | None) -> tuple[Job, str]:
    """All decisions, from flags, answers and defaults; and the name of the function in the reward file."""
    here = Path.cwd()
    model = settled(args.model, asker, "Model: a directory, or pocket-words", likely_model(here), model_of)
    looked = settled(args.data, asker, "Data: a file or folder", likely_data(here), look_at)
    data = looked.file
    say(_seen(looked))
    mapping = _mapped(args, asker, looked)
    rewards = (*ON_COMPLETIONS, OWN, "FILE.py:FUNCTION")
    reward = settled(
        args.reward, asker, "Reward", likely_reward(mapping), lambda wanted: reward_of(wanted, mapping), rewards
    )
    found = hardware_of(AUTO)
    hardware = settled(
        None if args.card == AUTO else args.card,
        asker if args.card is None else None,
        "Card",
        found.name,
        lambda wanted: found if wanted == found.name else hardware_of(wanted),
        (*CARDS, CPU),
    )
    for title, text in (("model", model.path), ("reward", reward.text), ("card", _card(hardware))):
        say(f"{title:<8} {harmless(text)}\n")
    folder = _folder(args, asker, here, {data, model.path})
    job = Job(_name(args, folder), folder, model, data, looked, mapping, reward, hardware)
    _refuse_overwriting(job, asker, is_forced=args.force)
    return job, function_of(mapping)


def _mapped(args: argparse.Namespace, asker: Asker | None, looked: Looked) -> ColumnMap:
    """The columns; a person sees the guesses as defaults."""
    guess = mapping_of(looked.columns, looked.file, args.prompt_column or "", args.answer_column or "")
    if looked.file == BUILT_IN_PROBLEMS:
        return guess

    def with_prompt(name: str) -> str:
        return mapping_of(looked.columns, looked.file, name, args.answer_column or "").prompt

    prompt = settled(args.prompt_column, asker, "Column that is asked", guess.prompt, with_prompt)
    answer = mapping_of(looked.columns, looked.file, prompt, args.answer_column or "").answer or NONE
    mapping = settled(
        args.answer_column,
        asker,
        f"Column of right answers, or {NONE}",
        answer,
        lambda name: mapping_of(looked.columns, looked.file, prompt, name),
    )
    say(f"asked    {harmless(mapping.prompt)};  right answers: {harmless(mapping.answer or NONE)}\n")
    return mapping


def _card(hardware: Hardware) -> str:
    why = hardware.machine.why
    return f"{hardware.name} ({why})" if hardware.is_cpu and why else hardware.name


def _seen(looked: Looked) -> str:
    """What is in the data: rows, columns, the first row."""
    if looked.file == BUILT_IN_PROBLEMS:
        return f"data     {looked.rows:,} built-in word problems\n"
    return f"data     {harmless(looked.file)}: {rows_of(looked)}; the first:\n{columns_text(looked.columns)}\n"


# --- folder and name --------------------------------------------------------------------------------------------------


def _folder(args: argparse.Namespace, asker: Asker | None, here: Path, known: set[str]) -> Path:
    """The given folder, or this one if nothing is in it but what belongs to the job.

    Raises LonghaulError (INPUT) for a folder that is not one, and for this one if it holds other things.
    """
    own = {args.runs.name, REWARD_FILE, f"{_name(args, here)}.toml"}
    is_part = {name: any(_is_above(here / name, Path(one)) for one in known) for name in entries_of(here)}
    there = [name for name in is_part if name not in own and not is_part[name]]
    given = None if args.dir is None else str(args.dir)
    if given is None and asker is None and there:
        names = ", ".join(harmless(name) for name in there[:5]) + (", ..." if len(there) > 5 else "")
        raise LonghaulError(
            f"the folder {harmless(str(here))} is not empty: {names}",
            kept=KEPT,
            next_command="the same command with --dir job, or with --dir . to write beside them",
            exit_code=ExitCode.INPUT,
        )
    return settled(given, asker, "Folder to write into", "job" if there else ".", _as_folder)


def _is_above(path: Path, other: Path) -> bool:
    return other.is_absolute() and (path == other or path in other.parents)


def _as_folder(wanted: str) -> Path:
    folder = Path(os.path.abspath(Path(wanted).expanduser()))  # noqa: PTH100 - a link stays what the user calls it
    if folder.exists() and not folder.is_dir():
        raise LonghaulError(
            f"{harmless(str(folder))} is a file, not a folder",
            kept=KEPT,
            next_command="the same command with --dir job",
            exit_code=ExitCode.INPUT,
        )
    return folder


def _name(args: argparse.Namespace, folder: Path) -> str:
    """Of the profile, and so of its runs."""
    if args.run is not None:
        return str(args.run)
    name = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "-" for one in folder.name).strip("-.")
    is_free = name and not name_problem(name) and name not in shipped_profiles()
    return name if is_free else FALLBACK_NAME


def _refuse_overwriting(job: Job, asker: Asker | None, *, is_forced: bool) -> None:
    """Raises LonghaulError (INPUT) if a file is in the way, unless the user agrees."""
    there = in_the_way(job.folder, (job.profile_file.name, job.reward_file.name))
    if not there or is_forced:
        return
    names = " and ".join(there)
    if asker is not None and asker.confirm(f"Overwrite {names} in {job.folder}?"):
        return
    raise LonghaulError(
        f"{names} {'is' if len(there) == 1 else 'are'} there already, in {harmless(str(job.folder))}",
        kept=KEPT,
        next_command="the same command with --force, with another --dir, or with --run NAME for another profile",
        exit_code=ExitCode.INPUT,
    )


def _refuse_missing(args: argparse.Namespace) -> None:
    """Raises LonghaulError (USAGE) if a question would have to be asked, and nobody is there."""
    missing = [name for name in NEEDED if getattr(args, name) is None]
    if not missing:
        return
    defaults = {
        "model": likely_model(Path.cwd()),
        "data": likely_data(Path.cwd()),
        "reward": "what suits the data",
        "card": AUTO,
    }
    lines = [f"  --{name:<7} {harmless(defaults[name])}" for name in missing]
    raise LonghaulError(
        "there is no terminal to ask at, and these flags are missing; --yes would take:\n" + "\n".join(lines),
        kept=KEPT,
        next_command="the same command with these flags, or with --yes",
        exit_code=ExitCode.USAGE,
    )


def _near(path: Path) -> str:
    """A path as one would type it here; `./` marks it as a file."""
    here = Path.cwd()
    return f"./{path.relative_to(here)}" if path.is_relative_to(here) else str(path)
