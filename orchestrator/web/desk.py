"""Answers the page's questions about runs, from one thread that owns every connection to a store.

Requests come in turn, and between two of them that thread reads on in what is still unread of a long run. It takes no
lock and holds no snapshot for longer than an answer takes, so that it never delays a master.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.commands import compare
from orchestrator.comparing import Compared, accuracy_difference, profile_differences, table
from orchestrator.line_worker import started
from orchestrator.web.facts import Watch, runs_of
from profiles.errors import ExitCode, LonghaulError
from state.layout import RunDir, name_problem
from state.opening import damaged, store_error, unexpected
from workers.line_contract import RolloutsSpec, RolloutTexts

KEPT_OPEN = 12
"""Runs that are watched at once; the one that nobody asked about for longest is closed."""
COMPARED = 6
COMPARED_FOR_S = 20.0
TEXTS_KEPT = 24

Value = TypeVar("Value")


class Desk:
    """folder: of all runs. Create it on the event loop that serves the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reading = ThreadPoolExecutor(1, "reading")
        self._watches: dict[str, Watch] = {}
        """The one asked last is the last."""
        self._refining: dict[str, asyncio.Task[None]] = {}
        self._comparisons: dict[tuple[str, ...], tuple[float, dict[str, Any]]] = {}
        """The last one asked for, and when (monotonic)."""
        self._one_at_a_time = asyncio.Lock()
        self._texts: dict[tuple[Any, ...], RolloutTexts] = {}

    async def close(self) -> None:
        for task in self._refining.values():
            task.cancel()
        await self._in_turn(self._close_all)
        self._reading.shutdown()

    def _close_all(self) -> None:
        for watch in self._watches.values():
            watch.close()

    async def _in_turn(self, work: Callable[[], Value]) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._reading, work)

    async def runs(self) -> list[dict[str, Any]]:
        return await self._in_turn(lambda: runs_of(self.folder, time.time()))

    async def of(self, name: str, work: Callable[[Watch], Value]) -> Value:
        """What `work` reads of a run. Raises LonghaulError: INPUT if there is none, otherwise why it is unreadable."""
        return await self._in_turn(lambda: self._now(name, work))

    def _now(self, name: str, work: Callable[[Watch], Value]) -> Value:
        watch = self._watch(name)
        try:
            return work(watch)
        except sqlite3.Error as error:
            self._forget(name)
            raise store_error(watch.run, error) from error
        except json.JSONDecodeError as error:
            self._forget(name)
            raise damaged(watch.run, f"a row holds no JSON: {error}") from error
        except LonghaulError:
            self._forget(name)  # opened again at the next question: it may have been recovered by then
            raise

    def _watch(self, name: str) -> Watch:
        run = self._run(name)
        watch = self._watches.pop(name, None)
        if watch is not None and watch.is_stale:
            watch.close()
            watch = None
        self._watches[name] = watch = watch or Watch(run)
        if len(self._watches) > KEPT_OPEN:
            self._forget(next(iter(self._watches)))
        return watch

    def _run(self, name: str) -> RunDir:
        run = RunDir(self.folder / name)
        try:
            is_there = not name_problem(name) and run.store.is_file()
        except OSError as error:
            raise unexpected(run, error) from error
        if not is_there:
            self._forget(name)
            raise LonghaulError(
                f"there is no run '{name}' in {self.folder}",
                kept="nothing was changed",
                next_command="python -m orchestrator web   (its list has the runs that there are)",
                exit_code=ExitCode.INPUT,
            )
        return run

    def _forget(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.close()

    # --- curves -------------------------------------------------------------------------------------------------------

    async def series(self, name: str, metrics: Sequence[str], key: str, first: int) -> dict[str, Any]:
        found = await self.of(name, lambda watch: watch.series(metrics, key, first))
        if found["read"] < 1.0 and name not in self._refining:
            self._refining[name] = asyncio.create_task(self._refine(name))
        return found

    async def _refine(self, name: str) -> None:
        """Read all steps, a piece at a time, between the questions of the page."""
        try:
            while await self.of(name, lambda watch: watch.refine()):
                pass
        except LonghaulError:
            return  # the page asks again and hears of it
        finally:
            self._refining.pop(name, None)

    # --- several runs -------------------------------------------------------------------------------------------------

    async def compare(self, names: Sequence[str]) -> dict[str, Any]:
        """The figures of `compare`, kept for a while: very long runs take a second each."""
        chosen = tuple(dict.fromkeys(names))[:COMPARED]
        at, found = self._comparisons.get(chosen, (-COMPARED_FOR_S, {}))
        if time.monotonic() - at >= COMPARED_FOR_S:
            runs = [await self.of(name, lambda watch: compare.read(watch.run)) for name in chosen]
            found = await self._in_turn(lambda: _comparison(runs))
            self._comparisons = {chosen: (time.monotonic(), found)}
        return found

    # --- rollouts -----------------------------------------------------------------------------------------------------

    async def rollouts(self, name: str, cycle: int, step: int, group: str) -> RolloutTexts:
        """Texts of one step's rollouts. Another process reads them; raises what it reports."""
        path, spec = await self.of(name, lambda watch: _spec(watch, cycle, step, group))
        async with self._one_at_a_time:
            key = (path, *await asyncio.to_thread(_age, path), group)
            found = self._texts.get(key)
            if found is None:
                found = self._texts[key] = await asyncio.to_thread(_read, spec)
                while len(self._texts) > TEXTS_KEPT:
                    del self._texts[next(iter(self._texts))]
            return found


def _comparison(runs: Sequence[Compared]) -> dict[str, Any]:
    return {
        "rows": [[row.name, *row.cells] for row in table(runs)],
        "differences": [accuracy_difference(runs[0], one) for one in runs[1:]],
        "knobs": [[row.name, *row.cells] for row in profile_differences(runs)],
    }


def _spec(watch: Watch, cycle: int, step: int, group: str) -> tuple[Path, RolloutsSpec]:
    path = watch.run.rollout_file(cycle, step).absolute()
    return path, RolloutsSpec(str(path), watch.tokenizers(), watch.style(), group)


def _age(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_mtime_ns, found.st_size


def _read(spec: RolloutsSpec) -> RolloutTexts:
    with started("workers.rollouts", spec, name="rollouts", kept="the run, unchanged") as worker:
        found = [said for said in worker.hear() if isinstance(said, RolloutTexts)]
    return found[0]
