"""The rollout engine that the profile names, serving at most `max_rows` requests side by side.

Where it cannot start, or later cannot go on, the next of `sampling.fallback` takes its place and a person is told; with
none left the run stops with every reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from profiles.architecture import PLAIN_ENGINE
from profiles.errors import ExitCode, LonghaulError
from profiles.passes import is_corrected
from profiles.schema import Profile
from profiles.shapes import shape_of
from workers.memory.cap import share_of_cap, usable_bytes
from workers.memory.phases import room_beside_trainer
from workers.models.load import Tokenizer
from workers.models.plain import reason_of
from workers.rollout.engine import Decode, EngineUnavailable, Request, Rollout, RolloutEngine, Sampling
from workers.rollout.graph.engine import GraphEngine, reason_against
from workers.rollout.native import NativeEngine

log = logging.getLogger("worker")

TIS_CAP = 2.0
"""Weight that a token has at most where the profile leaves it to the engine."""

Warn = Callable[[str], None]
Start = Callable[[], RolloutEngine]


class Portions:
    """Any engine, asked for `max_rows` rollouts at a time: halving it halves the cache that a batch needs."""

    has_queue = True

    def __init__(self, engine: RolloutEngine | Fallback, max_rows: int = 512) -> None:
        self._engine = engine
        self.max_rows = max_rows
        self.on_change: Callable[[RolloutEngine], object] = lambda engine: None
        """Called with an engine that has taken another's place, before it draws anything."""

    @property
    def engine(self) -> RolloutEngine:
        """The one that works now."""
        return self._engine.engine if isinstance(self._engine, Fallback) else self._engine

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Rollout]:
        """Like prompt lengths come together; the rollouts are in the order of the requests."""
        waiting = sorted(range(len(requests)), key=lambda number: len(requests[number].prompt_ids))
        found: dict[int, Rollout] = {}
        while waiting:
            # Some have a queue of their own; the others decode all rows that they are given.
            chosen = waiting if self.engine.has_queue else waiting[: self.max_rows]
            if isinstance(self.engine, GraphEngine):
                self.engine.max_rows = self.max_rows
            try:
                rollouts = self.engine.generate([requests[number] for number in chosen], sampling)
            except EngineUnavailable as error:
                if not isinstance(self._engine, Fallback):
                    raise
                reason = str(error)
            else:
                found.update(zip(chosen, rollouts, strict=True))
                waiting = waiting[len(chosen) :]
                continue
            # Outside the handler: its traceback holds what the next engine needs the room of.
            self._engine.replace(reason)
            self.on_change(self.engine)
        return [found[number] for number in range(len(requests))]

    @property
    def keeps_cache(self) -> bool:
        """Whether the engine may hold a cache, with graphs over it, while the trainer works."""
        return isinstance(self.engine, GraphEngine) and self.engine.keep_bytes > 0

    def forget_cache(self) -> None:
        """Memory has ended: from now on it is given back whenever the trainer works."""
        if isinstance(self.engine, GraphEngine):
            self.engine.keep_bytes = 0
            self.engine.close()

    def drop_cache(self) -> None:
        """Free the cache; the next call makes one of the size it needs."""
        if isinstance(self.engine, GraphEngine):
            self.engine.close()

    @property
    def cache_bytes(self) -> int:
        """Of the cache that an engine keeps from call to call."""
        return self.engine.cache_bytes if isinstance(self.engine, GraphEngine) else 0

    def rest(self) -> None:
        self._engine.rest()

    def close(self) -> None:
        self._engine.close()


@dataclass(frozen=True)
class Remedy:
    """What a person is told where no engine is left; the default is for a run."""

    kept: str = "the head, and the rollouts of finished steps"
    next_command: str = (
        "remedy the reason, or name an engine that may take over: "
        "python -m orchestrator run --set 'sampling.fallback=[\"native\"]'"
    )


class Fallback:
    """The first engine that works, in the order given. starts: name -> what makes the engine."""

    def __init__(self, starts: dict[str, Start], warn: Warn, remedy: Remedy = Remedy()) -> None:
        """Raises LonghaulError (INPUT) where none can start."""
        self._waiting = list(starts.items())
        self._warn, self._remedy = warn, remedy
        self._reasons: list[str] = []
        self.engine = self._next(ExitCode.INPUT)

    def _next(self, exit_code: ExitCode) -> RolloutEngine:
        while self._waiting:
            name, start = self._waiting.pop(0)
            try:
                engine = start()
            except EngineUnavailable as error:
                self._reasons.append(f"{name}: {error}")
                continue
            if self._reasons:
                self._warn(f"rollouts come from the engine {name} now. {self._reasons[-1]}")
            return engine
        raise LonghaulError(
            f"no rollout engine works; {'; '.join(self._reasons)}",
            kept=self._remedy.kept,
            next_command=self._remedy.next_command,
            exit_code=exit_code,
        )

    def replace(self, reason: str) -> None:
        """The engine cannot go on; the next one starts. Raises LonghaulError (INTERNAL) where none is left."""
        self._reasons.append(f"{type(self.engine).__name__}: {reason}")
        self.engine.close()
        self.engine = self._next(ExitCode.INTERNAL)

    def rest(self) -> None:
        self.engine.rest()

    def close(self) -> None:
        self.engine.close()


def engine_of(
    model: Any,
    profile: Profile,
    tokenizer: Tokenizer,
    *,
    reductions: int = 0,
    warn: Warn = log.warning,
    remedy: Remedy = Remedy(),
) -> Portions:
    """The profile's engine.

    reductions: how often the batch was halved, because memory ran out in earlier attempts. Raises LonghaulError
    (INPUT) where neither the engine nor one of its fallbacks can start.
    """
    names: tuple[str, ...] = (profile.sampling.engine, *profile.sampling.fallback)
    if reason := reason_of(model):
        if profile.sampling.engine != PLAIN_ENGINE:
            log.info("rollouts by %s instead of %s: %s", PLAIN_ENGINE, profile.sampling.engine, reason)
        names = (PLAIN_ENGINE,)
    starts: dict[str, Start] = {name: _start_of(name, model, profile, tokenizer) for name in names}
    return Portions(Fallback(starts, warn, remedy), max(1, profile.sampling.max_rows >> reductions))


def _start_of(name: str, model: Any, profile: Profile, tokenizer: Tokenizer) -> Start:
    decode = tokenizer.decode

    def start() -> RolloutEngine:
        if name in ("native", "auto"):  # where no planner has decided
            return native_engine(model, decode, profile)
        if name == "hf":
            from workers.rollout.hf import HfEngine

            return HfEngine(model, decode)
        if name == "continuous":
            from workers.rollout.continuous import ContinuousEngine

            return ContinuousEngine(model, decode)
        from workers.rollout.vllm import VllmEngine

        longest = profile.sampling.max_prompt_tokens + profile.sampling.max_completion_tokens
        share = profile.vllm.gpu_memory_utilization * share_of_cap(profile)
        knobs = replace(profile.vllm, gpu_memory_utilization=share)
        return VllmEngine(model, knobs, max_tokens=longest, tokenizer=tokenizer)

    return start


def native_engine(model: Any, decode: Decode | None, profile: Profile | None = None) -> RolloutEngine:
    """The decoder of our own that this model and this machine can run: on a GPU captured steps over a static cache.

    profile: of the training that it shares the GPU with. Raises EngineUnavailable where neither can.
    """
    if model.device.type == "cuda":
        if not (reason := reason_against(model)):
            if profile is None:
                return GraphEngine(model, decode)
            room = room_beside_trainer(profile, shape_of(model.config.to_dict()), usable_bytes(model.device))
            return GraphEngine(model, decode, keep_bytes=room)
        log.warning("decoding without CUDA graphs: %s", reason)
    return NativeEngine(model, decode)


def tis_cap_of(profile: Profile) -> float:
    """The cap of importance weights; 0: the engine's log_probs are taken for the trainer's. (pure)"""
    if profile.optimizer.tis_cap >= 0:
        return profile.optimizer.tis_cap
    return TIS_CAP if is_corrected(profile) else 0.0
