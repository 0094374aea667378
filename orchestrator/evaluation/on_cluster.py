"""An evaluation on a cluster: shards as tasks of an array, those that failed once more, and their answers collected.

Answers are files, and only the worker of this command joins them. So the command may be killed at any moment: the next
one finds the array by its handle, and what the array answered meanwhile counts.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from orchestrator.evaluation.progress import Progress
from orchestrator.evaluation.shards import Signs, end_of, fruitless, hopeless, unfinished
from orchestrator.launchers.batch import SOON_S, Unanswered, unanswered
from orchestrator.launchers.job_end import Cause, End, Seen, has_ended, waits_for
from orchestrator.launchers.launcher import Handle
from orchestrator.launchers.slurm_array import SlurmArray, Watch
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Retry
from state import durable
from state.evaluation_array import ShardDir, arrays_in, next_array
from state.line_file import LineReader
from workers.line_contract import Answered, Done, Error, EvaluationSpec, Left, Note, Said, SuiteBegun, read_line

LAUNCHER = "slurm"
"""The launcher whose arrays this uses. With any other, an evaluation is one process of this host."""
LOOK_EVERY_S = 0.25
END_S = 15.0
"""How long to wait for a cancelled array. Its tasks are killed at once, and what they wrote is on disk."""
KEPT = "every answer so far; the same command resumes from there"


@dataclass
class Shard:
    """One shard of the array that is followed. suites: those whose questions are the command's own."""

    directory: ShardDir
    replies: LineReader
    suites: set[str] = field(default_factory=set)
    signs: Signs = field(default_factory=Signs)
    end: End | None = None


class OnCluster:
    """One evaluation. spec: with the number of shards. owner: see `Handle`. at_once: tasks side by side; 0: all.

    ask: runs this host's worker for a spec, and yields its messages. hear: called with each message about answers.
    """

    def __init__(
        self,
        spec: EvaluationSpec,
        owner: str,
        at_once: int,
        ask: Callable[[EvaluationSpec], Generator[Said]],
        hear: Callable[[Said], None],
        progress: Progress,
    ) -> None:
        self._spec, self._owner, self._at_once = spec, owner, at_once
        self._ask, self._hear, self._progress = ask, hear, progress
        self._folder = Path(spec.folder)
        self._fingerprints: dict[str, str] = {}
        self._known: set[tuple[str, str]] = set()
        """(suite, question) of the answers that the command has heard of."""

    def answer(self) -> None:
        """Return when every question is answered and scored.

        Raises LonghaulError: CLUSTER if the scheduler refuses, does not answer, or somebody cancelled a shard; or
        the failure of a shard that came again and again.
        """
        left = self._collect()
        if self._progress.answered:
            self._progress.say(f"{self._progress.answered} of {self._progress.total} were already answered")
        tries: dict[int, int] = {}
        array = self._earlier() if unfinished(left) else None
        while unfinished(left):
            if array is None:
                array = self._submitted(left)
            shards = self._followed(array)
            before, left = left, self._collect()
            had = {number: before[number] for number in shards if before[number]}
            tries = fruitless(tries, had, left)
            self._give_up_or_wait(array, shards, tries)
            array = None

    # --- arrays ------------------------------------------------------------------------------------------------------

    @property
    def _asked(self) -> bytes:
        """The spec of an array of this command."""
        return msgspec.json.encode(replace(self._spec, fingerprints=self._fingerprints))

    def _submitted(self, left: list[int]) -> SlurmArray:
        """A new array for the shards that have questions left."""
        directory = next_array(self._folder)
        shards = unfinished(left)
        for number in shards:
            durable.make_dir(directory.shard(number).path)
        durable.write_file(directory.spec, self._asked)
        token = f"lh-{self._owner}-{directory.number}-{secrets.token_hex(3)}"
        array = SlurmArray(self._spec.profile, directory, Handle(LAUNCHER, self._owner, token), self._at_once)
        self._submit(array)
        return array

    def _submit(self, array: SlurmArray) -> None:
        try:
            array.submit()
        except LonghaulError as error:
            raise LonghaulError(
                error.what,
                kept=f"{KEPT}; no job was submitted",
                next_command="sinfo; then the same command with what is wrong in [launch] corrected by --set",
                exit_code=error.exit_code,
            ) from error
        numbers = [str(shard.number) for shard in array.directory.shards()]
        self._progress.say(
            f"submitted array {array.handle.job}: shard{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        )

    def _earlier(self) -> SlurmArray | None:
        """The array of a command that was killed, if it is alive, or if the command died before it could submit it.

        One that was asked other questions, or by another engine, is none.
        Raises LonghaulError (CLUSTER) if the scheduler does not answer: nothing may be asked twice.
        """
        asked = _questions(self._asked)
        arrays = [one for one in arrays_in(self._folder) if one.handle.exists()]
        directory = next((one for one in reversed(arrays) if _questions(one.spec.read_bytes()) == asked), None)
        if directory is None:
            return None
        handle = msgspec.json.decode(directory.handle.read_bytes(), type=Handle)
        array = SlurmArray(self._spec.profile, directory, handle, self._at_once)
        shards = self._shards_of(array)
        for shard in shards.values():
            self._read(shard, is_heard=False)
        if all(shard.signs.said is not None or shard.signs.exit_code is not None for shard in shards.values()):
            return None  # all have ended: their files say so
        if not array.find():
            if any(shard.signs.is_claimed for shard in shards.values()):
                return None  # it has run, and the scheduler has forgotten it
            self._submit(array)
            return array
        try:
            if all(has_ended(seen) for seen in array.look(tuple(shards)).values()):
                return None
        except Unanswered as error:
            raise unanswered(array.slurm, str(error)) from error
        self._progress.say(f"going on with array {array.handle.job} of an earlier command")
        return array

    # --- following one -----------------------------------------------------------------------------------------------

    def _followed(self, array: SlurmArray) -> dict[int, Shard]:
        """Every shard of the array, once all have ended."""
        shards = self._shards_of(array)
        try:
            self._follow(array, shards)
        except KeyboardInterrupt:
            self._progress.say(f"cancelling array {array.handle.job}")
            array.cancel()
            self._await_end(array, shards)
            self._collect()
            raise
        return shards

    def _follow(self, array: SlurmArray, shards: Mapping[int, Shard]) -> None:
        watch, ask_at, told = Watch(array), 0.0, ""
        while open_shards := {number: shard for number, shard in shards.items() if shard.end is None}:
            seen = watch.answer()  # before the files: what a task wrote before it ended is then read
            for number, shard in open_shards.items():
                self._read(shard, seen.get(number), is_silent=bool(watch.why_silent))
                shard.end = end_of(shard.signs)
                if shard.end is not None and shard.end.exit_code:
                    self._progress.say(f"shard {number} failed: {_how(shard.end)}")
            if (text := _queue_in_words(shards, watch)) != told:
                told = text
                self._progress.say(f"array {array.handle.job}: {text}")
            now = time.monotonic()
            if watch.is_idle and now >= ask_at:
                watch.ask(tuple(open_shards))
                is_ending = any(shard.signs.exit_code is not None for shard in open_shards.values())
                ask_at = now + (SOON_S if is_ending else self._spec.profile.launch.poll_s)
            time.sleep(LOOK_EVERY_S)

    def _await_end(self, array: SlurmArray, shards: Mapping[int, Shard]) -> None:
        until = time.monotonic() + END_S
        while time.monotonic() < until:
            with suppress(Unanswered):
                if all(has_ended(seen) for seen in array.look(tuple(shards)).values()):
                    return
            time.sleep(LOOK_EVERY_S)

    def _shards_of(self, array: SlurmArray) -> dict[int, Shard]:
        return {one.number: Shard(one, LineReader(one.replies)) for one in array.directory.shards()}

    def _read(self, shard: Shard, seen: Seen | None = None, *, is_silent: bool = False, is_heard: bool = True) -> None:
        """Take in what the shard's files say now. seen: what the scheduler says; None: it was not asked since."""
        directory = shard.directory
        exit_code = None
        with suppress(OSError, ValueError):
            exit_code = int(directory.job_end.read_text())
        said = shard.signs.said
        for line in shard.replies.read():
            message = read_line(line)
            if isinstance(message, Done | Error):
                said = message
            elif message is not None and is_heard:
                self._take(shard, message)
        is_claimed = any(directory.path.glob("claim.*"))
        seen = seen if seen is not None else shard.signs.seen
        shard.signs = Signs(said, is_claimed, exit_code, seen, is_silent)

    def _take(self, shard: Shard, message: Said) -> None:
        """Pass on the answers that are new, if they are to the questions of this command."""
        match message:
            case SuiteBegun(suite=suite):
                if message.fingerprint == self._fingerprints.get(suite):
                    shard.suites.add(suite)
            case Answered(suite=suite) if suite in shard.suites:
                rows = [row for row in message.rows if (suite, row[0]) not in self._known]
                self._known |= {(suite, row[0]) for row in rows}
                if rows:
                    self._hear(Answered(suite, message.done, rows))
            case Note(text=text):
                self._hear(Note(f"shard {shard.directory.number}: {text}"))

    # --- answers -----------------------------------------------------------------------------------------------------

    def _collect(self) -> list[int]:
        """Join the answers of all shards with the evaluation's own. Returns what each shard has left."""
        left: list[int] = []
        self._known.clear()
        with closing(self._ask(self._spec)) as messages:
            for message in messages:
                match message:
                    case Left(counts=counts):
                        left = counts
                    case SuiteBegun(suite=suite, fingerprint=fingerprint):
                        self._fingerprints[suite] = fingerprint
                    case Answered(suite=suite, rows=rows):
                        self._known |= {(suite, row[0]) for row in rows}
                self._hear(message)
        return left

    def _give_up_or_wait(self, array: SlurmArray, shards: Mapping[int, Shard], tries: Mapping[int, int]) -> None:
        """Raises LonghaulError if a shard is not worth another try."""
        retry = self._spec.profile.retry
        ends = {number: shard.end for number, shard in shards.items() if shard.end is not None}
        if (number := hopeless(ends, tries, retry.max_without_progress)) is not None:
            raise _failure(array, shards[number], ends[number], tries[number])
        if wait_s := wait_before_repeat(tries, retry):
            self._progress.say(f"asking the rest again in {wait_s:.0f} s")
            time.sleep(wait_s)


def wait_before_repeat(tries: Mapping[int, int], retry: Retry) -> float:
    """Seconds; doubles with each end in a row without another answer. (pure)"""
    most = max(tries.values(), default=0)
    return float(min(retry.backoff_s * 2.0 ** (most - 1), retry.backoff_max_s)) if most else 0.0


def _questions(spec: bytes) -> dict[str, Any]:
    """What an array answers, and how: its spec without how its jobs are launched and repeated. (pure)

    Read without a type, because another version of this program may have written it.
    """
    found: dict[str, Any] = msgspec.json.decode(spec)
    profile = {name: section for name, section in found["profile"].items() if name not in ("launch", "retry")}
    return found | {"profile": profile}


def _queue_in_words(shards: Mapping[int, Shard], watch: Watch) -> str:
    """How many shards run and wait, as the scheduler says. (pure)"""
    if watch.why_silent:
        return f"Slurm does not answer; the shards go on ({watch.why_silent})"
    if all(shard.signs.seen is None for shard in shards.values()):
        return ""  # it has not been asked yet
    ended = sum(shard.end is not None for shard in shards.values())
    seen = [shard.signs.seen for shard in shards.values() if shard.end is None and shard.signs.seen is not None]
    waits = Counter(filter(None, map(waits_for, seen)))
    parts = [f"{ended} of {len(shards)} shards done", f"{len(seen) - waits.total()} running"]
    return ", ".join([*parts, *(f"{count} {why}" for why, count in sorted(waits.items()))])


def _how(end: End) -> str:
    if end.exit_code < 0:
        return end.text or f"killed by signal {-end.exit_code}"
    return end.text or f"exit code {end.exit_code}"


def _failure(array: SlurmArray, shard: Shard, end: End, tries: int) -> LonghaulError:
    number, said, job = shard.directory.number, shard.signs.said, array.handle.job
    log = f"tail {shard.directory.log}"
    is_known = end.exit_code in set(ExitCode) - {ExitCode.OK}
    code = ExitCode(end.exit_code) if is_known else ExitCode.INTERNAL
    if isinstance(said, Error):
        what, next_command = f"shard {number}: {said.what}", said.next_command or log
        return LonghaulError(what, kept=said.kept or KEPT, next_command=next_command, exit_code=code)
    if end.cause == Cause.CANCELLED:
        what, next_command = f"somebody cancelled shard {number} of array {job}", "the same command"
        code = ExitCode.CLUSTER
    elif end.cause == Cause.HOST_OOM:
        what = f"shard {number} needs more host memory than its job may take"
        next_command = "the same command with a larger --set launch.memory_gb=N"
    else:
        what, next_command = f"shard {number} ended {tries} times without another answer: {_how(end)}", log
    return LonghaulError(what, kept=KEPT, next_command=next_command, exit_code=code)
