"""A run on disk, driven by this process, another one, or nobody. Reads without locks; asks its master to act."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longhaul.process import Process, commands_among
from longhaul.records import Checkpoint, Cycle, Event, Point, Rollout, Status, Step, Task, Validation
from profiles.errors import ExitCode, LonghaulError

if TYPE_CHECKING:
    from state.layout import RunDir
    from state.reader import Reader

POLL_S = 0.5
"""How often a run of another process is looked at."""
PIECE = 1000
"""Steps that are read at once while a run is watched."""


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint as the libraries know it."""

    model: Any
    """transformers.PreTrainedModel, or peft.PeftModel of a run that trains an adapter; in evaluation mode."""
    tokenizer: Any
    """transformers.PreTrainedTokenizerBase."""
    checkpoint: Checkpoint


def runs(folder: str | Path = "runs") -> list[Run]:
    """All readable runs in a folder, the one with the newest heartbeat first. Empty if there is no such folder."""
    from orchestrator.runs import all_runs

    return [Run(found.run) for found in all_runs(Path(folder))]


def open_run(name: str | None = None, folder: str | Path = "runs") -> Run:
    """The run of that name; None: the one with the newest heartbeat.

    Raises LonghaulError: INPUT if there is none, USAGE if no run can have that name.
    """
    import argparse

    from orchestrator.cli import refuse_name
    from orchestrator.runs import find_run

    with commands_among(Path(folder)):
        if name is not None:
            refuse_name(name)
        return Run(find_run(argparse.Namespace(runs=Path(folder), run=name)))


class Run:
    """A run. Each method sees what was committed when it was called. Made by `start`, `resume`, `open_run` and `runs`.

    Reading raises LonghaulError: STORE if the store is damaged, LOCKED, DISK or PERMISSION if it cannot be read.
    """

    def __init__(self, directory: RunDir, process: Process | None = None) -> None:
        self._dir = directory
        self._process = process

    def __repr__(self) -> str:
        return f"<longhaul.Run {self.name!r} in {self._dir.folder}>"

    @property
    def name(self) -> str:
        return self._dir.name

    @property
    def path(self) -> Path:
        """The run's directory."""
        return self._dir.root

    @contextmanager
    def _reader(self) -> Iterator[Reader]:
        from state.reader import Reader

        with commands_among(self._dir.folder), closing(Reader.open(self._dir)) as reader:
            yield reader

    # --- read -----------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Where the run stands."""
        from orchestrator.commands.status import collect

        with commands_among(self._dir.folder):
            facts = collect(self._dir, time.time())
        head, scored = facts["head"], facts["validation"]
        return Status(
            run=facts["run"],
            profile=facts["profile"],
            state=facts["state"],
            phase=facts["phase"],
            cycle=facts["cycle"],
            step=facts["step"],
            steps_total=facts["steps_total"],
            head_step=head["step"] if head else None,
            accuracy=float(scored["metrics"]["mean"]["accuracy"]) if scored else None,
            training_seconds=facts["training_s"],
            master_pid=facts["master_pid"],
            failures=facts["failures"],
            stop_reason=facts["stop_reason"],
            facts=facts,
        )

    def explain(self) -> list[str]:
        """What the command `explain` says: at most ten sentences, the most important first."""
        from orchestrator.commands.explain import collect
        from orchestrator.display.wording import among
        from orchestrator.explaining import explained

        with commands_among(self._dir.folder):
            return [among(self._dir.folder, one.text) for one in explained(collect(self._dir, time.time()))]

    def profile(self) -> dict[str, Any]:
        """The resolved profile: section -> knob -> value."""
        import json

        with self._reader() as reader:
            return dict(json.loads(reader.profile_json()))

    def steps(self, *, first: int = 1, last: int | None = None) -> list[Step]:
        """The finished steps from `first` to `last`, both included, oldest first; None: to the newest.

        Of a million steps this takes a minute and gigabytes: `series` has a curve of them in a second.
        """
        with self._reader() as reader:
            return [
                Step(one.step, one.cycle, one.seconds, one.metrics.get("reward"), one.metrics)
                for one in reader.steps_between(first, last)
            ]

    def series(
        self, metrics: Sequence[str] = ("reward",), *, points: int = 600, first: int = 1, last: int | None = None
    ) -> list[Point]:
        """Curves of metrics over the steps from `first` to `last` in at most `points` points, oldest first.

        `seconds`, `reward`, `loss` and `tokens` are aggregated over every step. Of others at most 12,000 steps are
        read, evenly spread.
        """
        with self._reader() as reader:
            found = reader.series(metrics, points, first=first, last=last)
        return [
            Point(
                found.edges[n],
                found.edges[n + 1] - 1,
                found.seconds[n],
                found.tokens[n],
                {
                    name: {"mean": one.mean, "low": one.low, "high": one.high}
                    for name, spreads in found.metrics.items()
                    if (one := spreads[n]) is not None
                },
            )
            for n in range(len(found.seconds))
        ]

    def metric_names(self) -> list[str]:
        """What the first and the newest step reported, sorted."""
        with self._reader() as reader:
            return reader.metric_names()

    def validations(self, suite: str | None = None) -> list[Validation]:
        """The scores of all suites, or of one, oldest first."""
        with self._reader() as reader:
            found = reader.validations(EVERY)
        return [
            Validation(
                step=one.step,
                cycle=one.cycle,
                suite=one.suite,
                accuracy=one.accuracy,
                low=float(one.metrics.get("mean", {}).get("low", one.accuracy)),
                high=float(one.metrics.get("mean", {}).get("high", one.accuracy)),
                correct=one.correct,
                n=one.n,
                tasks=one.metrics,
            )
            for one in found
            if suite in (None, one.suite)
        ]

    def cycles(self) -> list[Cycle]:
        """The newest 64 committed cycles and the current one, oldest first."""
        with self._reader() as reader:
            history = reader.history()
        known = {one.cycle: one for one in (*history.recent, *([history.current] if history.current else []))}
        return [
            Cycle(
                cycle=one.cycle,
                phase=one.phase,
                state=one.state.value,
                first=one.first_step,
                last=one.end_step - 1,
                train_seconds=one.train_s,
                new_tasks=one.new_examples,
                verdict=one.verdict,
                evidence=one.evidence,
            )
            for _, one in sorted(known.items())
        ]

    def tasks(self, newest: int = 100) -> list[Task]:
        """The newest tasks that self-play found, newest first; none of a run that reads problems."""
        with self._reader() as reader:
            return [Task(*row.values()) for row in reader.examples(min(newest, EVERY))]

    def rollouts(self, number: int = 8) -> list[Rollout]:
        """Rollouts of one prompt of the newest step: of the group whose rewards differ most.

        Steps up to the newest checkpoint keep theirs only with `retention.keep_rollout_steps`, so there may be none.
        Fewer than `number` if the group is smaller. Takes a second: a worker decodes them.
        """
        from orchestrator.rollout_texts import newest_rollouts
        from profiles.load import from_json

        with self._reader() as reader:
            history, profile = reader.history(), from_json(reader.profile_json())
        with commands_among(self._dir.folder):
            newest = newest_rollouts(self._dir, history, profile, number)
        found = []
        for one in newest:
            texts = dict(one.texts)
            found.append(Rollout(one.step, one.task, texts["prompt"], texts["answer"], one.verdict, one.reward))
        return found

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that are kept, oldest first."""
        with self._reader() as reader:
            head = reader.history().head
            found = [one for one in reader.checkpoints() if one.state == "committed"]
        return [
            Checkpoint(
                step=one.step,
                cycle=one.cycle,
                path=self._dir.root / one.path,
                digest=one.digest,
                num_bytes=one.bytes,
                is_head=head is not None and one.checkpoint_id == head.checkpoint_id,
            )
            for one in found
        ]

    def events(self, newest: int = 50) -> list[Event]:
        """The newest events, oldest first."""
        with self._reader() as reader:
            return [Event(*vars(one).values()) for one in reader.events(min(newest, EVERY))]

    def watch(self, *, first: int = 1, poll_s: float = POLL_S) -> Iterator[Step]:
        """Each step from `first` on as it finishes, until nobody drives the run any more.

        A step that is done again after a crash is given once. `wait` says how the run ended.
        """
        expected = first
        while True:
            is_over = not self._is_driven()  # asked first: what it committed before its end is read below
            newest = self._newest_step()
            while expected <= newest:  # in pieces: all steps of a long run are gigabytes
                last = min(newest, expected + PIECE - 1)
                for step in self.steps(first=expected, last=last):
                    yield step
                    expected = step.step + 1
                if last == newest:
                    break  # what is missing, a crash undid meanwhile: it is done again
                expected = max(expected, last + 1)
            if is_over:
                return
            time.sleep(poll_s)

    def _newest_step(self) -> int:
        """The last finished step, whether or not a checkpoint holds it; 0 before the first."""
        with self._reader() as reader:
            newest = reader.steps(1)
        return newest[-1].step if newest else 0

    # --- act ------------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> Status:
        """Wait until nobody drives the run; its last status. A run that stagnates has ended well.

        Raises LonghaulError with the master's exit code and its three lines if the run failed, and TimeoutError.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._is_driven():
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run '{self.name}' has not ended after {timeout_s:g} s")
            time.sleep(POLL_S)
        if self._process is not None:
            self._process.raise_if_failed(self._dir)
        status = self.status()
        if status.state in ("failed", "interrupted"):
            from orchestrator.display.wording import among

            raise LonghaulError(
                f"run '{self.name}' {status.state}: {status.stop_reason or 'its master died'}",
                kept=f"checkpoint of step {status.head_step}" if status.head_step is not None else "no checkpoint yet",
                next_command=among(self._dir.folder, f"python -m orchestrator run --run {self.name}"),
                exit_code=ExitCode.INTERNAL,
            )
        return status

    def stop(self, *, now: bool = False, timeout_s: float = 1800.0) -> Status:
        """Let the step finish, checkpoint and end; now=True: end at once and lose the steps since the last checkpoint.

        Raises LonghaulError: INPUT if nobody drives the run, STORE if the master does not answer within timeout_s.
        """
        self._ask("abort" if now else "stop", timeout_s)
        if self._process is not None:
            self._process.end()
        return self.status()

    def checkpoint(self, *, timeout_s: float = 900.0) -> Checkpoint:
        """Make a durable checkpoint at the end of the current step; training goes on. Raises as `stop` does."""
        step = self._ask("checkpoint", timeout_s)["step"]
        return next(one for one in reversed(self.checkpoints()) if one.step == step)

    def _ask(self, command: str, timeout_s: float) -> dict[str, Any]:
        from orchestrator.control import ask

        with commands_among(self._dir.folder):
            answer = ask(self._dir, command, timeout_s)
            if not answer.get("ok"):
                raise LonghaulError(
                    f"the master of '{self.name}' did not do '{command}': {answer.get('error', 'no reason given')}",
                    kept="everything that was committed",
                    next_command=f"python -m orchestrator status --run {self.name}",
                    exit_code=ExitCode.STORE,
                )
            return answer

    def _is_driven(self) -> bool:
        if self._process is not None:
            return self._process.is_alive()
        return self.status().is_running

    # --- models ---------------------------------------------------------------------------------------------------

    def load_model(self, which: str | int = "head", *, device: str = "cpu") -> LoadedModel:
        """The model of a checkpoint, with every file checked against its manifest. Imports torch and transformers.

        which: "head", "best", or a step. The weights have the precision of the profile (`model.dtype`). A run that
        trains an adapter gives its base with the adapter in a PeftModel. Raises LonghaulError (INPUT) if there is no
        such checkpoint or a file does not verify.
        """
        from longhaul.models import load

        checkpoints = self.checkpoints()
        with commands_among(self._dir.folder):
            return load(self._dir, str(which), device, checkpoints)


EVERY = (1 << 63) - 1
"""As a limit: no limit. SQLite takes no larger number."""
