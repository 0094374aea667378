"""The replica of each rank: policy, optimiser, update and rollout engine, and the calls that it serves.

The leader's trainer calls it through a `RankGroup`, which makes the same call on every rank. Rank 0 uses the same
methods, so each operation has one implementation.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from state.registry import Stateful
from workers.contract import NODE_VARIABLE
from workers.memory.backoff import Sizes
from workers.memory.phases import memory_of
from workers.models import fast_graphs, fp8_check, optimizer
from workers.models.parallel import Several, Single, parallel_of
from workers.models.plain import reason_of, row_tokens_for
from workers.models.policy import open_policy
from workers.models.torch_setup import device_of, set_up_torch
from workers.rank_group import calls
from workers.rank_group.wire import Call, Found
from workers.ranks.group import ALONE, Group
from workers.ranks.own_work import OwnWork
from workers.rollout.engine import OnEnd, Request, Rollout, Sampling
from workers.rollout.free_rows import widen
from workers.rollout.probe import probe
from workers.rollout.sampler import sampler_of
from workers.rollout.select import Warn, engine_of

log = logging.getLogger("worker")


class Update(Protocol):
    """Turns minibatches into gradients, for self-play or GRPO."""

    parallel: Single

    def forget_gradients(self) -> None: ...


@dataclass(frozen=True)
class Setting:
    """How to build a rank. join: joins the process group, called after this rank's model is loaded. The default is a
    rank on its own."""

    profile: Profile
    head: Path | None
    isolate: bool = False
    reductions: int = 0
    warn: Warn = log.warning
    join: Callable[[torch.device], Group] = field(default=lambda device: ALONE)


Handlers = Mapping[type[Call[Any]], Callable[[Any], Any]]


class Replica:
    """Everything that the heavy work of a step needs."""

    def __init__(self, setting: Setting) -> None:
        profile = self.profile = setting.profile
        device = device_of(profile)
        set_up_torch(profile, isolate=setting.isolate)
        if profile.model.fp8:
            fp8_check.require_device(device)
        self.policy = open_policy(profile, setting.head, device)
        self.model = self.policy.model
        if profile.model.fp8:
            fp8_check.require_layers(self.model)
        self._warn = setting.warn
        self._fp8: dict[str, float] = {}
        """Metrics of the check of products in 8 bits; empty without them."""
        if setting.isolate:  # fault isolation reads every number, which a CUDA graph does not allow
            fast_graphs.allow(self.model, with_graphs=False)
        self._may_capture = fast_graphs.may_capture(self.model)
        self.memory = memory_of(profile, self.model, setting.warn, self._held_bytes, lambda: self.engine.cache_bytes)
        self._reductions = setting.reductions
        self.group = setting.join(device)
        if self.group.size > 1:
            _refuse_plain(self.model)
        self.parallel = parallel_of(self.model, self.group)
        self.optimizer = optimizer.build(self.model, profile.optimizer, self.parallel.parameters)
        self.state = optimizer.OptimizerState(self.optimizer, self.model, self.parallel.parts)
        self.sampler = sampler_of(profile, setting.head, self.model)
        self.engine = engine_of(
            self.drawn_model, profile, self.policy.tokenizer, reductions=setting.reductions, warn=setting.warn
        )
        self._on_end: OnEnd | None = None
        self.update: Any = self.make_update()
        self._items: dict[str, Stateful] = {item.filename: item for item in (*self.policy.items, self.state)}

    @property
    def handlers(self) -> Handlers:
        """Call type -> its handler. A follower understands only these calls."""
        return {
            calls.Generate: self.generate,
            calls.Rest: lambda _: self.rest(),
            calls.Resize: lambda asked: self.resize(asked.sizes),
            calls.Widen: self.widen,
            calls.SetRows: lambda asked: self.engine.set_rows(asked.rows),
            calls.DropCache: lambda _: self.engine.drop_cache(),
            calls.Load: self.load,
            calls.Save: self.save,
            calls.Probe: lambda _: self.probe(),
            calls.Rehearse: lambda _: self.rehearse(),
            calls.Reserve: lambda _: self.reserve(),
            calls.TakeFigures: lambda _: self.take_figures(),
        }

    @property
    def drawn_model(self) -> Any:
        """The model that the engine reads."""
        return self.model if self.sampler is None else self.sampler.model

    def rest(self) -> None:
        """Free what the engine may not keep while the trainer works. On a device of its own, `renew_sampler` does: it
        may be drawing now."""
        if self.sampler is None:
            self.engine.rest()

    def renew_sampler(self) -> None:
        """Copy the present weights to the sampler, if there is one. Nothing may be drawn meanwhile."""
        if self.sampler is not None:
            self.engine.rest()
            self.sampler.copy_weights()

    def do(self, asked: Call[Found]) -> Found:
        """Raises KeyError for a call without a handler."""
        found: Found = self.handlers[type(asked)](asked)
        return found

    def _held_bytes(self) -> int:
        """Bytes held across phases: CUDA graphs of passes, and a cache that is kept."""
        return fast_graphs.held_bytes(self.model) + (self.engine.cache_bytes if self.sampler is None else 0)

    def make_update(self) -> Any:
        """The `Update` of the worker's kind."""
        raise NotImplementedError

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Measures a part of the work on a follower; the leader's trainer measures its own."""
        return self.memory.phase(name) if self.group.rank else nullcontext()

    @contextmanager
    def listening(self, on_end: OnEnd | None) -> Iterator[None]:
        """Inside, `on_end` is told of this rank's rollouts when they end."""
        self._on_end = on_end
        try:
            yield
        finally:
            self._on_end = None

    def generate(self, asked: calls.Generate) -> list[Rollout]:
        with self.phase("rollout"):
            if not isinstance(self.parallel, Several):
                return self.engine.generate(asked.requests, asked.sampling, self._on_end)
            with self.parallel.whole():
                with self.parallel.stopwatch.computing():
                    rollouts = self.engine.generate(asked.requests, asked.sampling, self._on_end)
                lengths = [len(one.completion_ids) for one in rollouts]
                prompts = {one.prompt_ids for one in asked.requests}
                read = sum(map(len, prompts))
                self.parallel.stopwatch.add(read=read, decoded=sum(lengths), longest=max(lengths, default=0))
                return rollouts

    def take_figures(self) -> calls.Figures:
        own = OwnWork()
        if isinstance(self.parallel, Several):
            own = self.parallel.stopwatch.take(os.environ.get(NODE_VARIABLE, ""))
        return calls.Figures(self.memory.take() | self._fp8, own)

    @property
    def state_files(self) -> list[str]:
        """Names of the checkpoint files of the model and its optimiser."""
        return list(self._items)

    def micro_batch(self, asked: int) -> int:
        """Initial number of rollouts per forward pass. Running out of memory in a pass that all ranks share ends the
        attempt, so the next attempt must start with a smaller number."""
        return max(1, asked >> self._reductions) if self.group.size > 1 else asked

    @property
    def keeps_graphs(self) -> bool:
        """Whether to keep idle CUDA graphs, of passes or of decode steps."""
        return fast_graphs.may_capture(self.model) or self.engine.keeps_cache

    def widen(self, asked: calls.Widen) -> None:
        """Decode as many rollouts side by side as fit into this rank's memory while nothing trains."""
        widen(
            self.engine,
            self.drawn_model,
            self.profile,
            prompt_tokens=asked.prompt_tokens,
            answers=asked.answers,
            reserved_bytes=self.parallel.gathered_bytes,
        )

    def resize(self, sizes: Sizes) -> None:
        self.engine.set_rows(sizes.rollout_rows)
        fast_graphs.allow(self.model, sizes.graphs and self._may_capture)
        if not sizes.graphs:
            self.engine.forget_cache()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def rehearse(self) -> dict[str, Any]:
        """Run the largest shapes of a step, without changing any state."""
        raise NotImplementedError

    def longest(self) -> tuple[list[Request], Sampling]:
        """A full rollout batch: prompts of the most tokens, and how many are drawn after them."""
        raise NotImplementedError

    def reserve(self) -> None:
        """Allocate the cache for a full rollout batch, as rehearsing it does."""
        with self.memory.phase("rollout"), self.parallel.reading():
            self.engine.reserve(*self.longest())
            self.engine.rest()
        self.memory.forget()

    def probe(self) -> dict[str, Any]:
        """Run `workers.rollout.probe.probe` on this rank's engine and trainer."""
        row_tokens = row_tokens_for(self.model, self.profile.optimizer.row_tokens)
        self.renew_sampler()
        with self.parallel.reading():
            facts = probe(self.model, self.engine, self.profile, row_tokens=row_tokens)
        if self.profile.model.fp8:
            chosen = fp8_check.choose(self.model, self.profile, row_tokens, self.group)
            self._fp8 = chosen.metrics
            facts |= {"text": f"{facts['text']}; {chosen.text}", **self._fp8}
            if not chosen.is_right:
                self._warn(chosen.text)
        return facts

    def load(self, asked: calls.Load) -> None:
        item, path = self._items[asked.filename], Path(asked.path)
        if item is self.state:
            item.load(path)
            return
        with self.parallel.whole():
            item.load(path)
            self.parallel.keep()

    def save(self, asked: calls.Save) -> None:
        """Rank 0 writes the same file as with one GPU; the others help to gather its content."""
        item, path = self._items[asked.filename], Path(asked.path)
        with self.parallel.whole() if item is not self.state else nullcontext():
            if self.group.rank == 0:
                item.save(path)
            elif item is self.state and self.parallel.parts is not None:
                for _ in self.state.stored():
                    pass


def _refuse_plain(model: Any) -> None:
    if reason := reason_of(model):
        raise LonghaulError(
            f"run.gpus > 1 needs a model that our own code computes; plain transformers computes this one: {reason}",
            kept="the run, unchanged",
            next_command="python -m orchestrator run --set run.gpus=1",
            exit_code=ExitCode.INPUT,
        )


def highest(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    """The maximum over all ranks of each figure. (pure)"""
    return {
        name: max(one[name] for one in figures if name in one) for name in dict.fromkeys(n for f in figures for n in f)
    }
