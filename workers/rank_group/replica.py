"""What each rank holds, and can be asked for: policy, optimiser, update, rollout engine. Alone, or one of several.

The leader's trainer asks through a `RankGroup`, which lets every rank do the same. Rank 0's part is done by these very
methods, so there is one way of doing each thing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state.registry import Stateful
from workers.memory.backoff import Sizes
from workers.memory.phases import memory_of
from workers.models import fast_graphs, optimizer
from workers.models.parallel import Single
from workers.models.plain import reason_of, row_tokens_for
from workers.models.policy import open_policy
from workers.models.torch_setup import device_of, set_up_torch
from workers.rank_group import calls
from workers.rank_group.wire import Call, Found
from workers.ranks.group import ALONE, Group
from workers.rollout.engine import Rollout
from workers.rollout.free_rows import widen
from workers.rollout.probe import probe
from workers.rollout.select import Warn, engine_of

log = logging.getLogger("worker")


class Update(Protocol):
    """Minibatches to gradients, as self-play or GRPO does it."""

    parallel: Single

    def forget_gradients(self) -> None: ...


@dataclass(frozen=True)
class Setting:
    """How a rank is built. join: meets the others, called once this rank's model is loaded; none: it is alone."""

    profile: Profile
    head: Path | None
    isolate: bool = False
    reductions: int = 0
    warn: Warn = log.warning
    join: Callable[[torch.device], Group] = field(default=lambda device: ALONE)


Handlers = Mapping[type[Call[Any]], Callable[[Any], Any]]


class Replica:
    """All that a step's heavy work needs."""

    def __init__(self, setting: Setting) -> None:
        profile = self.profile = setting.profile
        device = device_of(profile)
        set_up_torch(profile, isolate=setting.isolate)
        self.policy = open_policy(profile, setting.head, device)
        self.model = self.policy.model
        if setting.isolate:  # what looks for the cause then reads every number, which a graph forbids
            fast_graphs.allow(self.model, with_graphs=False)
        self._may_capture = fast_graphs.may_capture(self.model)
        self.memory = memory_of(profile, self.model, setting.warn, self._held_bytes)
        self._reductions = setting.reductions
        self.group = setting.join(device)
        self.shards: Any = None
        self.parallel = Single()
        if self.group.size > 1:
            _refuse_plain(self.model)
            from workers.models.shards import Shards

            self.parallel = self.shards = Shards(self.model, self.group)
        self.optimizer = optimizer.build(self.model, profile.optimizer, self.parallel.parameters)
        self.state = optimizer.OptimizerState(self.optimizer, self.model, self.shards)
        self.engine = engine_of(
            self.model, profile, self.policy.tokenizer, reductions=setting.reductions, warn=setting.warn
        )
        self.update: Any = self.make_update()
        self._items: dict[str, Stateful] = {item.filename: item for item in (*self.policy.items, self.state)}

    @property
    def handlers(self) -> Handlers:
        """What may be asked for -> what does it. A follower understands these calls, and no others."""
        return {
            calls.Generate: self.generate,
            calls.Rest: lambda _: self.engine.rest(),
            calls.Resize: lambda asked: self.resize(asked.sizes),
            calls.Widen: self.widen,
            calls.SetRows: lambda asked: self.set_rows(asked.rows),
            calls.DropCache: lambda _: self.engine.drop_cache(),
            calls.Load: self.load,
            calls.Save: self.save,
            calls.Probe: lambda _: self.probe(),
            calls.Rehearse: lambda _: self.rehearse(),
            calls.TakeMemory: lambda _: self.memory.take(),
        }

    def do(self, asked: Call[Found]) -> Found:
        """Raises KeyError for a call that has no handler here."""
        found: Found = self.handlers[type(asked)](asked)
        return found

    def _held_bytes(self) -> int:
        """What stays from phase to phase: graphs of passes, and a cache there is room for."""
        return fast_graphs.held_bytes(self.model) + self.engine.cache_bytes

    def make_update(self) -> Any:
        """The `Update` of the worker's kind."""
        raise NotImplementedError

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Measures a part of the work on a follower; the leader's trainer measures its own."""
        return self.memory.phase(name) if self.group.rank else nullcontext()

    def generate(self, asked: calls.Generate) -> list[Rollout]:
        with self.phase("rollout"):
            if self.shards is None:
                return self.engine.generate(asked.requests, asked.sampling)
            with self.shards.whole():
                return self.engine.generate(asked.requests, asked.sampling)

    @property
    def state_files(self) -> list[str]:
        """Names of the files that a checkpoint of the model and its optimiser has."""
        return list(self._items)

    def micro_batch(self, asked: int) -> int:
        """Rollouts of a forward pass to begin with. When memory runs out in a pass that all ranks make together, the
        attempt ends, and nothing else tells the next one of it."""
        return max(1, asked >> self._reductions) if self.group.size > 1 else asked

    @property
    def keeps_graphs(self) -> bool:
        """Whether graphs, of passes or of decode steps, stay while nothing runs them."""
        return fast_graphs.may_capture(self.model) or self.engine.keeps_cache

    def widen(self, asked: calls.Widen) -> None:
        """Draw as many rollouts side by side as this rank's memory holds while nothing trains."""
        # Weights that are sharded come together for rollouts.
        gathered = 0 if self.shards is None else sum(one.nbytes for one in self.model.parameters() if one.requires_grad)
        widen(
            self.engine,
            self.model,
            self.profile,
            prompt_tokens=asked.prompt_tokens,
            answers=asked.answers,
            reserved_bytes=gathered,
        )

    def set_rows(self, rows: int) -> None:
        self.engine.max_rows = rows

    def resize(self, sizes: Sizes) -> None:
        self.engine.max_rows = sizes.rollout_rows
        fast_graphs.allow(self.model, sizes.graphs and self._may_capture)
        if not sizes.graphs:
            self.engine.forget_cache()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def rehearse(self) -> dict[str, Any]:
        """The largest shapes of a step, without touching any state."""
        raise NotImplementedError

    def probe(self) -> dict[str, Any]:
        """As `workers.rollout.probe.probe`, of this rank's engine and trainer."""
        row_tokens = row_tokens_for(self.model, self.profile.optimizer.row_tokens)
        with self.parallel.reading():
            return probe(self.model, self.engine, self.profile, row_tokens=row_tokens)

    def load(self, asked: calls.Load) -> None:
        item, path = self._items[asked.filename], Path(asked.path)
        if self.shards is None or item is self.state:
            item.load(path)
            return
        with self.shards.whole():
            item.load(path)
            self.shards.keep()

    def save(self, asked: calls.Save) -> None:
        """Rank 0 writes the file that one GPU would write; the others help to gather what is in it."""
        item, path = self._items[asked.filename], Path(asked.path)
        if self.shards is None or (item is self.state and self.group.rank == 0):
            item.save(path)
        elif item is self.state:
            for _ in self.state.stored():
                pass
        else:
            with self.shards.whole():
                if self.group.rank == 0:
                    item.save(path)


def _refuse_plain(model: Any) -> None:
    if reason := reason_of(model):
        raise LonghaulError(
            f"run.gpus > 1 needs a model that our own code computes; plain transformers computes this one: {reason}",
            kept="the run, unchanged",
            next_command="python -m orchestrator run --set run.gpus=1",
            exit_code=ExitCode.INPUT,
        )


def highest(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each figure the highest of all ranks. (pure)"""
    return {
        name: max(one[name] for one in figures if name in one) for name in dict.fromkeys(n for f in figures for n in f)
    }
