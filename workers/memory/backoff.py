"""How much a trainer does side by side, and how that becomes less when the GPU runs out of memory. (pure)

CUDA graphs that wait for their next use go first. Rollouts have their own halving; the update has a ladder:
micro-batches down to one rollout, then the output head down to 16 places. None of it changes what is learnt beyond
rounding: divisors are those of the whole minibatch, and a rollout's draws are its own. So a step that ran out of memory
is simply done again.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict, replace

LEAST_HEAD_ROWS = 16
"""Fewer save nothing worth the time: 16 rows of 150 000 logits are 23 MiB with all their copies."""
CLEAN_STEPS = 200
"""Steps without running out of memory after which one halving is taken back, once in a run."""
ROLLOUT = "rollout"
"""The phase that shrinks its own rows; all others go down the ladder of the update."""


class Sizes(Struct, frozen=True):
    """What takes memory by being done side by side."""

    micro_batch: int
    """Rollouts of one forward and backward pass."""
    head_rows: int
    """Places of which the output head makes logits at one time."""
    rollout_rows: int
    """Rollouts that decode side by side."""
    graphs: bool = False
    """Whether CUDA graphs stay while nothing runs them: of training passes, and of decode steps with their cache."""

    def __str__(self) -> str:
        return (
            f"micro-batches of {self.micro_batch}, {self.head_rows} rows of logits and {self.rollout_rows} rollouts "
            f"at one time{', CUDA graphs kept' if self.graphs else ''}"
        )


def smaller(sizes: Sizes, phase: str) -> Sizes | None:
    """The sizes to try after running out of memory in `phase`; None: nothing is left to halve."""
    if sizes.graphs:
        return replace(sizes, graphs=False)
    if phase == ROLLOUT:
        return replace(sizes, rollout_rows=_half(sizes.rollout_rows)) if sizes.rollout_rows > 1 else None
    if sizes.micro_batch > 1:
        return replace(sizes, micro_batch=_half(sizes.micro_batch))
    if sizes.head_rows > LEAST_HEAD_ROWS:
        return replace(sizes, head_rows=max(LEAST_HEAD_ROWS, _half(sizes.head_rows)))
    return None


def larger(sizes: Sizes, most: Sizes) -> Sizes:
    """The last rung of the ladder taken back; where the update is whole, the rollouts'. At most `most`."""
    for name in ("head_rows", "micro_batch", "rollout_rows"):
        now, limit = getattr(sizes, name), getattr(most, name)
        if now < limit:
            return replace(sizes, **{name: min(2 * now, limit)})
    return replace(sizes, graphs=most.graphs)


def _half(number: int) -> int:
    return -(-number // 2)


class Backoff(Struct):
    """The sizes of a run as they are now, with what decides when they change. Part of every checkpoint."""

    asked: Sizes | None = None
    """What the profile asks for; where that changes, the new number holds."""
    now: Sizes | None = None
    clean_steps: int = 0
    """Steps since memory ran out last."""
    has_grown: bool = False

    def begin(self, asked: Sizes) -> Sizes:
        """The sizes to start with: those that an earlier attempt came down to, but for what is more than asked then."""
        if self.asked is None or self.now is None:
            self.asked = self.now = asked
            return asked
        before, now = asdict(self.asked), asdict(self.now)
        # An attempt that ended for lack of memory lowers what the next one asks for: that must not raise what it gets.
        kept = {
            name: now[name] if value == before[name] else min(value, now[name]) if value < before[name] else value
            for name, value in asdict(asked).items()
        }
        self.asked, self.now = asked, Sizes(**kept)
        return self.now

    def halve(self, phase: str) -> Sizes | None:
        """After running out of memory in `phase`: the sizes to go on with, None where nothing is left to halve."""
        assert self.now is not None
        found = smaller(self.now, phase)
        if found is not None:
            self.now, self.clean_steps = found, 0
        return found

    def step_done(self) -> Sizes | None:
        """After a step: the sizes to go on with where they grow, else None."""
        if self.asked is None or self.now is None or self.now == self.asked:
            return None
        self.clean_steps += 1
        if self.has_grown or self.clean_steps < CLEAN_STEPS:
            return None
        self.now, self.has_grown = larger(self.now, self.asked), True
        return self.now
