"""What a command and the worker that serves it say to each other: a spec in, then one JSON object a line. No torch.

The spec is the first line of the worker's standard input, which then stays open for as long as anybody waits. What the
worker says goes to its standard output; `Done` or `Error` is the last of it. Every message names its `type`.
`orchestrator/line_worker.py` is the command's side, `workers/lines.py` the worker's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from profiles.schema import Profile, Trackers

# --- what any worker may say -----------------------------------------------------------------------------------------


class Loading(Struct, frozen=True, tag="loading"):
    """The model is being read, which takes long."""


class Note(Struct, frozen=True, tag="note"):
    """What a person should know."""

    text: str


class Done(Struct, frozen=True, tag="done"):
    """All is done, and the process ends."""


class Error(Struct, frozen=True, tag="error"):
    """Why it ends, and with which code. kept, next_command: empty where nobody foresaw it; the command knows both."""

    what: str
    exit_code: int
    kept: str = ""
    next_command: str = ""


# --- evaluate --------------------------------------------------------------------------------------------------------


class SuiteBegun(Struct, frozen=True, tag="suite"):
    """n: questions. fingerprint: of the questions and how they are asked."""

    suite: str
    fingerprint: str
    n: int


class Answered(Struct, frozen=True, tag="answers"):
    """Answers that are durable. done: how many of the suite's questions by now."""

    suite: str
    done: int
    rows: list[tuple[str, str, int, int]]
    """Question, task, samples, how many of them are right."""


class Scores(Struct, frozen=True, tag="scores"):
    """All of a suite is answered. metrics: by task, and `mean`."""

    suite: str
    metrics: dict[str, dict[str, int | float]]


# --- data ------------------------------------------------------------------------------------------------------------


class Reading(Struct, frozen=True, tag="reading"):
    """text: which source."""

    text: str


class Checked(Struct, frozen=True, tag="checked"):
    """Programs that were run again, of how many."""

    done: int
    total: int


class Consolidated(Struct, frozen=True, tag="report"):
    """Of `import` and `merge`: the report, as docs/data.md says."""

    report: dict[str, Any]


class Unchanged(Struct, frozen=True, tag="unchanged"):
    """Of `merge`: the data set was made of the same already."""

    tasks: int


class Statistics(Struct, frozen=True, tag="stats"):
    """Of `stats`: counts, as docs/data.md says."""

    counts: dict[str, Any]


class Task(Struct, frozen=True, tag="task"):
    """Of `show`, one for each task: its record, as docs/data.md says."""

    record: dict[str, Any]


class Exported(Struct, frozen=True, tag="exported"):
    """Of `export`. files: path -> lines."""

    files: dict[str, int]
    tasks: int


# --- generate --------------------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag="ready"):
    """The model is loaded. positions: that it reads at most; 0: not known."""

    style: str
    positions: int


class Piece(Struct, frozen=True, tag="text"):
    """Of a completion, as it comes."""

    text: str


Reason = Literal["stop", "stop_text", "length", "stopped"]
"""How a completion ended: with the model's own last token, with a stop text, at its longest length, or as asked."""


class Completed(Struct, frozen=True, tag="end"):
    """A completion, whole. tokens, prompt_tokens: how many."""

    text: str
    reason: Reason
    tokens: int
    prompt_tokens: int
    seconds: float


class Refused(Struct, frozen=True, tag="refused"):
    """A prompt that cannot be asked, and why."""

    text: str


# --- export ----------------------------------------------------------------------------------------------------------


class Wrote(Struct, frozen=True, tag="wrote"):
    """A file is on disk."""

    name: str
    bytes: int


Said = (
    Loading
    | Note
    | Done
    | Error
    | SuiteBegun
    | Answered
    | Scores
    | Reading
    | Checked
    | Consolidated
    | Unchanged
    | Statistics
    | Task
    | Exported
    | Ready
    | Piece
    | Completed
    | Refused
    | Wrote
)
"""A line of a worker."""


# --- what a command says after the spec, to `generate` alone ---------------------------------------------------------


class Prompt(Struct, frozen=True, tag="prompt"):
    """Complete this. seed: of the draws."""

    text: str
    seed: int


class Stop(Struct, frozen=True, tag="stop"):
    """End the completion that is being made."""


class New(Struct, frozen=True, tag="new"):
    """Forget the conversation."""


Request = Prompt | Stop | New

_said: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


def read_line(line: bytes) -> Said | None:
    """What a worker says in `line`; None where that is not JSON, as of a worker that was killed while it wrote.

    Raises msgspec.ValidationError for JSON that is no message.
    """
    try:
        return _said.decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return None


# --- specs -----------------------------------------------------------------------------------------------------------


class EvaluationSpec(Struct, frozen=True):
    """All that `python -m workers.evaluate` is told. It says SuiteBegun, Loading, Answered, Scores and Note."""

    folder: str
    """Absolute; answers are written here, a file for each suite."""
    model: str
    """Directory of a checkpoint or of a Hugging Face model."""
    step: int | None
    """Step of a checkpoint; None: `model` is a model directory."""
    profile: Profile
    """How the model is read and what its programs may do; of a checkpoint, that of its run."""
    suites: tuple[str, ...]
    style: str
    """`run`: the profile's prompt style; `plain`, `plain-chat`, or `auto`: the latter where there is a template."""
    data: str
    examples: int
    """Problems of each suite and task, a fixed subset; 0: all."""
    samples: int
    temperature: float
    """0: greedy."""
    max_new_tokens: int
    ks: tuple[int, ...]
    """Of pass@k, each at most `samples`."""
    batch_size: int
    """Completions that are asked for side by side."""
    seed: int


class DataSpec(Struct, frozen=True):
    """All that `python -m workers.data` is told.

    It says Reading, Checked and Note; then, by action, Consolidated or Unchanged, Statistics, a Task each, or Exported.
    """

    action: Literal["import", "merge", "stats", "show", "export"]
    """`import` adds to the data set `into`, `merge` makes it of the sources alone."""
    profile: Profile
    """Whose [azr], [sandbox] and [validation] decide what is valid and what is held out."""
    sources: tuple[str, ...]
    """Absolute paths of files and of run directories."""
    names: tuple[str, ...]
    """The same as a person wrote them."""
    into: str = ""
    inputs: str = ""
    """Of `merge`: what the sources are. A set that was made of the same, as its header says, is left as it is."""
    form: Literal["longhaul", "triplet"] = "longhaul"
    """Of `export`: this project's, or that of the original Absolute Zero."""
    task: str = ""
    """Of `show` and `export`: abd, ded or ind; empty: all."""
    key: str = ""
    """Of `show`: how the key begins."""
    limit: int = 0
    """Of `show` and `export`: at most so many, the newest last; 0: all."""


class GenerateSpec(Struct, frozen=True):
    """What `python -m workers.generate` is told first; Prompt, Stop and New follow, and a closed input ends it.

    It says Ready once; then, for a Prompt, each Piece and Completed, or Refused.
    """

    directory: str
    """Absolute: a checkpoint or a model directory."""
    step: int | None
    """Step of a checkpoint; None: a model directory."""
    profile: Profile
    style: Literal["run", "chat", "raw", "auto"]
    """`run`: in the words that the run is trained in; `auto`: chat where there is a template, else raw."""
    temperature: float
    """0: the likeliest token."""
    top_p: float
    top_k: int
    """0: all tokens."""
    max_new_tokens: int


class ExportSpec(Struct, frozen=True):
    """All that `python -m workers.export` is told. It says Loading and Wrote."""

    kind: Literal["adapter", "merged", "gguf-ready"]
    directory: str
    """Absolute: a checkpoint."""
    step: int
    out: str
    """Absolute: an empty directory that is renamed into place once all is written."""
    profile: Profile
    dtype: Literal["float32", "float16", "bfloat16", "auto"]
    """Of merged weights; `auto`: as the profile has them in memory, and bfloat16 for `gguf-ready`."""
    source: dict[str, Any]
    """What export.json says of where the weights come from."""
    shard_bytes: int = 2 << 30


class TrackSpec(Struct, frozen=True):
    """What `python -m workers.track` is told first.

    A byte follows whenever something may have been committed; a closed input ends it. It says Note.
    """

    run_dir: str
    """Absolute; its store is read, and nothing else."""
    run_id: str
    name: str
    folder: str
    """Absolute: what it remembers, and files of libraries."""
    tensorboard: str
    """Absolute: event files."""
    trackers: Trackers
    config: dict[str, Any]
    """The profile, for those who list runs by their settings."""
