"""The protocol between a command and its worker: a spec in, one JSON object a line out. Does not import torch.

The spec is the first line of the worker's standard input, which stays open as long as the command waits. The worker
writes messages to its standard output and ends with `Done` or `Error`. Every message has a `type`.
`orchestrator/line_worker.py` implements the command's side, `workers/lines.py` the worker's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from profiles.notify import Notify
from profiles.schema import Columns, Profile, Trackers

# --- messages that any worker may send -------------------------------------------------------------------------------


class Loading(Struct, frozen=True, tag="loading"):
    """The model is loading, which takes a while."""


class Note(Struct, frozen=True, tag="note"):
    """A message for the user."""

    text: str


class Done(Struct, frozen=True, tag="done"):
    """The work is done; the process exits."""


class Error(Struct, frozen=True, tag="error"):
    """The worker failed: the reason and the exit code. kept, next_command: empty for an unexpected error; the command
    then fills in both."""

    what: str
    exit_code: int
    kept: str = ""
    next_command: str = ""


# --- evaluate --------------------------------------------------------------------------------------------------------


class SuiteBegun(Struct, frozen=True, tag="suite"):
    """n: number of questions. fingerprint: covers the questions and how they are asked."""

    suite: str
    fingerprint: str
    n: int


class Answered(Struct, frozen=True, tag="answers"):
    """Answers that are now durable. done: number of the suite's questions answered so far."""

    suite: str
    done: int
    rows: list[tuple[str, str, int, int]]
    """(question, task, number of samples, number of correct samples)."""


class Left(Struct, frozen=True, tag="left"):
    """The questions that each shard has left to ask, the first shard's first. Sent once, if the spec has shards."""

    counts: list[int]


class Scores(Struct, frozen=True, tag="scores"):
    """A suite is complete. metrics: keyed by task, plus `mean`."""

    suite: str
    metrics: dict[str, dict[str, int | float]]


# --- data ------------------------------------------------------------------------------------------------------------


class Reading(Struct, frozen=True, tag="reading"):
    """text: the source being read."""

    text: str


class Checked(Struct, frozen=True, tag="checked"):
    """Progress of rerunning programs: `done` of `total`."""

    done: int
    total: int


class Consolidated(Struct, frozen=True, tag="report"):
    """Reply of `import` and `merge`: the report; see docs/data.md."""

    report: dict[str, Any]


class Unchanged(Struct, frozen=True, tag="unchanged"):
    """Reply of `merge` if the data set was already built from the same sources."""

    tasks: int


class Statistics(Struct, frozen=True, tag="stats"):
    """Reply of `stats`: counts; see docs/data.md."""

    counts: dict[str, Any]


class Task(Struct, frozen=True, tag="task"):
    """Reply of `show`, one message per task: its record; see docs/data.md."""

    record: dict[str, Any]


class Previewed(Struct, frozen=True, tag="preview"):
    """Reply of `preview`: the first problems as the model will see them; see docs/data.md."""

    facts: dict[str, Any]


class Exported(Struct, frozen=True, tag="exported"):
    """Reply of `export`. files: path -> number of lines."""

    files: dict[str, int]
    tasks: int


# --- rewards ---------------------------------------------------------------------------------------------------------


class RewardsTested(Struct, frozen=True, tag="rewards"):
    """Reply of `rewards test`: what each function gave; see `workers/reward_test/findings.py`."""

    report: dict[str, Any]


# --- generate --------------------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag="ready"):
    """The model is loaded. positions: its context window in tokens; 0: unknown."""

    style: str
    positions: int


class Piece(Struct, frozen=True, tag="text"):
    """A streamed piece of a completion."""

    text: str


Reason = Literal["stop", "stop_text", "length", "stopped"]
"""Why a completion ended, in this order: end-of-sequence token, stop text, maximum length, stopped on request."""


class Completed(Struct, frozen=True, tag="end"):
    """A finished completion. tokens, prompt_tokens: counts."""

    text: str
    reason: Reason
    tokens: int
    prompt_tokens: int
    seconds: float


class Refused(Struct, frozen=True, tag="refused"):
    """A prompt that cannot be completed, and the reason."""

    text: str


# --- export ----------------------------------------------------------------------------------------------------------


class Wrote(Struct, frozen=True, tag="wrote"):
    """A file is on disk."""

    name: str
    bytes: int


# --- notify ----------------------------------------------------------------------------------------------------------


class Delivered(Struct, frozen=True, tag="delivered"):
    """A test message was tried. target: its name, which gives no secret away. error: why it failed; empty: it was
    taken."""

    target: str
    error: str
    seconds: float


# --- rollouts --------------------------------------------------------------------------------------------------------


class RolloutGroup(Struct, frozen=True):
    """Rollouts of one prompt. key: names it within the file. low, high: of the rewards."""

    key: str
    role: str
    """propose or solve; empty outside self-play."""
    task: str
    size: int
    right: int
    mean: float | None
    low: float | None
    high: float | None


class RolloutText(Struct, frozen=True):
    """One rollout in words. reward: None if it was not judged."""

    pieces: list[tuple[bool, str]]
    """(whether the model wrote it, text); an environment wrote the others."""
    answer: str | None
    """What was judged; None if nothing could be found. A proposal: the program."""
    tokens: int
    reward: float | None
    parts: dict[str, float]
    is_correct: bool
    is_answered: bool
    """Whether an answer was found; of a proposal: whether its form is right."""
    is_cut: bool
    """Whether the limit of tokens ended it."""
    failure: str
    """Why it was not judged."""


class RolloutTexts(Struct, frozen=True, tag="rollouts"):
    """Reply of `workers.rollouts`: the groups of a file, and the rollouts of one of them."""

    step: int
    groups: list[RolloutGroup]
    chosen: str
    """Key of the group whose rollouts follow; empty: there is none."""
    prompt: str
    rollouts: list[RolloutText]
    left_out: int
    """Rollouts of the group beyond the limit."""


# --- init ------------------------------------------------------------------------------------------------------------


ColumnKind = Literal["text", "number", "messages", "list", "other", "empty"]


class Column(Struct, frozen=True):
    """A column of the first rows. filled: share of them that have a value. mean_length, longest: in characters.

    longest_answer: likewise, of what would be compared if the column held right answers.
    """

    name: str
    kind: ColumnKind
    filled: float
    mean_length: int
    longest: int
    longest_answer: int
    example: str
    """The beginning of its first value, of the first row if that has one."""


class Looked(Struct, frozen=True, tag="looked"):
    """file: that was read; the folder, if it has several. rows: all of them."""

    file: str
    rows: int
    columns: list[Column]


# --- fetch -----------------------------------------------------------------------------------------------------------


class Fetching(Struct, frozen=True, tag="fetching"):
    """Bytes that are here, of those that were missing."""

    done: int
    total: int


class Fetched(Struct, frozen=True, tag="fetched"):
    """All files are in `directory`. revision: the commit."""

    directory: str
    revision: str


Said = (
    Loading
    | Note
    | Done
    | Error
    | SuiteBegun
    | Answered
    | Left
    | Scores
    | Reading
    | Checked
    | Consolidated
    | Unchanged
    | Statistics
    | Task
    | Previewed
    | Exported
    | RewardsTested
    | Ready
    | Piece
    | Completed
    | Refused
    | Wrote
    | Delivered
    | Looked
    | RolloutTexts
    | Fetching
    | Fetched
)
"""Any message from a worker."""


# --- messages from a command after the spec, for `generate` only -----------------------------------------------------


class Prompt(Struct, frozen=True, tag="prompt"):
    """Complete `text`. seed: random seed for sampling."""

    text: str
    seed: int


class Stop(Struct, frozen=True, tag="stop"):
    """Stop the current completion."""


class New(Struct, frozen=True, tag="new"):
    """Start a new conversation."""


Request = Prompt | Stop | New

_said: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


def read_line(line: bytes) -> Said | None:
    """Decode a worker's line; None if it is not JSON, for example because the worker was killed while writing it.

    Raises msgspec.ValidationError for JSON that is not a message.
    """
    try:
        return _said.decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return None


# --- specs -----------------------------------------------------------------------------------------------------------


class EvaluationSpec(Struct, frozen=True):
    """Input of `python -m workers.evaluate`, which replies with SuiteBegun, Loading, Answered, Left, Scores and Note.

    A job of a scheduler finds it as the spec of its array, and asks its share of the questions.
    """

    folder: str
    """Absolute; answers are written here, one file per suite."""
    model: str
    """Directory of a checkpoint or of a Hugging Face model."""
    step: int | None
    """Step of a checkpoint; None: `model` is a model directory."""
    profile: Profile
    """Decides how the model is loaded and what its programs may do. For a checkpoint: the profile of its run."""
    suites: tuple[str, ...]
    style: str
    """`run`: the profile's prompt style; `plain`; `plain-chat`; or `auto`: `plain-chat` if the model has a chat
    template."""
    data: str
    examples: int
    """Problems of each suite and task, a fixed subset; 0: all."""
    samples: int
    temperature: float
    """0: greedy."""
    max_new_tokens: int
    ks: tuple[int, ...]
    """The k of each pass@k, at most `samples`."""
    batch_size: int
    """Completions generated in parallel."""
    seed: int
    shards: int = 0
    """Jobs that share the questions; the command's own worker then only collects their answers. 0: it asks them all."""
    fingerprints: dict[str, str] = {}
    """Suite -> fingerprint of the questions that a job must find on its node."""


class DataSpec(Struct, frozen=True):
    """Input of `python -m workers.data`.

    The worker reports Reading, Checked and Note. It ends with Consolidated or Unchanged, Statistics, one Task per task,
    Previewed or Exported, depending on `action`.
    """

    action: Literal["import", "merge", "stats", "show", "export", "preview"]
    """`import` adds the sources to the data set `into`; `merge` builds it from the sources only."""
    profile: Profile
    """Its [azr], [sandbox] and [validation] decide which tasks are valid and which are held out."""
    sources: tuple[str, ...]
    """Absolute paths of files and of run directories."""
    names: tuple[str, ...]
    """The sources as the user typed them."""
    into: str = ""
    inputs: str = ""
    """For `merge`: identifies the sources. A data set whose header has the same value is left unchanged."""
    form: Literal["longhaul", "triplet"] = "longhaul"
    """For `export`: this project's format, or that of the original Absolute Zero."""
    task: str = ""
    """For `show` and `export`: abd, ded or ind; empty: all."""
    key: str = ""
    """For `show`: a prefix of the key."""
    limit: int = 0
    """For `show` and `export`: maximum number of tasks, the newest last; 0: all. For `preview`: rows to show."""
    completion: str | None = None
    """For `preview`: judged as an answer to each row that is shown."""


class RewardsSpec(Struct, frozen=True):
    """Input of `python -m workers.reward_test`, which replies with Checked and RewardsTested."""

    functions: tuple[str, ...]
    """Files and modules, or functions of them, as the user typed them."""
    cwd: str
    """Absolute: relative files of `functions` are meant from here."""
    data: str
    """A data set as `data.tasks` names it, its path absolute; empty: built-in word problems."""
    completions: str
    """Absolute: file of completions; empty: three obvious ones for each row."""
    rows: int
    """Maximum number of rows; 0: all."""
    columns: Columns
    """Which of the data's columns are what."""
    folder: str
    """Absolute: failed calls and the log go here."""
    timeout_s: float
    memory_gib: float
    threads: int


class LookSpec(Struct, frozen=True):
    """Input of `python -m workers.problems.look`, which replies with Looked."""

    path: str
    """Absolute: a file or a folder of data."""


class RolloutsSpec(Struct, frozen=True):
    """Input of `python -m workers.rollouts`, which replies with RolloutTexts."""

    file: str
    """Absolute: rollouts of one step."""
    tokenizers: tuple[str, ...]
    """Absolute: directories that may hold the run's tokenizer.json; the first that does is taken."""
    style: str
    """`model.prompt_style`: says where an answer stands."""
    group: str = ""
    """Key of the group wanted; empty: the one whose rewards differ most."""


class GenerateSpec(Struct, frozen=True):
    """First input of `python -m workers.generate`. Prompt, Stop and New follow; closing the input ends the worker.

    The worker sends Ready once. It answers each Prompt with Pieces and Completed, or with Refused.
    """

    directory: str
    """Absolute: a checkpoint or a model directory."""
    step: int | None
    """Step of a checkpoint; None: a model directory."""
    profile: Profile
    style: Literal["run", "chat", "raw", "auto"]
    """`run`: the format that the run trains with; `auto`: `chat` if the model has a chat template, else `raw`."""
    temperature: float
    """0: greedy."""
    top_p: float
    top_k: int
    """0: all tokens."""
    max_new_tokens: int


class ExportSpec(Struct, frozen=True):
    """Input of `python -m workers.export`, which replies with Loading and Wrote."""

    kind: Literal["adapter", "merged", "gguf-ready"]
    directory: str
    """Absolute: a checkpoint."""
    step: int
    out: str
    """Absolute: an empty directory, renamed into place once everything is written."""
    profile: Profile
    dtype: Literal["float32", "float16", "bfloat16", "auto"]
    """dtype of merged weights; `auto`: the profile's dtype in memory, and bfloat16 for `gguf-ready`."""
    source: dict[str, Any]
    """Origin of the weights, as written to export.json."""
    shard_bytes: int = 2 << 30


class FetchSpec(Struct, frozen=True):
    """Input of `python -m workers.fetch`, which replies with Fetching, Note and Fetched.

    revision: branch, tag or commit; empty for the newest. is_commit: it is one, so that the hub need not be asked.
    """

    repository: str
    revision: str
    is_commit: bool


class TrackSpec(Struct, frozen=True):
    """First input of `python -m workers.track`, which replies with Note.

    The command writes a byte whenever something may have been committed; closing the input ends the worker.
    """

    run_dir: str
    """Absolute; the worker reads only the store in it."""
    run_id: str
    name: str
    folder: str
    """Absolute: the worker's own state, and files of tracker libraries."""
    tensorboard: str
    """Absolute: directory of event files."""
    trackers: Trackers
    config: dict[str, Any]
    """The profile, for trackers that list runs by their settings."""


class NotifySpec(Struct, frozen=True):
    """First input of `python -m workers.notify`, which replies with Note, or with Delivered for a test.

    The command writes a byte before the run ends; closing the input without it means that the master has crashed.
    """

    store: str
    """Absolute: the run's store, which the worker reads; empty for a test."""
    folder: str
    """Absolute: the worker's own state."""
    name: str
    run_id: str
    notify: Notify
    was_state: str = ""
    was_changed_at: float = 0.0
    """State of the run, and when it was set, before this start: no news."""
    is_test: bool = False
