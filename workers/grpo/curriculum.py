"""SENT (arXiv 2512.04359): problems from easy to hard in stages. Decides which come next, when a stage opens.

Decisions are pure functions of a `Place`; `Curriculum` holds the place, and a checkpoint saves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.grpo import Sent
from workers.grpo.difficulty import Difficulty, Measured, stages
from workers.rng import derive, stream

DECAY = 0.95
"""Weight of the old value in the running means, which start with a stage's first step."""


class Place(Struct, frozen=True):
    """Position in the curriculum. `stage`: from 0; equal to the number of stages once all are open and drawn alike."""

    stage: int = 0
    steps: int = 0
    """Steps completed in this stage."""
    accuracy: float | None = None
    """Running mean in this stage; None before its first step."""
    uniform: float | None = None
    drawn: tuple[int, ...] = ()
    """Problems drawn so far: from each stage, then from all together. Each is the position in a permutation."""


def first_place(num_stages: int) -> Place:
    return Place(drawn=(0,) * (num_stages + 1))


def advance(place: Place, accuracy: float, uniform_share: float, sent: Sent) -> Place:
    """The place after a step with this share of right answers and of uniform groups. (pure)

    The next stage opens after `min_steps` once the running accuracy or the running share of uniform groups is high, and
    after `max_steps` in any case. Stages never go back.
    """
    num_stages = len(place.drawn) - 1
    steps = place.steps + 1
    mean_accuracy, mean_uniform = _moved(place.accuracy, accuracy), _moved(place.uniform, uniform_share)
    is_learnt = mean_accuracy >= sent.accuracy or mean_uniform >= sent.uniform
    opens = (steps >= sent.min_steps and is_learnt) or steps >= sent.max_steps
    if opens and place.stage < num_stages:
        return Place(place.stage + 1, drawn=place.drawn)
    return Place(place.stage, steps, mean_accuracy, mean_uniform, place.drawn)


def _moved(mean: float | None, value: float) -> float:
    return value if mean is None else DECAY * mean + (1 - DECAY) * value


def draw(
    place: Place, parts: Sequence[Sequence[int]], count: int, *, seed: int, replay: float
) -> tuple[list[int], Place]:
    """The next `count` problems, and the place after them. (pure)

    With probability `replay` a draw comes from an earlier stage, each equally likely. Within a stage every pass has its
    own permutation. A draw's randomness depends only on its number, so the place is the only state.
    """
    numbers, drawn = [], list(place.drawn)
    for _ in range(count):
        source = place.stage
        if 0 < source < len(parts):
            chance = stream(seed, sum(drawn), "curriculum stage")
            if chance.random() < replay:
                source = chance.randrange(source)
        members = [one for part in parts for one in part] if source == len(parts) else list(parts[source])
        turn, position = divmod(drawn[source], len(members))
        Random(derive(seed, turn, "curriculum order", source)).shuffle(members)
        numbers.append(members[position])
        drawn[source] += 1
    return numbers, msgspec.structs.replace(place, drawn=tuple(drawn))


def curriculum_of(difficulties: Sequence[Difficulty], measured: Measured, sent: Sent, seed: int) -> Curriculum:
    """The curriculum of a profile. Raises LonghaulError (INPUT) if there are fewer problems than stages."""
    try:
        parts = stages(difficulties, sent.stages, sent.saturated)
    except ValueError as error:
        raise LonghaulError(
            f"no curriculum: {error}",
            kept="the measured difficulties",
            next_command="the same command with --set grpo.sent.stages=1 or --set grpo.sent.saturated=keep",
            exit_code=ExitCode.INPUT,
        ) from error
    key = f"{measured.digest}/{sent.stages}/{sent.saturated}"
    return Curriculum(parts, sent, seed=seed, digest=hashlib.sha256(key.encode()).hexdigest())


class _Saved(Struct, frozen=True):
    digest: str
    place: Place


class Curriculum:
    """Registered: a checkpoint holds its place. digest: of model, data and settings that the stages were made from."""

    filename = "curriculum.json"

    def __init__(self, parts: Sequence[Sequence[int]], sent: Sent, *, seed: int, digest: str) -> None:
        if not parts or not all(parts):
            raise ValueError("a stage without problems")
        self.parts, self._sent, self._seed, self._digest = parts, sent, seed, digest
        self.place = first_place(len(parts))

    def peek(self, count: int) -> tuple[list[int], Place]:
        """The next `count` problems, and the place after them; nothing moves until `place` is set."""
        return draw(self.place, self.parts, count, seed=self._seed, replay=self._sent.replay)

    def step_done(self, accuracy: float, uniform_share: float) -> bool:
        """Record a step. Returns whether it opened the next stage."""
        before = self.place.stage
        self.place = advance(self.place, accuracy, uniform_share, self._sent)
        return self.place.stage > before

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(_Saved(self._digest, self.place)))

    def load(self, path: Path) -> None:
        """Raises LonghaulError (INPUT) if the saved place belongs to other stages."""
        saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
        if saved.digest != self._digest or len(saved.place.drawn) != len(self.place.drawn):
            raise LonghaulError(
                f"the curriculum of {path.parent.name} was made from other data, another model or other settings "
                f"({saved.digest[:8]}; now {self._digest[:8]})",
                kept="the checkpoint, unchanged; nothing was loaded",
                next_command="python -m orchestrator run --run NEW-NAME",
                exit_code=ExitCode.INPUT,
            )
        self.place = saved.place
