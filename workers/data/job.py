"""The data worker's actions: consolidate, count, show, export. None of them needs a tensor library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state import durable
from workers.data import data_set
from workers.data.checking import Checker
from workers.data.consolidate import consolidate
from workers.data.record import Record, encode, key_of, to_original
from workers.data.sources import Item, Source, check_source, read_source
from workers.data.statistics import statistics_of
from workers.line_contract import (
    Checked,
    Consolidated,
    DataSpec,
    Exported,
    Note,
    Previewed,
    Reading,
    Statistics,
    Task,
    Unchanged,
)
from workers.lines import Say
from workers.sandbox import Sandbox
from workers.sandbox.limits import limits_of
from workers.suites.data_files import VARIABLE
from workers.suites.held_out import held_out_of, missing_files
from workers.tasks.prompts.pocket import PocketStyle
from workers.tasks.validate_proposals import Rules


def carry_out(spec: DataSpec, say: Say) -> None:
    """Carry out the spec. Raises LonghaulError."""
    if spec.action == "preview":
        from workers.data.preview import preview  # the only action that needs a tokenizer

        say(Previewed(preview(spec.profile, spec.limit, spec.completion)))
        return
    sources = [Source(Path(path), name) for path, name in zip(spec.sources, spec.names, strict=True)]
    for source in sources:
        check_source(source)
    if spec.action in ("import", "merge"):
        _consolidate(spec, sources, say)
        return
    items = [item for source in sources for item in read_source(source, lambda text: say(Note(text)))]
    if spec.action == "stats":
        say(Statistics(statistics_of(items)))
    elif spec.action == "show":
        for record in _chosen(spec, items):
            say(Task(msgspec.to_builtins(replace(record, key=key_of(record)))))
    else:
        _export(spec, sources, items, say)


def _consolidate(spec: DataSpec, sources: Sequence[Source], say: Say) -> None:
    into = Path(spec.into)
    if spec.inputs and (known := data_set.read_data_set(into)).header.inputs == spec.inputs:
        say(Unchanged(known.header.tasks))
        return
    for text in missing_suites(spec.profile):
        say(Note(text))
    knobs = spec.profile.sandbox
    with Sandbox(limits_of(knobs), knobs.jobs) as sandbox:
        checker = Checker(sandbox, rules_of(spec.profile), progress=lambda done, total: say(Checked(done, total)))
        _, report = consolidate(
            into,
            sources,
            checker,
            rebuild=spec.action == "merge",
            inputs=spec.inputs,
            told=lambda text: say(Reading(text)),
        )
    found = report.as_json()
    durable.write_file(report_path(into), msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    say(Consolidated({**found, "report": str(report_path(into))}))


def report_path(into: Path) -> Path:
    """Path of the newest command's report, beside the data set."""
    return into.with_name(f"{into.stem}.report.json")


def rules_of(profile: Profile) -> Rules:
    """The rules for proposals, without those of a prompt style and without the number of pairs that a prompt shows."""
    azr = profile.azr
    num_shown = PocketStyle.form.num_shown if profile.model.prompt_style == PocketStyle.name else None
    return Rules(
        max_output_chars=azr.max_output_chars,
        allow_none_output=azr.variants.allow_none_output,
        single_def_only=azr.variants.single_def_only,
        num_shown=num_shown,
        is_held_out=held_out_of(profile),
    )


def missing_suites(profile: Profile) -> list[str]:
    """Which held-out programs cannot be refused because their files are missing."""
    return [
        f"{file.name} is missing, so its programs cannot be recognised (set {VARIABLE})"
        for file in missing_files(profile)
    ]


def _chosen(spec: DataSpec, items: Sequence[Item]) -> list[Record]:
    """The tasks for `show` and `export`: the newest `limit` of the requested kind and key."""
    found = [
        item.record
        for item in items
        if item.record is not None
        and spec.task in ("", item.record.task)
        and (not spec.key or key_of(item.record).startswith(spec.key))
    ]
    return found[-spec.limit :] if spec.limit else found


def _export(spec: DataSpec, sources: Sequence[Source], items: Sequence[Item], say: Say) -> None:
    """Write files for other programs. Only verified tasks: those of data sets and of runs."""
    for source in sources:
        if source.kind == "tasks":
            data_set.read_data_set(source.path)
    records, into = _chosen(spec, items), Path(spec.into)
    if into.resolve() in [source.path.resolve() for source in sources]:
        raise LonghaulError(
            f"{into} is the source of the export",
            kept="everything",
            next_command="the same command with another file for --out",
            exit_code=ExitCode.USAGE,
        )
    files = {into: [encode(record) for record in records]}
    if spec.form == "triplet":
        triplets, problems = to_original(records)
        files = {into: [msgspec.json.encode(row) for row in triplets]}
        if problems:  # in a file of their own, as in the original
            files[into.with_stem(f"{into.stem}_problems")] = [msgspec.json.encode(row) for row in problems]
    for path, lines in files.items():
        data_set.check_target(path)
        durable.write_file(path, b"".join(line + b"\n" for line in lines))
    say(Exported({str(path): len(lines) for path, lines in files.items()}, len(records)))
