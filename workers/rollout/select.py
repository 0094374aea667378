"""Selects the profile's rollout engine, which serves at most `max_rows` requests side by side.

If it cannot start, or later cannot continue, the next of `sampling.fallback` takes over with a warning. If none is
left, the run stops and reports every reason.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from profiles.architecture import PLAIN_ENGINE
from profiles.errors import ExitCode, LonghaulError
from profiles.passes import is_corrected
from profiles.schema import Profile
from profiles.shapes import shape_of
from workers.memory.cap import limits_of, share_of_cap
from workers.memory.phases import room_beside_trainer, room_for_prompt_graphs
from workers.models.load import Tokenizer
from workers.models.plain import reason_of
from workers.rollout.conversation import by_rounds, renumbered
from workers.rollout.engine import (
    Decode,
    EngineUnavailable,
    OnEnd,
    Request,
    Respond,
    Rollout,
    RolloutEngine,
    Sampling,
)
from workers.rollout.graph.engine import GraphEngine, reason_against
from workers.rollout.native import MAX_SHARES, NativeEngine

log = logging.getLogger("worker")

TIS_CAP = 2.0
"""Cap of a token's weight if the profile leaves the cap to the engine."""

Value = TypeVar("Value")
Warn = Callable[[str], None]
Start = Callable[[], RolloutEngine]


class Portions:
    """Wraps any engine and gives it `max_rows` requests at a time. Halving that halves the cache of a batch."""

    has_queue = True

    def __init__(self, engine: RolloutEngine | Fallback, max_rows: int = 512) -> None:
        self._engine = engine
        self._max_rows = max_rows
        self._on_change: Callable[[RolloutEngine], object] = lambda engine: None

    @property
    def engine(self) -> RolloutEngine:
        """The engine now in use."""
        return self._engine.engine if isinstance(self._engine, Fallback) else self._engine

    def replace(self, reason: str) -> None:
        """Go on with the next engine. Raises LonghaulError (INTERNAL) if no engine is left."""
        if not isinstance(self._engine, Fallback):
            raise EngineUnavailable(reason)
        self._engine.replace(reason)

    @property
    def max_rows(self) -> int:
        """Rollouts that decode side by side, at most."""
        return self._max_rows

    def set_rows(self, rows: int) -> None:
        self._max_rows = rows

    def on_change(self, call: Callable[[RolloutEngine], object]) -> None:
        """Call this with an engine that has taken another's place, before it draws anything."""
        self._on_change = call

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_end: OnEnd | None = None) -> list[Rollout]:
        """Batches prompts of similar length; returns the rollouts in the order of the requests.

        on_end: told each rollout when it ends, or with its batch if the engine does not stream. If an engine fails on
        the way, the next one draws all again, and what was told may differ from what is returned.
        """
        told: set[int] = set()
        waiting = sorted(range(len(requests)), key=lambda number: len(requests[number].prompt_ids))
        found: dict[int, Rollout] = {}
        while waiting:
            # Some have a queue of their own; the others decode all rows that they are given.
            chosen = waiting if self.engine.has_queue else waiting[: self._max_rows]
            if isinstance(self.engine, GraphEngine):
                self.engine.set_rows(self._max_rows)
            asked, tell = [requests[number] for number in chosen], _once(on_end, chosen, told)
            rollouts = self._tried(partial(self._drawn, asked, sampling, tell))
            if rollouts is None:
                continue
            found.update(zip(chosen, rollouts, strict=True))
            if on_end is not None:
                for number in set(chosen) - told:
                    on_end(number, found[number])
            waiting = waiting[len(chosen) :]
        return [found[number] for number in range(len(requests))]

    def _tried(self, work: Callable[[], Value]) -> Value | None:
        """The result of `work`; None if the engine failed in it, and another one has taken its place."""
        try:
            return work()
        except EngineUnavailable as error:
            if not isinstance(self._engine, Fallback):
                raise
            reason = str(error)
        # Outside the handler: its traceback keeps alive the memory that the next engine needs.
        self._engine.replace(reason)
        self._on_change(self.engine)
        return None

    def rehearse(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Take the memory that `generate` would. The engine `native` on a GPU needs no more than its first tokens for
        that; the others draw everything."""
        if not self._takes(lambda engine: engine.rehearse(requests, sampling)):
            self.generate(requests, sampling)

    def reserve(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Allocate the cache for these requests, as `rehearse` does, if the engine is one that keeps a cache."""
        self._takes(lambda engine: engine.reserve(requests, sampling))

    def _takes(self, take: Callable[[Any], None]) -> bool:
        """Whether the engine is `native` on a GPU, and has taken memory by `take`. If it fails, another one replaces
        it."""
        if not isinstance(self.engine, GraphEngine):
            return False
        self.engine.set_rows(self._max_rows)

        def took() -> bool:
            take(self.engine)  # not by a name of this frame, which would keep a failed one alive
            return True

        return self._tried(took) is not None

    def converse(
        self, requests: Sequence[Request], sampling: Sampling, respond: Respond, on_end: OnEnd | None = None
    ) -> list[Rollout]:
        """A conversation per request, in order of the requests; `max_rows` side by side.

        Raises EngineUnavailable if the engine fails on the way: what an environment was told cannot be taken back.
        """
        engine = self.engine
        if not isinstance(engine, NativeEngine | GraphEngine):
            return by_rounds(self.generate, requests, sampling, respond, on_end)
        waiting = sorted(range(len(requests)), key=lambda number: len(requests[number].prompt_ids))
        found: dict[int, Rollout] = {}
        at_once = max(1, len(waiting)) if engine.has_queue else self._max_rows
        for at in range(0, len(waiting), at_once):
            chosen = waiting[at : at + at_once]
            if isinstance(engine, GraphEngine):
                engine.set_rows(self._max_rows)
            tell = on_end and renumbered(on_end, chosen)
            asked = [requests[number] for number in chosen]
            found |= zip(chosen, engine.converse(asked, sampling, renumbered(respond, chosen), tell), strict=True)
        return [found[number] for number in range(len(requests))]

    def _drawn(self, requests: Sequence[Request], sampling: Sampling, on_end: OnEnd | None) -> list[Rollout]:
        engine = self.engine
        if on_end is not None and isinstance(engine, NativeEngine | GraphEngine):
            return engine.stream(requests, sampling, on_end)
        return engine.generate(requests, sampling)

    @property
    def keeps_cache(self) -> bool:
        """Whether the engine may keep a cache, and graphs over it, while the trainer works."""
        return isinstance(self.engine, GraphEngine) and self.engine.keeps_cache

    def forget_cache(self) -> None:
        """Call it after an out-of-memory error: from now on the cache is freed whenever the trainer works."""
        if isinstance(self.engine, GraphEngine):
            self.engine.forget_cache()

    def drop_cache(self) -> None:
        """Free the cache; the next call creates one of the size it needs."""
        if isinstance(self.engine, GraphEngine):
            self.engine.close()

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache that the engine keeps from call to call."""
        return self.engine.cache_bytes if isinstance(self.engine, GraphEngine) else 0

    def rest(self) -> None:
        self._engine.rest()

    def close(self) -> None:
        self._engine.close()


def _once(on_end: OnEnd | None, chosen: Sequence[int], told: set[int]) -> OnEnd | None:
    """Passes on each rollout of the chosen requests once, also where another engine has to draw it again."""
    if on_end is None:
        return None

    def pass_on(number: int, rollout: Rollout) -> None:
        if chosen[number] not in told:
            told.add(chosen[number])
            on_end(chosen[number], rollout)

    return pass_on


@dataclass(frozen=True)
class Remedy:
    """The advice if no engine is left; the default is for a run."""

    kept: str = "the head, and the rollouts of finished steps"
    next_command: str = (
        "fix the cause, or name an engine that may take over: "
        "python -m orchestrator run --set 'sampling.fallback=[\"native\"]'"
    )


class Fallback:
    """The first engine that works, in the given order. starts: name -> function that starts the engine."""

    def __init__(self, starts: dict[str, Start], warn: Warn, remedy: Remedy = Remedy()) -> None:
        """Raises LonghaulError (INPUT) if none can start."""
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
                self._warn(f"rollouts now come from the engine {name}. {self._reasons[-1]}")
            return engine
        raise LonghaulError(
            f"no rollout engine works; {'; '.join(self._reasons)}",
            kept=self._remedy.kept,
            next_command=self._remedy.next_command,
            exit_code=exit_code,
        )

    def replace(self, reason: str) -> None:
        """Start the next engine, as this one cannot continue. Raises LonghaulError (INTERNAL) if none is left."""
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

    reductions: how often earlier attempts halved the batch after running out of memory. Raises LonghaulError (INPUT) if
    neither the engine nor one of its fallbacks can start.
    """
    names: tuple[str, ...] = (profile.sampling.engine, *profile.sampling.fallback)
    if reason := reason_of(model):
        if profile.sampling.engine != PLAIN_ENGINE:
            log.info("rollouts by %s instead of %s: %s", PLAIN_ENGINE, profile.sampling.engine, reason)
        names = (PLAIN_ENGINE,)
    starts: dict[str, Start] = {}
    for name in names:
        if name == "hf" and model.device.type == "cuda":
            starts |= _captured_hf(model, profile, tokenizer)
        starts[name] = _start_of(name, model, profile, tokenizer)
    return Portions(Fallback(starts, warn, remedy), max(1, profile.sampling.max_rows >> reductions))


def _start_of(name: str, model: Any, profile: Profile, tokenizer: Tokenizer) -> Start:
    decode = tokenizer.decode

    def start() -> RolloutEngine:
        if name in ("native", "auto"):  # "auto": no planner has decided
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


def _captured_hf(model: Any, profile: Profile, tokenizer: Tokenizer) -> dict[str, Start]:
    """What is tried before `hf`; empty for a model that transformers does not compile as one graph."""
    from workers.rollout import hf_graphs

    if reason := hf_graphs.reason_against(model):
        log.info("decoding by hf without CUDA graphs: %s", reason)
        return {}
    longest = profile.sampling.max_prompt_tokens + profile.sampling.max_completion_tokens

    def start() -> RolloutEngine:
        return hf_graphs.HfGraphEngine(model, tokenizer.decode, longest=longest, keep_bytes=_room(model, profile))

    return {"hf with CUDA graphs": start}


def _room(model: Any, profile: Profile) -> int:
    """Bytes that an engine may keep while the trainer works."""
    if profile.run.overlap:
        return sys.maxsize  # the trainer works beside it
    return room_beside_trainer(profile, shape_of(model.config.to_dict()), *limits_of(model.device))


def native_engine(model: Any, decode: Decode | None, profile: Profile | None = None) -> RolloutEngine:
    """Our own decoder in the form that this model and machine support: on a GPU captured steps over a static cache.

    profile: of the training that it shares the GPU with. Raises EngineUnavailable if neither form works.
    """
    if model.device.type == "cuda":
        if not (reason := reason_against(model)):
            if profile is None:
                return GraphEngine(model, decode)
            shape = shape_of(model.config.to_dict())
            return GraphEngine(
                model,
                decode,
                keep_bytes=_room(model, profile),
                overcommit=profile.sampling.overcommit,
                guesses=profile.sampling.prompt_lookup_tokens,
                prompt_graph_bytes=room_for_prompt_graphs(profile, shape, *limits_of(model.device)),
            )
        log.warning("decoding without CUDA graphs: %s", reason)
    # Shares change the number of threads of the whole process, on which the rounding of an update beside them depends.
    return NativeEngine(model, decode, max_shares=1 if profile is not None and profile.run.overlap else MAX_SHARES)


def tis_cap_of(profile: Profile) -> float:
    """The cap of importance weights; 0 if the engine's log_probs count as the trainer's. (pure)"""
    if profile.optimizer.tis_cap >= 0:
        return profile.optimizer.tis_cap
    return TIS_CAP if is_corrected(profile) else 0.0
