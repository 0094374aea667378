"""How much a trainer does at one time, and how that shrinks after the GPU runs out of memory. (pure)

CUDA graphs kept for later use are dropped first. Then the phase that failed shrinks: rollouts halve by themselves; the
update halves its micro-batches down to one rollout, then the output head's rows down to 16. This changes results only
by rounding, because divisors are those of the whole minibatch and each rollout has its own random stream. So the step
that failed can simply be repeated.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict, replace

LEAST_HEAD_ROWS = 16
"""Smaller chunks save too little: 16 rows of 150 000 logits are 23 MiB with all their copies."""
CLEAN_STEPS = 200
"""Steps without an out-of-memory error after which one halving is undone, once per run."""
ROLLOUT = "rollout"
"""The phase that shrinks its own rows; all others shrink the update."""


class Sizes(Struct, frozen=True):
    """The sizes that determine memory use."""

    micro_batch: int
    """Rollouts in one forward and backward pass."""
    head_rows: int
    """Positions for which the output head computes logits at one time."""
    rollout_rows: int
    """Rollouts that decode side by side."""
    graphs: bool = False
    """Whether idle CUDA graphs are kept: of training passes, and of decode steps with their cache."""

    def __str__(self) -> str:
        return (
            f"micro-batches of {self.micro_batch}, {self.head_rows} rows of logits and {self.rollout_rows} rollouts "
            f"at one time{', CUDA graphs kept' if self.graphs else ''}"
        )


def smaller(sizes: Sizes, phase: str) -> Sizes | None:
    """The sizes to try after running out of memory in `phase`; None if nothing is left to halve."""
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
    """Undo the last halving: of the update, or if that is whole, of the rollouts. At most `most`."""
    for name in ("head_rows", "micro_batch", "rollout_rows"):
        now, limit = getattr(sizes, name), getattr(most, name)
        if now < limit:
            return replace(sizes, **{name: min(2 * now, limit)})
    return replace(sizes, graphs=most.graphs)


def _half(number: int) -> int:
    return -(-number // 2)


class Backoff(Struct):
    """A run's current sizes, and what decides when they change. Part of every checkpoint."""

    asked: Sizes | None = None
    """The sizes that the profile asks for. If the profile changes one, the new value applies."""
    now: Sizes | None = None
    clean_steps: int = 0
    """Steps since the last out-of-memory error."""
    has_grown: bool = False

    def begin(self, asked: Sizes) -> Sizes:
        """The sizes to start with: those to which an earlier attempt was reduced, at most what is asked for now."""
        if self.asked is None or self.now is None:
            self.asked = self.now = asked
            return asked
        before, now = asdict(self.asked), asdict(self.now)
        # An attempt that ended out of memory lowers what the next one asks for; that must not raise what it gets.
        kept = {
            name: now[name] if value == before[name] else min(value, now[name]) if value < before[name] else value
            for name, value in asdict(asked).items()
        }
        self.asked, self.now = asked, Sizes(**kept)
        return self.now

    def halve(self, phase: str) -> Sizes | None:
        """After running out of memory in `phase`: the sizes to continue with, None if nothing is left to halve."""
        assert self.now is not None
        found = smaller(self.now, phase)
        if found is not None:
            self.now, self.clean_steps = found, 0
        return found

    def step_done(self) -> Sizes | None:
        """After a step: the new sizes if they grow, else None."""
        if self.asked is None or self.now is None or self.now == self.asked:
            return None
        self.clean_steps += 1
        if self.has_grown or self.clean_steps < CLEAN_STEPS:
            return None
        self.now, self.has_grown = larger(self.now, self.asked), True
        return self.now
