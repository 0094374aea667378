"""One step of self-play before its update: propose, verify, solve, judge, reward. Changes no state.

Generates all proposals first, then all solutions, with the same weights (arXiv 2505.03335, algorithm 1).
docs/algorithm.md has the decision register.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from workers.azr.buffers import Buffers, is_stored, solver_batch
from workers.azr.metrics import collected_metrics
from workers.azr.proposing import Proposed, Tools, propose, verify
from workers.azr.rows import Collected, Row
from workers.cycle.cursor import Place
from workers.rewards.coin import coin as tossed
from workers.rewards.of_profile import NO_PARTS, SELF_PLAY_COIN, RoleRewards, role_rewards_of
from workers.rewards.reward import AnyCase, Case, Estimate, Reward, score
from workers.rng import derive, stream
from workers.rollout.engine import Request, Rollout
from workers.tasks.entry import Entry
from workers.tasks.items import Task
from workers.tasks.judge import Answer, Correctness, Judge, Judged
from workers.tasks.kinds.registry import item_of
from workers.tasks.validate_proposals import REPEAT, UNFAIR

Stage = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Wanted:
    """A task to solve `count` times.

    is_new: a new valid task of this step, to be stored. is_trained: the update uses its rollouts; otherwise they only
    estimate its solve rate. is_repeat: a known task proposed again in this step, solved to reward its proposer.
    """

    entry: Entry
    count: int
    is_new: bool
    is_trained: bool
    is_repeat: bool = False

    @property
    def is_estimated(self) -> bool:
        return self.is_new or self.is_repeat


@dataclass
class Solved:
    """The rollouts of one wanted task, with their verdicts."""

    wanted: Wanted
    group: int
    rollouts: list[Rollout]
    texts: list[str]
    verdicts: list[Judged] = field(default_factory=list)

    @property
    def judged(self) -> list[Judged]:
        return [one for one in self.verdicts if one.verdict is not Correctness.UNKNOWN]

    @property
    def successes(self) -> float:
        """Sum of the scores. Without partial credit this is the number of right answers."""
        return sum(one.score for one in self.verdicts)


Rates = dict[tuple[Task, str], Solved]
"""The solve-rate estimates of a step's proposals, by task and key."""
Paid = tuple[float | None, dict[str, float]]
"""A rollout's reward (None if it cannot be judged fairly) and the user-defined parts in it, by name."""


class SelfPlay:
    """Collects the rollouts of a step."""

    def __init__(self, tools: Tools, buffers: Buffers, stage: Stage, own: RoleRewards = NO_PARTS) -> None:
        """own: user-defined parts of the reward, added to those of the profile."""
        self._tools, self._buffers, self._stage, self._own = tools, buffers, stage, own
        self._azr = tools.profile.azr
        self._rewards = role_rewards_of(self._azr) + own
        self._seed = tools.profile.run.seed

    def collect(self, step: int) -> Collected:
        """A step in which the model makes its own tasks."""
        reasons: Counter[str] = Counter()
        with self._stage("propose"):
            drawn = propose(self._tools, self._buffers, self._tools.tasks, self._azr.proposals_per_task, step)
        with self._stage("validate_proposals"):
            proposed = verify(self._tools, self._buffers, drawn, step, reasons)
        wanted, repeats = self._wanted(step, proposed)
        solved, retired, run = self.solve(step, wanted)
        # The key includes the task: the same program and input may be proposed for two kinds.
        rates = {(one.wanted.entry.task, one.wanted.entry.key): one for one in solved if one.wanted.is_estimated}
        coin = self._coin(step)
        rows = [self._proposer_row(one, rates, coin) for one in proposed]
        rows += [row for one in solved if one.wanted.is_trained for row in self._solver_rows(one, coin)]
        new = [one for one in solved if one.wanted.is_new and one.wanted.entry.key not in retired]
        found = [with_rate(one.wanted.entry, one) for one in new]
        found = [entry for entry in found if is_stored(entry.solve_rate, self._azr.variants.buffer_filter)]
        metrics = collected_metrics(rows, reasons, solved, self._tools.tasks)
        metrics |= run | {"fill_with_replacement": float(repeats)}
        metrics["rollouts_not_finite"] += not_finite(one.rollout for one in proposed)
        return Collected(rows=rows, found=found, retired=sorted(retired), metrics=metrics)

    def collect_from(self, step: int, entries: Sequence[Entry], place: Place) -> Collected:
        """A step in which the tasks come from a finite source; nothing is proposed.

        Tasks seen for the first time are returned as found, so that they enter the buffers.
        """
        wanted = [Wanted(entry, self._azr.group_size, is_new=False, is_trained=True) for entry in entries]
        solved, retired, run = self.solve(step, wanted)
        coin = self._coin(step)
        rows = [row for one in solved for row in self._solver_rows(one, coin)]
        metrics = collected_metrics(rows, Counter(), solved, self._tools.tasks) | run
        found: dict[tuple[Task, str], Entry] = {}
        for one in solved:
            entry = one.wanted.entry
            if entry.key not in retired and entry.key not in self._buffers.of[entry.task]:
                found.setdefault((entry.task, entry.key), with_rate(entry, one))
        return Collected(
            rows=rows,
            found=list(found.values()),
            retired=sorted(retired),
            metrics=metrics,
            place=place,
        )

    def solve(self, step: int, wanted: Sequence[Wanted]) -> tuple[list[Solved], frozenset[str], dict[str, float]]:
        """Returns the solved tasks, the keys of old tasks that are no longer valid, and execution counts."""
        tools = self._tools
        requests, solved = [], []
        for number, task in enumerate(wanted):
            prompt = tools.encode(tools.style.solve(task.entry.task, item_of(task.entry)))
            seeds = (derive(self._seed, step, f"solve {number}", i) for i in range(task.count))
            requests += [Request(prompt, seed) for seed in seeds]
            solved.append(Solved(task, number, [], []))
        with self._stage("solve"):
            rollouts = iter(tools.engine.generate(requests, tools.sampling))
        for one in solved:
            one.rollouts = [next(rollouts) for _ in range(one.wanted.count)]
            one.texts = [tools.text_of(rollout) for rollout in one.rollouts]
        with self._stage("judge"):
            azr = self._azr
            judge = Judge(
                tools.sandbox,
                tools.style.form.num_shown,
                strict_types=azr.variants.strict_types,
                induction=azr.variants.induction_reward,
            )
            answers = [
                Answer(one.wanted.entry, tools.style.parse_answer(one.wanted.entry.task, text))
                for one in solved
                for text in one.texts
            ]
            old = [one.wanted.entry for one in solved if not one.wanted.is_new]
            found, retired = judge.score(answers, recheck=old)
        verdicts = iter(found)
        for one in solved:
            each = [(rollout, next(verdicts)) for rollout in one.rollouts]
            one.verdicts = [judged if rollout.is_finite else Judged(Correctness.UNKNOWN) for rollout, judged in each]
        lost = not_finite(each for one in solved for each in one.rollouts)
        counts = {"executions": float(judge.executions), "timeouts": float(judge.timeouts)}
        return solved, retired, counts | {"rollouts_not_finite": lost}

    def _wanted(self, step: int, proposed: Sequence[Proposed]) -> tuple[list[Wanted], int]:
        """Every new valid task, to estimate its solve rate, and the tasks that fill the solver's batch.

        The second value is the number of repeats in the batch.
        """
        wanted: list[Wanted] = []
        repeats = 0
        azr = self._azr
        size = azr.solve_batch or azr.proposals_per_task
        group, trains = azr.group_size, azr.train_on_estimates
        for task in self._tools.tasks:
            valid = [one.checked for one in proposed if one.task == task and one.checked.entry]
            new = [one.entry for one in valid if one.entry and not one.reason]
            wanted += [Wanted(entry, group, is_new=True, is_trained=trains) for entry in new]
            if azr.variants.repeats == "as_new":
                keys = {entry.key for entry in new}
                again = {one.entry.key: one.entry for one in valid if one.entry and one.entry.key not in keys}
                wanted += [
                    Wanted(entry, group, is_new=False, is_trained=False, is_repeat=True) for entry in again.values()
                ]
            missing = size - len(new) if trains else size
            if missing > 0:
                rng = stream(self._seed, step, f"solver batch {task}")
                old = self._buffers.of[task].entries
                chosen, filled = solver_batch(
                    [] if trains else new, old, missing, rng, azr.variants.solver_mix, lambda entry: entry.step
                )
                count = group if trains else 1
                wanted += [Wanted(entry, count, is_new=False, is_trained=True) for entry in chosen]
                repeats += filled
        return wanted, repeats

    def _proposer_row(self, proposed: Proposed, rates: Rates, coin: Random) -> Row:
        checked, rollout = proposed.checked, proposed.rollout
        is_well_formed = checked.entry is not None and checked.is_well_formed
        estimate = self._estimate(proposed, rates)
        paid: Paid = (None, {})
        if estimate is not None:
            case = Case(
                problem=proposed.task,
                text=proposed.text,
                rollout=rollout,
                verdict=estimate,
                is_well_formed=is_well_formed,
                share=self._share_of(rollout),
                label=f"proposal of {proposed.task}",
            )
            paid = self._paid(case, self._rewards.propose, self._own.propose, coin)
        return Row(
            task=proposed.task,
            role="propose",
            group=proposed.group,
            prompt_ids=rollout.prompt_ids,
            completion_ids=rollout.completion_ids,
            log_probs=rollout.known_log_probs,
            finish_reason=rollout.finish_reason,
            reward=paid[0],
            own_rewards=paid[1],
            is_correct=checked.entry is not None and not checked.reason,
            is_well_formed=is_well_formed,
        )

    def _estimate(self, proposed: Proposed, rates: Rates) -> Estimate | None:
        """What the proposal's reward depends on; None if it cannot be judged fairly."""
        checked = proposed.checked
        if checked.reason in UNFAIR or not proposed.rollout.is_finite:
            return None
        is_flat = checked.reason == REPEAT and self._azr.variants.repeats == "flat"
        if checked.entry is None or not checked.is_well_formed or is_flat:
            return Estimate(checked)
        solved = rates[proposed.task, checked.entry.key]
        return Estimate(checked, solved.successes, len(solved.judged)) if len(solved.judged) >= 2 else None

    def _solver_rows(self, solved: Solved, coin: Random) -> list[Row]:
        style, entry = self._tools.style, solved.wanted.entry
        rows = []
        for rollout, text, judged in zip(solved.rollouts, solved.texts, solved.verdicts, strict=True):
            is_well_formed = style.is_well_formed(entry.task, text)
            paid: Paid = (None, {})
            if judged.verdict is not Correctness.UNKNOWN:
                case = Case(
                    problem=entry,
                    text=text,
                    rollout=rollout,
                    verdict=judged,
                    is_well_formed=is_well_formed,
                    share=self._share_of(rollout),
                    label=f"task {entry.key} of {entry.task}",
                )
                paid = self._paid(case, self._rewards.solve, self._own.solve, coin)
            rows.append(
                Row(
                    task=entry.task,
                    role="solve",
                    group=solved.group,
                    prompt_ids=rollout.prompt_ids,
                    completion_ids=rollout.completion_ids,
                    log_probs=rollout.known_log_probs,
                    finish_reason=rollout.finish_reason,
                    reward=paid[0],
                    own_rewards=paid[1],
                    is_correct=is_well_formed and judged.verdict is Correctness.CORRECT,
                    is_well_formed=is_well_formed,
                    is_worked=style.is_worked(entry.task, text),
                )
            )
        return rows

    def _paid(
        self, case: AnyCase, rewards: Sequence[Reward[AnyCase]], own: Sequence[Reward[AnyCase]], coin: Random
    ) -> Paid:
        found = score(case, rewards)
        if self._azr.variants.random_rewards:
            found = tossed(found, coin, SELF_PLAY_COIN)
        return found.total, {part.name: found.parts[part.name] for part in own}

    def _share_of(self, rollout: Rollout) -> float:
        return len(rollout.completion_ids) / self._tools.profile.sampling.max_completion_tokens

    def _coin(self, step: int) -> Random:
        """The coin of `azr.variants.random_rewards`, whose tosses replace all rewards that are not None."""
        return stream(self._seed, step, "random rewards")


def not_finite(rollouts: Iterable[Rollout]) -> float:
    """The number of rollouts with a value that is not finite. (pure)"""
    return float(sum(not one.is_finite for one in rollouts))


def with_rate(entry: Entry, solved: Solved) -> Entry:
    """The entry with its solve rate, unchanged if no rollout could be judged. (pure)"""
    if not solved.judged:
        return entry
    return replace(entry, solve_rate=solved.successes / len(solved.judged))
