"""Self-play as a `Trainer`: owns model, optimiser, buffers and random state. The sibling modules do the work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state import event_kinds
from state.registry import Registry
from workers import rng
from workers.azr.advantages import role_weights
from workers.azr.buffers import Buffers, consolidate
from workers.azr.importing import IMPORT, imported_entries
from workers.azr.metrics import advantage_metrics, push_metrics
from workers.azr.proposing import Tools, check_lengths, rules_of
from workers.azr.replica import Apply, AzrReplica
from workers.azr.rows import Collected
from workers.azr.seeding import BatchFiles, grow
from workers.azr.selfplay import SelfPlay, Stage
from workers.azr.update import advantages_of
from workers.cycle.ahead import Ahead, TimedStages
from workers.cycle.cursor import Cursor, Place
from workers.cycle.mismatch import OF_FRESH
from workers.cycle.progress import Progress
from workers.cycle.rollout_file import Record
from workers.cycle.train import Interrupted, StepReport, not_finite_warning
from workers.data.checking import Stopped
from workers.data.tasks import read_tasks
from workers.memory.backoff import Sizes
from workers.models import load
from workers.models.torch_setup import device_of as device_of
from workers.models.torch_setup import set_up_torch as set_up_torch
from workers.rank_group import rehearsal
from workers.rank_group.calls import Probe, Resize, Rest
from workers.rank_group.leader import RankGroup
from workers.rewards.of_profile import NO_PARTS, RoleRewards
from workers.rollout.beside import RolloutStream
from workers.runtime import Attempt
from workers.sandbox import Sandbox
from workers.sandbox.limits import OK
from workers.suites.held_out import held_out_of
from workers.tasks.entry import Entry
from workers.tasks.judge import Judge
from workers.tasks.kinds.registry import tasks_of
from workers.tasks.seeds import seed_entries
from workers.tasks.styles import output_rule_of, style_of

KEEP_SHARE = 0.5
"""Share of the learnable tasks that a reseed keeps, newest first: old tasks were made for a weaker model."""


class AzrTrainer:
    """A `Trainer`; `workers/cycle/train.py` documents its methods."""

    static_files: ClassVar[Collection[str]] = load.STATIC_FILES

    def __init__(self, attempt: Attempt, sandbox: Sandbox, own_rewards: RoleRewards = NO_PARTS) -> None:
        """own_rewards: user-defined parts of the reward, added to those of the profile."""
        self._attempt, self._own_rewards = attempt, own_rewards
        self._sandbox = sandbox
        self._profile: Profile = attempt.profile
        self.rank_group = RankGroup(attempt)
        self._model: Any = None
        self._cursor: Cursor | None = None
        self._stream = RolloutStream()

    def build(self, head: Path | None) -> None:
        profile = self._profile
        self._tell_sandbox()
        self.rank_group.start(head)
        self._replica = self.rank_group.lead(AzrReplica, head)
        self._policy, self._model, self._memory = self._replica.policy, self._replica.model, self._replica.memory
        self._engine, self._update = self.rank_group.engine, self._replica.update
        if head is None:
            rng.seed_globals(profile.run.seed)
        tasks = tasks_of(profile.azr.tasks)
        self._buffers = Buffers(tasks, profile.azr.buffer_cap, profile.azr.novelty)
        with TemporaryDirectory(prefix="longhaul-style-") as files:
            self.write_static(Path(files))
            style = style_of(profile, Path(files))
        self._tools = Tools(
            profile=profile,
            style=style,
            tokenizer=self._policy.tokenizer,
            engine=self._engine,
            sandbox=self._sandbox,
            is_held_out=held_out_of(profile),
            is_output_allowed=output_rule_of(style.name),
        )
        check_lengths(self._tools, getattr(self._model.config, "max_position_embeddings", None))
        if profile.data.tasks:
            self._source = read_tasks(Path(profile.data.names[0]), self._sandbox, tasks, rules_of(self._tools))
            self._cursor = Cursor(len(self._source), profile.run.seed, profile.data.on_exhausted)

    def _tell_sandbox(self) -> None:
        """Report the sandbox layers. Raises LonghaulError (INPUT) if a module of the profile cannot be loaded."""
        self._attempt.event(event_kinds.SANDBOX, layers=self._sandbox.layers)
        required = {*self._profile.sandbox.require, "landlock", "seccomp"}
        if missing := sorted(name for name in required if self._sandbox.layers.get(name) != OK):
            self._attempt.warn(f"model-written programs run without {' and '.join(missing)}: the profile allows it")
        for name, reason in self._sandbox.modules_failed.items():
            raise LonghaulError(
                f"[sandbox] modules names {name!r}, which cannot be loaded: {reason}",
                kept="the run, unchanged",
                next_command=f"{sys.executable} -c 'import {name}'   or remove it from the profile",
                exit_code=ExitCode.INPUT,
            )

    def registry(self, progress: Progress) -> Registry:
        registry = Registry()
        registry.register(progress)
        for item in self.rank_group.state:
            registry.register(item)
        registry.register(self._buffers)
        if self._cursor is not None:
            registry.register(self._cursor)
        registry.register(rng.GlobalGenerators())  # last: reading the others may draw from them
        return registry

    def probe(self) -> dict[str, Any]:
        return self.rank_group.call(Probe())[0]

    def seed(self, stop_asked: Callable[[], bool]) -> Sequence[Record]:
        if self._cursor is not None:
            return []  # nothing is proposed: training adds the file's tasks to the buffers as it uses them
        style = self._tools.style
        for entry in seed_entries(self._tools.tasks, style.name):
            self._buffers.of[entry.task].add(entry)
        try:
            given = imported_entries(self._attempt, self._tools, stop_asked)
        except Stopped:
            raise Interrupted from None
        for entry in given.entries:
            self._buffers.of[entry.task].add(entry)
        spec, report_stage = self._attempt.spec, self._attempt.at
        path_of = partial(self._attempt.run.seed_file, spec.cycle)
        journal = BatchFiles(path_of, spec.run_id, self._profile, given.sha256)

        def on_batch(number: int) -> None:
            sizes = ", ".join(f"{task} {len(buffer)}" for task, buffer in self._buffers.of.items())
            report_stage(0, f"seeding, batch {number}, {sizes} of {self._profile.azr.seed_tasks} tasks")

        with self._memory.phase("rollout"):
            grow(self._tools, self._buffers, stop_asked, on_batch, journal)
        self._memory.forget()
        if any(len(buffer) < self._profile.azr.seed_tasks for buffer in self._buffers.of.values()):
            raise Interrupted
        entries = [entry for buffer in self._buffers.of.values() for entry in buffer.entries]
        return [example(entry) for entry in entries if entry.source != IMPORT]  # others: data/imported.jsonl

    def reseed(self) -> dict[str, float]:
        """Keep the seeds and the newest learnable tasks, without duplicates. Drop tasks whose results have changed.

        With a finite source, tasks are not drawn from the buffers: keep all whose results have not changed.
        """
        before = kept = 0
        for buffer in self._buffers.of.values():
            entries = consolidate(buffer.entries, KEEP_SHARE) if self._cursor is None else list(buffer.entries)
            _, changed = Judge(self._sandbox, self._tools.style.form.num_shown).judge([], recheck=entries)
            before += len(buffer)
            buffer.replace([entry for entry in entries if entry.key not in changed])
            kept += len(buffer)
        return {"kept": kept, "dropped": before - kept}

    def worst_case(self, *, first_attempt: bool) -> dict[str, Any]:
        if not first_attempt and self._model.device.type != "cuda":
            return {}
        return rehearsal.rehearse(self.rank_group, self._attempt.spec, self.sizes, is_first=first_attempt)

    @property
    def sizes(self) -> Sizes:
        return self._replica.sizes

    def resize(self, sizes: Sizes) -> None:
        self.rank_group.call(Resize(sizes))

    def collect(self, step: int) -> list[Record]:
        self._stream.follow()
        with self._memory.phase("rollout"), self._stream.drawing():
            return self._collected(step, self._buffers, None, self._attempt.stage).records()

    def _collected(self, step: int, buffers: Buffers, place: Place | None, stage: Stage) -> Collected:
        """place: in the finite source; None: where it is."""
        selfplay = SelfPlay(self._tools, buffers, stage, self._own_rewards)
        if self._cursor is None:
            return selfplay.collect(step)
        azr = self._profile.azr
        numbers, following = self._cursor.peek(azr.solve_batch or azr.proposals_per_task, place)
        return selfplay.collect_from(step, [self._source[one] for one in numbers], following)

    def draw_beside(self, ahead: Ahead) -> None:
        ahead.reads_copy = self._replica.sampler is not None
        self._stream.open(self._replica.engine.engine, self._replica.drawn_model.device, self._replica.renew_sampler)
        self._update.beside = ahead

    def collect_after(self, step: int, records: Sequence[Record]) -> Callable[[], list[Record]]:
        before, buffers = Collected.of(records), self._buffers.copy()
        buffers.store(before.found, before.retired)
        self._stream.follow()

        def draw() -> list[Record]:
            with self._stream.beside():
                found = self._collected(step, buffers, before.place, TimedStages())
            return replace(found, is_older=True).records()

        return draw

    def update(self, step: int, records: Sequence[Record]) -> StepReport:
        collected = Collected.of(records)
        rows = [row for row in collected.rows if row.reward is not None]
        if not self._profile.azr.variants.train_proposer:
            rows = [row for row in rows if row.role == "solve"]
        advantages = advantages_of(rows, self._profile.azr.advantages, self._profile.azr.variants.adv_norm)
        # The loss is linear in the advantages and no weight is negative, so clipping is unaffected.
        weights = role_weights([(row.task, row.role) for row in rows], self._profile.azr.proposer_share)
        pushes = [weight * value for weight, value in zip(weights, advantages.values, strict=True)]
        self.rank_group.call(Rest())
        with self._attempt.stage("update"), self._memory.phase("train"):
            is_finite, learned = self.rank_group.call(Apply(step, rows, pushes))[0]
        self._buffers.store(collected.found, collected.retired)
        if self._cursor is not None and collected.place is not None:
            self._cursor.place = collected.place
        metrics = collected.metrics | learned | self._buffers.sizes() | self.rank_group.take_figures()
        metrics |= advantage_metrics(rows, advantages.values) | push_metrics(rows, pushes)
        if collected.is_older:  # its log-probs are those of another policy, and say nothing of the engine
            metrics = {name: value for name, value in metrics.items() if name not in OF_FRESH}
            metrics |= {"older_share": 1.0, "mismatch_tokens": 0.0}
        metrics["cell_degenerate"] = float(advantages.degenerate)
        metrics["update_skipped"] = float(not rows)
        return StepReport(
            metrics=metrics,
            tokens=sum(len(row.completion_ids) for row in rows),
            examples=[example(entry) for entry in collected.found],
            finite=is_finite and not metrics.get("rollouts_not_finite"),
            sound=not collected.rows or any(row.log_probs for row in collected.rows),
            warnings=warnings_of(collected, metrics),
        )

    def write_static(self, directory: Path) -> None:
        self._policy.static.write(directory)


def warnings_of(collected: Collected, metrics: dict[str, float]) -> list[str]:
    """Warnings to show at once. (pure)"""
    texts = []
    if collected.retired:
        texts.append(f"{len(collected.retired)} tasks gave another value than before and were retired")
    if lost := round(metrics.get("rollouts_not_finite", 0.0)):
        texts.append(not_finite_warning(lost))
    elif not any(row.reward is not None for row in collected.rows):
        texts.append("no rollout of this step could be judged: nothing was trained")
    if metrics.get("new_examples", 0) >= 2 and metrics.get("identical_share", 0.0) == 1.0:
        texts.append("all estimation rollouts of every new task are the same: does the sampler draw at all?")
    return texts


def example(entry: Entry) -> Record:
    """One row of an `examples` event. (pure)"""
    return {
        "task": entry.task,
        "program": entry.program,
        "input": "\n".join(entry.inputs),
        "output": "\n".join(entry.outputs),
        "step": entry.step,
        "solve_rate": entry.solve_rate if entry.solve_rate >= 0 else None,
        "key": entry.key,
    }
