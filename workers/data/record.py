"""Records of tasks as JSON lines: this project's own form, and that of the original Absolute Zero. (pure)

A record is a claim; running its program (`checking`) tells whether it holds. A line that cannot be read becomes a
`BadLine` with a reason, never a crash: files come from other machines, other programs and editors.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from workers.sandbox.literal import Rejected
from workers.sandbox.normalise import example_key
from workers.tasks.entry import UNKNOWN_RATE
from workers.tasks.items import Task
from workers.tasks.kinds import registry
from workers.tasks.programs import composed, imports_of, is_composed, with_entry

Line = Annotated[int, Meta(ge=0)]


class BadLine(ValueError):
    """A line without a task. reason: one word for counting; the message is for the user."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Origin(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where a task comes from. Known fields are never overwritten; later imports fill in missing ones."""

    run: str = ""
    """Name of the run that found the task."""
    run_id: str = ""
    step: Line | None = None
    """Step of that run."""
    model: str = ""
    """Digest of the newest checkpoint before that step: the model that proposed the task, or an ancestor of it."""
    file: str = ""
    """The first file that it was imported from, as the user named it, and its line there."""
    line: Line = 0


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One task in this project's form, which rows of a checkpoint's `buffers.jsonl` share.

    inputs: argument lists as source text; one, or several if the task has many pairs. outputs: literals, one per input;
    empty: whatever the program returns. Keys in a file are recomputed, not trusted. Raises ValueError for an unknown
    kind of task; decoding reports it like any other wrong value.
    """

    task: Task
    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    message: str = ""
    step: Line = 0
    source: Literal["seed", "selfplay", "import"] = "import"
    solve_rate: float = UNKNOWN_RATE
    key: str = ""
    program_key: str = ""
    form: str = ""
    """The run's identity for it (`azr.novelty`); ignored when read."""
    origin: Origin = Origin()

    def __post_init__(self) -> None:
        if self.task not in registry.names():
            raise ValueError(f"{self.task!r} is not a kind of task; there are {', '.join(registry.names())}")


class _Original(Struct, frozen=True, kw_only=True):
    """A row of the original's files: a triplet, or a problem (several pairs and a message). Other keys are ignored."""

    snippet: str
    input: str | None = None
    output: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    message: str = ""
    imports: tuple[str, ...] | None = ()
    composite_functions: tuple[Any, ...] | None = ()


OTHER_KEYS = "neither a task of this project (task, program, inputs) nor of the original (snippet, input, output)"


def parse_line(content: bytes) -> list[Record]:
    """The tasks of one line: one, or for an original triplet one per kind with one pair. Raises BadLine."""
    try:
        found = msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8))  # some editors start a file with it
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine("not_json", str(error)) from error
    if not isinstance(found, dict) or not ({"program", "snippet"} & found.keys()):
        raise BadLine("wrong_keys", OTHER_KEYS)
    try:
        if "program" in found:
            return [_own(msgspec.convert(found, Record))]
        return _original(msgspec.convert(found, _Original))
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadLine("wrong_keys", str(error)) from error


def _own(record: Record) -> Record:
    _need_pairs(record.inputs, record.outputs)
    return replace(record, program=with_entry(record.program), key="", program_key="", form="")


def _need_pairs(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    if outputs and len(outputs) != len(inputs):
        raise BadLine("wrong_keys", f"{len(outputs)} outputs for {len(inputs)} inputs")


def _original(row: _Original) -> list[Record]:
    program = _whole_program(row)
    if row.input is None:
        if len(row.inputs) < 2:
            raise BadLine("wrong_keys", OTHER_KEYS)
        _need_pairs(row.inputs, row.outputs)
        return [
            Record(task=task, program=program, inputs=row.inputs, outputs=row.outputs, message=row.message)
            for task in _of_original(many_pairs=True)
        ]
    outputs = () if row.output is None else (row.output,)
    # The original keeps one file for both kinds: its two buffers start as copies of one seed set.
    return [
        Record(task=task, program=program, inputs=(row.input,), outputs=outputs)
        for task in _of_original(many_pairs=False)
    ]


def _of_original(*, many_pairs: bool) -> list[Task]:
    return [kind.name for kind in registry.known() if kind.is_original and kind.many_pairs == many_pairs]


def _whole_program(row: _Original) -> str:
    """One self-contained program: its imports, and the earlier programs that it calls as g_0, g_1 ..."""
    parts = [_part_text(part) for part in row.composite_functions or ()]
    program = with_entry(row.snippet)
    known = set(imports_of(program))
    missing = [line for line in dict.fromkeys(row.imports or ()) if line.strip() and line.strip() not in known]
    program = "\n".join([*missing, program])
    texts = [part for part in parts if part]
    return composed(program, texts) if texts and not is_composed(program) else program


def _part_text(part: Any) -> str:
    """The program of a part, with the imports that the original stores beside it; empty if it is not a program."""
    if isinstance(part, Mapping):
        imports, snippet = part.get("imports"), part.get("snippet")
        lines = [line for line in imports if isinstance(line, str)] if isinstance(imports, list | tuple) else []
        return "\n".join([*lines, snippet]) if isinstance(snippet, str) else ""
    return part if isinstance(part, str) else ""


def key_of(record: Record) -> str:
    """The key that equal tasks share; empty if the text is not a program, or the inputs are not literals."""
    try:
        return record.key or example_key(record.program, list(record.inputs))
    except (Rejected, SyntaxError, ValueError):
        return ""


def encode(record: Record) -> bytes:
    """One line, without its newline."""
    return msgspec.json.encode(record)


# --- the original's form -------------------------------------------------------------------------------------------


def to_original(records: Sequence[Record]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(triplets, problems) for the original; tasks with equal pairs become one triplet.

    Skips kinds that the original lacks.
    """
    triplets: dict[tuple[str, str], dict[str, Any]] = {}
    problems = []
    for record in records:
        kind = registry.kind_of(record.task)
        if not kind.is_original:
            continue
        row: dict[str, Any] = {"snippet": record.program, "imports": imports_of(record.program)}
        if kind.many_pairs:
            problems.append(
                row | {"inputs": list(record.inputs), "outputs": list(record.outputs), "message": record.message}
            )
        else:
            row |= {"input": record.inputs[0], "output": record.outputs[0]}
            row |= {"original_snippet": record.program, "composite_functions": []}
            triplets.setdefault((record.program, record.inputs[0]), row)
    return list(triplets.values()), problems
