"""The order of problems: each epoch in a random order of its own, or from easy to hard.

`Order` is registered under one name in either case, because the second is known only once difficulties are measured.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from workers.cycle.cursor import Cursor
from workers.cycle.cursor import Place as CursorPlace
from workers.grpo.curriculum import Curriculum
from workers.grpo.curriculum import Place as StagePlace
from workers.problems.problem import Problems


class Order:
    """Draws problems by number. Registered: a checkpoint holds its exact position."""

    filename = "order.json"

    def __init__(self, inner: Cursor | Curriculum | None = None) -> None:
        """inner: None until the difficulties are measured; until then nothing can be drawn or saved."""
        self.inner = inner

    def copy(self) -> Order:
        """One that moves by itself."""
        return Order(copy(self.inner))

    @property
    def _known(self) -> Cursor | Curriculum:
        assert self.inner is not None, "the order is not known before the difficulties are measured"
        return self.inner

    def peek(self, count: int) -> tuple[list[int], CursorPlace | StagePlace]:
        """The next `count` problems, and the place after them; nothing moves. A larger `count` starts with the same
        ones.

        Raises Exhausted if the file has ended and the profile says stop; near the end it may return fewer.
        """
        return self._known.peek(count)

    def move(self, cursor: CursorPlace | None, stage: StagePlace | None) -> None:
        """Move to a place that `peek` returned."""
        inner = self._known
        if isinstance(inner, Cursor) and cursor is not None:
            inner.place = cursor
        elif isinstance(inner, Curriculum) and stage is not None:
            inner.place = stage

    def step_done(self, accuracy: float, uniform_share: float) -> bool:
        """Record a step. Returns whether it opened the curriculum's next stage."""
        return isinstance(self.inner, Curriculum) and self.inner.step_done(accuracy, uniform_share)

    @property
    def metrics(self) -> dict[str, float]:
        """Reading progress, for display."""
        inner = self.inner
        if isinstance(inner, Curriculum):
            return {
                "problems": float(sum(map(len, inner.parts))),
                "problems_drawn": float(sum(inner.place.drawn)),
                "stage": float(inner.place.stage + 1),
                "stages": float(len(inner.parts)),
                "stage_steps": float(inner.place.steps),
            }
        if isinstance(inner, Cursor):
            drawn = inner.place.epoch * inner.size + inner.place.position
            return {"problems": float(inner.size), "problems_drawn": float(drawn), "epoch": float(inner.place.epoch)}
        return {}

    def save(self, path: Path) -> None:
        self._known.save(path)

    @classmethod
    def has_stages(cls, checkpoint: Path) -> bool:
        """Whether the checkpoint in this directory was trained in stages."""
        return "place" in msgspec.json.decode((checkpoint / cls.filename).read_bytes())

    def load(self, path: Path) -> None:
        """Raises LonghaulError (INPUT) if the checkpoint holds a place of the other kind."""
        inner = self._known
        is_staged = self.has_stages(path.parent)
        if is_staged != isinstance(inner, Curriculum):
            raise LonghaulError(
                f"checkpoint {path.parent.name} was trained {'in stages' if is_staged else 'without stages'}, and the "
                f"problems come {'in stages' if not is_staged else 'without stages'} now",
                kept="the checkpoint, unchanged; nothing was loaded",
                next_command=(
                    "restore difficulties.jsonl of the run directory, or: python -m orchestrator run --run NEW-NAME"
                    if is_staged
                    else "python -m orchestrator run --set grpo.sent.on_stale=shuffle   (goes on as it began)"
                ),
                exit_code=ExitCode.INPUT,
            )
        inner.load(path)


class _Saved(Struct, frozen=True, omit_defaults=True):
    digest: str
    problems: int
    revisions: dict[str, str] = {}
    """Hub name -> commit that was read."""


class ProblemFile:
    """The problems that the order refers to. Registered: in a changed file the same numbers would mean other rows."""

    filename = "problems.json"

    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    def save(self, path: Path) -> None:
        found = self._problems
        path.write_bytes(msgspec.json.encode(_Saved(found.digest, len(found.problems), found.revisions)))

    @classmethod
    def revisions(cls, checkpoint: Path | None) -> dict[str, str]:
        """The commits of the hub's data sets that a run has read; none before its first checkpoint."""
        if checkpoint is None:
            return {}
        return msgspec.json.decode((checkpoint / cls.filename).read_bytes(), type=_Saved).revisions

    def load(self, path: Path) -> None:
        """Raises LonghaulError (INPUT) if the problems differ from those of the checkpoint."""
        saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
        if saved.digest != self._problems.digest:
            raise LonghaulError(
                f"the problems {self._problems.path} have changed since checkpoint {path.parent.name}: "
                f"{saved.problems} then, {len(self._problems.problems)} now, or others",
                kept="the checkpoint, unchanged; nothing was loaded",
                next_command="restore the file, or: python -m orchestrator run --run NEW-NAME",
                exit_code=ExitCode.INPUT,
            )
