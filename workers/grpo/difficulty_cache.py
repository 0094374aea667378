"""The file of measured difficulties. It can be resumed, and is never used for another model, data set or setting.

A header line names everything that the figures depend on; then one line per problem, in order. It is append-only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from state.durable import Appender, write_file
from workers.grpo.difficulty import Difficulty, Measured, Sample, difficulty

SYNC_EVERY = 50
"""Problems between syncs. A power cut costs at most this many measurements; a kill costs those of one slice."""
OnStale = Literal["rebuild", "fail", "shuffle"]
Same = Callable[[str, str], bool]


class _Header(Struct, frozen=True):
    measured: Measured
    digest: str


class DifficultyCache:
    """Difficulties of one `Measured`, by problem. Open with `open_cache`."""

    def __init__(self, path: Path, done: dict[int, Difficulty]) -> None:
        self.done = done
        self._file = Appender(path)
        self._unsynced = 0

    def measure(
        self, problems: Sequence[int], sample: Callable[[int], Sequence[Sample]], same: Callable[[int], Same]
    ) -> None:
        """Measure what is missing, in the given order. sample, and same (whether two answers to a problem are the
        same), must depend only on the problem's number."""
        for problem in problems:
            if problem not in self.done:
                one = difficulty(problem, sample(problem), same(problem))
                self._unsynced += 1
                self._file.append(msgspec.json.encode(one), sync=self._unsynced >= SYNC_EVERY)
                self._unsynced %= SYNC_EVERY
                self.done[problem] = one
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def open_cache(path: Path, measured: Measured, on_stale: OnStale, *, has_begun: bool = False) -> DifficultyCache | None:
    """The cache at `path`, created if missing. None: it is stale, and the profile says to train without an order.

    A stale file is never used: `rebuild` moves it aside under its digest and starts anew, `fail` raises LonghaulError
    (INPUT) with the difference. A torn last line is dropped; other damage counts as stale. has_begun: the policy has
    been trained since the measurement, so nothing can be measured again.
    """
    try:
        whole, _, torn = path.read_bytes().rpartition(b"\n")
    except FileNotFoundError:
        whole, torn = b"", b""
    header, done, damage = _read(whole)
    if header is None and damage is None:
        begin(path, measured)
        return DifficultyCache(path, {})
    if header is not None and header.measured == measured and damage is None:
        if torn:
            write_file(path, whole + b"\n")
        return DifficultyCache(path, done)
    if on_stale == "shuffle":
        return None
    if on_stale == "fail":
        raise _stale(path, damage or _difference(header, measured), has_begun)
    path.rename(path.with_name(f"{path.name}.{header.digest[:8] if header else 'damaged'}"))
    begin(path, measured)
    return DifficultyCache(path, {})


def measured_in(path: Path) -> Measured | None:
    """What the file's figures depend on, from its header; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.readline(), type=_Header).measured
    except (OSError, msgspec.MsgspecError):
        return None


def begin(path: Path, measured: Measured) -> None:
    write_file(path, msgspec.json.encode(_Header(measured, measured.digest)) + b"\n")


def _read(whole: bytes) -> tuple[_Header | None, dict[int, Difficulty], str | None]:
    """Header, records, and what is wrong with them. An empty file gives no header and no error."""
    if not whole:
        return None, {}, None
    first, *rest = whole.split(b"\n")
    try:
        header = msgspec.json.decode(first, type=_Header)
    except msgspec.MsgspecError as error:
        return None, {}, f"line 1: {error}"
    done: dict[int, Difficulty] = {}
    for number, line in enumerate(rest, start=2):
        try:
            one = msgspec.json.decode(line, type=Difficulty)
        except msgspec.MsgspecError as error:
            return header, {}, f"line {number}: {error}"
        done[one.problem] = one
    return header, done, None


def _difference(header: _Header | None, measured: Measured) -> str:
    assert header is not None
    old, new = msgspec.to_builtins(header.measured), msgspec.to_builtins(measured)
    changed = [f"{name} was {old[name]!r}, is {new[name]!r}" for name in new if old[name] != new[name]]
    return "it was measured with other settings: " + "; ".join(changed)


def _stale(path: Path, why: str, has_begun: bool) -> LonghaulError:
    return LonghaulError(
        f"the measured difficulties {path} cannot be used: {why}",
        kept="the file, unchanged",
        next_command="python -m orchestrator run --run NEW-NAME   (this run's policy has been trained since)"
        if has_begun
        else "the same command with --set grpo.sent.on_stale=rebuild (the old file is moved aside)",
        exit_code=ExitCode.INPUT,
    )
