"""GRPO as a `Trainer`: owns model, optimiser and the order of problems, and delegates the work to its sibling
modules."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import Struct, field

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state import event_kinds
from state.registry import Registry
from workers import rng
from workers.cycle.ahead import Ahead, TimedStages
from workers.cycle.cursor import Cursor
from workers.cycle.progress import Progress
from workers.cycle.rollout_file import Record
from workers.cycle.train import StepReport, not_finite_warning
from workers.environments.episodes import episodes_of
from workers.grpo.advantages import group_advantages, rule_of
from workers.grpo.collecting import Asker, Stages, collect
from workers.grpo.curriculum import Curriculum
from workers.grpo.measuring import SLICE, Measuring, slice_of
from workers.grpo.metrics import Metrics, facts_of, groups_of
from workers.grpo.mixture import Mixture
from workers.grpo.order import Order, ProblemFile
from workers.grpo.replica import Apply, GrpoReplica
from workers.grpo.rows import Collected, Row, WaitingGroup
from workers.grpo.segments import Waiting, collect_segments, of_older_policy
from workers.grpo.token_weights import masked_rollouts
from workers.grpo.uniformity import StepFacts, all_uniform
from workers.memory.backoff import Sizes
from workers.models import load
from workers.models.optimizer import learning_rate_at
from workers.problems.of_profile import grpo_problems, sizes_of
from workers.problems.problem import Problems
from workers.problems.reader import drop_long, first, summary
from workers.problems.split import training_part
from workers.rank_group import rehearsal
from workers.rank_group.calls import Probe, Rehearse, Resize, Rest, Widen
from workers.rank_group.leader import RankGroup
from workers.rewards.reward import ProblemCase, Reward, SlowReward
from workers.rollout.beside import RolloutStream
from workers.runtime import Attempt
from workers.suites.answer_format import VerbatimFormat
from workers.suites.answer_formats import format_of_run
from workers.suites.data_files import data_folder
from workers.suites.prompts import prompt_of
from workers.verifiers.verify import verifier_of

if TYPE_CHECKING:
    from workers.environments.runner import EnvironmentRunner


class Tally(Struct):
    """Counters besides the step. Registered: the learning rate counts updates, and some steps have none."""

    updates: int = 0
    """Steps with an update."""
    silent: list[StepFacts] = field(default_factory=list)
    """Consecutive steps in which no group taught anything, since the last that did or the last warning."""

    filename = "tally.json"

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    def load(self, path: Path) -> None:
        stored = msgspec.json.decode(path.read_bytes(), type=Tally)
        self.updates, self.silent = stored.updates, stored.silent


class GrpoTrainer:
    """A `Trainer`; `train.py` says what each method is for."""

    static_files: ClassVar[Collection[str]] = load.STATIC_FILES

    def __init__(
        self,
        attempt: Attempt,
        own_rewards: Sequence[Reward[ProblemCase]] = (),
        slow_rewards: Sequence[SlowReward] = (),
        environment: EnvironmentRunner | None = None,
    ) -> None:
        """own_rewards: parts of the reward in addition to those of the profile. slow_rewards: the profile's parts that
        take time. environment: the profile's, entered."""
        self._attempt, self._own_rewards, self._slow_rewards = attempt, own_rewards, slow_rewards
        self._environment = environment
        self._profile: Profile = attempt.profile
        self.rank_group = RankGroup(attempt)
        self._model: Any = None
        self._stream = RolloutStream()
        self._drawn_s: dict[int, float] = {}
        """Step -> seconds in which its rollouts were drawn, beside an update or not."""

    def build(self, head: Path | None) -> None:
        profile = self._profile
        own_rows = self._environment.rows() if self._environment else None
        found = training_problems(profile, ProblemFile.revisions(head), own_rows)  # first: it is fast, often mistyped
        self.rank_group.start(head)
        self._replica = self.rank_group.lead(GrpoReplica, head)
        self._policy, self._model, self._memory = self._replica.policy, self._replica.model, self._replica.memory
        self._engine, self._update = self.rank_group.engine, self._replica.update
        if head is None:
            rng.seed_globals(profile.run.seed)
        self._tally = Tally()
        self._waiting = Waiting()
        with TemporaryDirectory(prefix="longhaul-format-") as files:
            self.write_static(Path(files))
            answer_format = format_of_run(profile, Path(files))
        assert isinstance(answer_format, VerbatimFormat)  # a rule of the profile
        tokenizer = self._policy.tokenizer
        usable = found
        if self._environment is None:  # which says itself what the prompts are
            usable = drop_long(
                found,
                lambda one: len(tokenizer.encode_prompt(prompt_of(answer_format, one))),
                profile.sampling.max_prompt_tokens,
            )
        self._problems = first(usable, profile.grpo.problems)
        columns = {name for one in self._problems.problems for name in one.columns}
        for part in self._slow_rewards:
            part.check(columns)
        if head is None:
            self._attempt.event(event_kinds.PROBLEMS, text=summary(self._problems), digest=self._problems.digest)
        self._asker = Asker(
            profile,
            answer_format,
            tokenizer,
            self._engine,
            self._problems.problems,
            verifier_of(profile.grpo),
            self._own_rewards,
            self._slow_rewards,
            episodes_of(profile, self._environment, answer_format, tokenizer) if self._environment else None,
        )
        self._check_lengths()
        self._order = Order(self._begun_order(head))

    def _begun_order(self, head: Path | None) -> Cursor | Curriculum | None:
        """None until the difficulties are measured."""
        grpo = self._profile.grpo
        if not grpo.sent.enabled:
            return self._plain_order()
        if head is None:
            return None
        if grpo.sent.on_stale == "shuffle" and not Order.has_stages(head):  # the run began without stages
            return self._plain_order()
        return self._measuring().resumed() or self._plain_order()

    def _plain_order(self) -> Cursor:
        data, seed = self._profile.data, self._profile.run.seed
        if data.weights:
            return Mixture(sizes_of(self._problems, data.names), data.weights, seed, data.on_exhausted)
        return Cursor(len(self._problems.problems), seed, data.on_exhausted)

    def _measuring(self, num_problems: int = SLICE) -> Measuring:
        run = self._attempt.run
        return Measuring(self._asker, self._problems, self._model, run.difficulties, num_problems)

    def _check_lengths(self) -> None:
        """Raises LonghaulError (INPUT) if prompt and completion exceed the context window."""
        positions = getattr(self._model.config, "max_position_embeddings", None)
        knobs = self._profile.sampling
        if positions and knobs.max_prompt_tokens + knobs.max_completion_tokens > positions:
            raise LonghaulError(
                f"this model reads {positions} tokens at most, and prompt and completion may have "
                f"{knobs.max_prompt_tokens} + {knobs.max_completion_tokens}",
                kept="the run, unchanged",
                next_command="python -m orchestrator run --set sampling.max_completion_tokens=... --accept-changes",
                exit_code=ExitCode.INPUT,
            )

    def registry(self, progress: Progress) -> Registry:
        registry = Registry()
        registry.register(progress)
        for file in self.rank_group.state:
            registry.register(file)
        for item in (ProblemFile(self._problems), self._order, self._tally):
            registry.register(item)
        if self._profile.grpo.segment_tokens:
            registry.register(self._waiting)
        registry.register(rng.GlobalGenerators())  # last: reading the others may draw from them
        return registry

    def probe(self) -> dict[str, Any]:
        return self.rank_group.call(Probe())[0]

    def seed(self, stop_asked: Callable[[], bool]) -> Sequence[Record]:
        """There are no buffers to fill. For a curriculum, measures the difficulties for the initial policy."""
        if self._profile.grpo.sent.enabled:
            with self._attempt.stage("measuring"):
                found = self._measured(stop_asked)
            self._order.inner = found or self._plain_order()
        return []

    def _measured(self, stop_asked: Callable[[], bool]) -> Curriculum | None:
        """Nothing trains meanwhile, so a GPU decodes as many rollouts side by side as fit into memory."""
        is_gpu, sizes, samples = self._model.device.type == "cuda", self.sizes, self._profile.grpo.sent.samples
        num_problems = SLICE
        if is_gpu:
            longest = max(len(self._asker.prompt_ids(one)) for one in self._problems.problems)
            self.rank_group.call(Widen(samples, longest))
            num_problems = slice_of(self._engine.max_rows * self.rank_group.size, samples)
        with self._memory.phase("rollout"):
            found = self._measuring(num_problems).run(stop_asked, self._attempt)
        self._memory.forget()
        if is_gpu:
            self._engine.drop_cache()
            self.rank_group.call(Resize(sizes))
            # Reset the cache to the shape that a resumed attempt starts with; otherwise its numbers would differ.
            self.rank_group.call(Rehearse())
        return found

    def reseed(self) -> dict[str, float]:
        """There is nothing to consolidate; the run continues unchanged."""
        return {"kept": 0.0, "dropped": 0.0}

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
            found = self._collected(step, self._order, self._waiting.groups, self._attempt.stage)
        self._drawn_s[step] = self._attempt.seconds_of("rollout")
        return found.records()

    def _collected(self, step: int, order: Order, waiting: Sequence[WaitingGroup], stage: Stages) -> Collected:
        if self._profile.grpo.segment_tokens:
            return collect_segments(self._asker, order, waiting, step, stage)
        return collect(self._asker, order, step, stage)

    def draw_beside(self, ahead: Ahead) -> None:
        ahead.reads_copy = self._replica.sampler is not None
        self._stream.open(self._replica.engine.engine, self._replica.drawn_model.device, self._replica.renew_sampler)
        self._update.beside = ahead

    def collect_after(self, step: int, records: Sequence[Record]) -> Callable[[], list[Record]]:
        before, order = Collected.of(records), self._order.copy()
        moved(order, before)
        self._stream.follow()

        def draw() -> list[Record]:
            timed = TimedStages()
            with self._stream.beside():
                found = self._collected(step, order, before.waiting, timed)
            self._drawn_s[step] = timed.seconds["rollout"]
            return of_older_policy(found).records()

        return draw

    def update(self, step: int, records: Sequence[Record]) -> StepReport:
        collected = Collected.of(records)
        self.rank_group.call(Rest())
        rows, advantages, left_out = chosen(collected, self._profile)
        metrics: Metrics = dict(collected.metrics) | {"rollouts_kept": float(len(rows))}
        groups = {row.group for row in rows}
        metrics["skipped_share"] = 1 - len(groups) / metrics["groups"] if metrics["groups"] else 0.0
        is_finite, was_trusted = all(row.is_finite for row in collected.rows), not self._update.source.is_distrusted
        if rows:
            began = time.monotonic()
            rate = learning_rate_at(self._tally.updates + 1, self._profile.optimizer)
            with self._attempt.stage("update"):
                asked = Apply(step, rate, rows, advantages, left_out)
                is_applied, learned = self.rank_group.call(asked)[0]
            is_finite &= is_applied
            metrics |= learned | {"learning_rate": rate}
            metrics["train_tokens_per_s"] = tokens_of(rows) / max(time.monotonic() - began, 1e-9)
        metrics |= {
            "update_skipped": float(not rows),
            **self._speed(step, collected),
            **self._step_done(collected, bool(rows)),
            **self.rank_group.take_figures(),
        }
        said = self._warnings(collected, rows)
        if was_trusted and self._update.source.is_distrusted:
            said.append(
                "the engine's log-probs are far from the trainer's (mismatch_mean, mismatch_max): from the next step "
                "on the trainer computes them itself, and weights correct the difference"
            )
        is_sound = not collected.rows or any(row.is_finite for row in collected.rows)
        return StepReport(metrics=metrics, tokens=tokens_of(rows), finite=is_finite, sound=is_sound, warnings=said)

    def _speed(self, step: int, collected: Collected) -> Metrics:
        """Empty if the rollouts come from an earlier attempt."""
        seconds = self._drawn_s.pop(step, 0.0)
        drawn = collected.metrics.get("tokens_drawn", tokens_of(collected.rows))
        return {"tokens_per_s": drawn / seconds} if seconds else {}

    def _step_done(self, collected: Collected, is_updated: bool) -> Metrics:
        """The places after the step. Nothing before this changes them, so a step can be repeated."""
        self._opened = moved(self._order, collected)
        self._waiting.groups = collected.waiting
        self._tally.updates += is_updated
        if collected.rows:  # else all groups wait
            facts = facts_of(collected.metrics)
            self._tally.silent = [] if facts.teaches else [*self._tally.silent, facts]
        counts = {"updates_done": float(self._tally.updates), "silent_steps": float(len(self._tally.silent))}
        return counts | self._order.metrics

    def _warnings(self, collected: Collected, rows: Sequence[Row]) -> list[str]:
        """Warnings that the user should see at once."""
        texts = []
        if self._opened:
            texts.append(f"the curriculum is at stage {self._order.metrics['stage']:g} from here on")
        if finding := all_uniform(self._tally.silent, self._profile.grpo):
            texts.append(finding.text)
            self._tally.silent = []  # warn once in this many steps
        if lost := sum(not row.is_finite for row in collected.rows):
            texts.append(not_finite_warning(lost))
        elif failures := [row.failure for row in collected.rows if row.failure]:
            texts.append(f"{len(failures)} rollouts have no reward and were left out; the first: {failures[0]}")
        elif collected.train and not rows:
            texts.append("every rollout of this step's groups was cut at its longest length: nothing was trained")
        return texts

    def write_static(self, directory: Path) -> None:
        self._policy.static.write(directory)


def chosen(collected: Collected, profile: Profile) -> tuple[list[Row], list[float], list[Row]]:
    """Rows that get a gradient, their advantages, and the other rows of the step. (pure)

    Truncated rollouts count in their group's mean. Those with non-finite numbers or without a whole reward do not; a
    rollout left alone in its group by that has nothing to compare with, and is dropped. So is a group without any
    rollout left.
    """
    usable = groups_of(row for row in collected.rows if row.is_usable)
    train = {group for group in collected.train if len(usable.get(group, ())) > 1}
    asked = [row for row in collected.rows if row.group in train and row.is_usable]
    others = [row for row in collected.rows if row.group not in train or not row.is_usable]
    if not asked:
        return [], [], others
    found = group_advantages(
        [row.reward for row in asked],
        [row.group for row in asked],
        rule_of(profile.grpo),
        masked_rollouts(profile.grpo, [row.finish_reason for row in asked]),
        [row.reward for row in others if row.is_usable],
    )
    rows = [row for row, is_kept in zip(asked, found.kept, strict=True) if is_kept]
    values = [value for value, is_kept in zip(found.values, found.kept, strict=True) if is_kept]
    return rows, values, [row for row, is_kept in zip(asked, found.kept, strict=True) if not is_kept] + others


def moved(order: Order, collected: Collected) -> bool:
    """Move `order` to its place after the step; returns whether that opened the curriculum's next stage."""
    order.move(collected.cursor, collected.stage)
    if not collected.rows:  # all groups wait
        return False
    return order.step_done(collected.metrics["accuracy"], collected.metrics["uniform_share"])


def tokens_of(rows: Sequence[Row]) -> int:
    return sum(len(row.completion_ids) for row in rows)


def training_problems(
    profile: Profile,
    revisions: Mapping[str, str] | None = None,
    own_rows: Sequence[Mapping[str, Any]] | None = None,
) -> Problems:
    """The problems that may train: those of the profile, without the held-out part. Arguments as of `grpo_problems`.

    Raises LonghaulError (INPUT).
    """
    found = grpo_problems(profile, data_folder(profile.validation.data), revisions, own_rows)
    return training_part(found, profile.data.held_out)
