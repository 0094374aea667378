"""Checks at the start of every attempt that engine and trainer agree with plain transformers on a short text.

Either may compute a model a little wrongly without any error, and then trains on numbers that mean nothing. Here the
engine draws a few tokens after fixed prompts, the trainer scores them as it scores a step's rollouts, and both are
compared with one pass over each single sequence: transformers' modules, its own masks, eager attention.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from profiles.architecture import path_of
from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile
from workers.failures import exit_code_of
from workers.models import fused_layers, packing, plain
from workers.models.log_probs import score
from workers.rollout.engine import EngineUnavailable, Request, Rollout, RolloutEngine, Sampling
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.graph.pages import PAGE
from workers.rollout.hf import HfEngine
from workers.rollout.hf_graphs import HfGraphEngine
from workers.rollout.select import Portions

NEW_TOKENS = 8
LEAST_PROMPT = 16
LEAST_SHARED = 2 * PAGE + 3
"""Tokens of a prompt that fills pages, which many rows share."""
MOST_PROMPT = 1280
"""Eager attention over longer prompts needs memory that small cards lack. Errors in larger windows go undetected."""
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Largest accepted mean difference over a rollout's tokens, in nats. Beyond it, the model is computed wrongly.

Derivation: each side rounds the residual stream about twice per layer, and each rounding moves a log-prob by u times
the spread s of the logits. Together: s * u * sqrt(4 * layers). float32: u = 2^-24, s = 10, 80 layers: 1e-5; measured
1e-7 to 5e-6. bfloat16: u = 2^-9, s = 3, 28 layers: .06; measured .008 to .021. With NF4 both sides use the same codes,
so the bound is that of the dtype of the products.
"""


@dataclass(frozen=True)
class Compared:
    """off: the largest mean difference of any rollout, in nats; bound: what rounding explains."""

    off: float
    bound: float

    @property
    def is_right(self) -> bool:
        return self.off <= self.bound  # False for NaN


@dataclass(frozen=True)
class Advice:
    """What to advise if an engine is wrong. engine: the option that selects another one."""

    kept: str = "the head; nothing was trained"
    engine: str = "python -m orchestrator run --set sampling.engine={} --set 'sampling.fallback=[]'"


def probe(
    model: Any, engine: Portions, profile: Profile, *, row_tokens: int | None = None, advice: Advice = Advice()
) -> dict[str, Any]:
    """Check engine and trainer; returns facts for an event. row_tokens: the trainer's row length; None if nothing
    trains.

    Leaves weights and random generators as they are. Raises LonghaulError (INPUT) if either is off by more than
    rounding explains. An engine that takes over later is checked too.
    """
    began = time.monotonic()
    devices = [model.device] if model.device.type == "cuda" else []
    engine.on_change(lambda now: _engine_is_right(model, now, profile, advice))
    with torch.random.fork_rng(devices=devices):
        try:
            rollouts, truth, of_engine = _engine_is_right(model, engine.engine, profile, advice)
        except EngineUnavailable as error:
            reason = str(error)
        else:
            reason = ""
        if reason:  # outside the handler: its traceback keeps alive the memory that the next engine needs
            engine.replace(reason)
            rollouts, truth, of_engine = _engine_is_right(model, engine.engine, profile, advice)
        engine.rest()
        facts: dict[str, Any] = {"engine_off": of_engine.off, "bound": of_engine.bound}
        if row_tokens is not None:
            facts["trainer_off"] = _trainer_is_right(model, rollouts, truth, profile, row_tokens, advice).off
    name = NAMES.get(type(engine.engine).__name__, type(engine.engine).__name__)
    text = path_of(model.config.to_dict(), name, plain.reason_of(model))
    return {"text": text, "compare_s": time.monotonic() - began} | facts


NAMES = {
    "NativeEngine": "native",
    "GraphEngine": "native",
    "HfEngine": "hf",
    "HfGraphEngine": "hf",
    "ContinuousEngine": "continuous",
    "VllmEngine": "vllm",
}


def _engine_is_right(
    model: Any, engine: RolloutEngine, profile: Profile, advice: Advice
) -> tuple[list[Rollout], list[Tensor], Compared]:
    temperature = profile.sampling.temperature
    with _failures_of_transformers(model, advice):
        asked = requests(model, profile)
        sampling = Sampling(temperature=temperature, max_new_tokens=NEW_TOKENS, ignore_stop=True)
        rollouts = engine.generate(asked, sampling)
        truth = _truth_of(model, rollouts, temperature)
        found = compared(model, _reported(rollouts), truth)
        if found.is_right and isinstance(engine, GraphEngine):
            found = max(
                found, _of_many_rows(model, engine, profile, sampling), key=lambda one: (one.off != one.off, one.off)
            )
    if found.is_right:
        return rollouts, truth, found
    if isinstance(engine, HfGraphEngine):  # some model is computed rightly only step by step
        raise EngineUnavailable(f"its captured steps are wrong: {_distance_text(found, model)}")
    name = NAMES.get(type(engine).__name__, type(engine).__name__)
    what = f"the engine {name} does not compute this model ({type(model).__name__}): {_distance_text(found, model)}"
    if not isinstance(engine, HfEngine):
        other = HfEngine(model).generate(asked, sampling)
        if compared(model, _reported(other), _truth_of(model, other, temperature)).is_right:
            raise _refused(what + "; the engine hf is right", advice.kept, advice.engine.format("hf"))
    raise _refused(what + "; no other engine is right", advice.kept, "use another model: --set model.path=...")


def _of_many_rows(model: Any, engine: GraphEngine, profile: Profile, sampling: Sampling) -> Compared:
    """As many rows side by side as the engine has, for which it has other kernels; three of them are compared."""
    long, _, short = requests(model, profile, least=LEAST_SHARED)
    count = engine.most_rows
    asked = [Request((short if number % 4 == 3 else long).prompt_ids, 10 + number) for number in range(count)]
    with engine.trial():
        drawn = engine.generate(asked, sampling)
    some = [drawn[number] for number in sorted({0, count // 2, count - 1})]
    return compared(model, _reported(some), _truth_of(model, some, sampling.temperature))


def _trainer_is_right(
    model: Any, rollouts: Sequence[Rollout], truth: Sequence[Tensor], profile: Profile, row_tokens: int, advice: Advice
) -> Compared:
    with _failures_of_transformers(model, advice):
        found = compared(model, trained_log_probs(model, rollouts, profile, row_tokens), truth)
    if found.is_right:
        return found
    raise _refused(
        f"the trainer does not compute this model ({type(model).__name__}): {_distance_text(found, model)}",
        advice.kept,
        "use another model: --set model.path=...   (and please report this one's config.json)",
    )


@contextmanager
def _failures_of_transformers(model: Any, advice: Advice) -> Iterator[None]:
    """Refuse a model that transformers' own code fails on. Errors of our code, and of the machine, pass."""
    try:
        yield
    except (LonghaulError, EngineUnavailable):
        raise
    except Exception as error:
        if not plain.reason_of(model) or exit_code_of(error) != ExitCode.INTERNAL:
            raise
        raise _refused(
            f"transformers fails on this model ({type(model).__name__}): {type(error).__name__}: {error}"[:500],
            advice.kept,
            "use another model: --set model.path=...   (or another version of transformers)",
        ) from error


def _distance_text(found: Compared, model: Any) -> str:
    dtype = str(model.dtype).removeprefix("torch.")
    return (
        f"its log-probs are off plain transformers by {found.off:.2g} nats a token, and rounding in {dtype} "
        f"explains {found.bound:g}"
    )


def _refused(what: str, kept: str, next_command: str) -> LonghaulError:
    return LonghaulError(what, kept=kept, next_command=next_command, exit_code=ExitCode.INPUT)


def requests(model: Any, profile: Profile, least: int = 0) -> list[Request]:
    """Two completions of one prompt and one of a shorter one: covers shared prompts and rows of different lengths.
    least: tokens of the longer one, if there is room."""
    config = model.config
    knobs = profile.sampling
    room = min(
        knobs.max_prompt_tokens + knobs.max_completion_tokens,
        getattr(config, "max_position_embeddings", 0) or MOST_PROMPT,
    )
    length = max(2, min(max(least, prompt_tokens(config.to_dict())), room - NEW_TOKENS))
    long, short = (
        tuple((factor * place + 13) % config.vocab_size for place in range(size))
        for factor, size in ((7919, length), (7907, max(1, length // 2)))
    )
    return [Request(long, 1), Request(long, 2), Request(short, 3)]


def prompt_tokens(config: Mapping[str, Any]) -> int:
    """Length of the longer prompt: the completion starts beyond every sliding window up to `MOST_PROMPT`. (pure)"""
    sizes = [
        value
        for name, value in config.items()
        if isinstance(value, int) and ("window" in name or "chunk" in name or "conv" in name) and "layers" not in name
    ]
    reached = [size for size in sizes if 0 < size < MOST_PROMPT]
    return max(LEAST_PROMPT, max(reached, default=0) + 1)


def _truth_of(model: Any, rollouts: Sequence[Rollout], temperature: float) -> list[Tensor]:
    with plainly(model):
        return [single_log_probs(model, rollout, temperature) for rollout in rollouts]


def compared(model: Any, log_probs: Iterable[Tensor], truth: Iterable[Tensor]) -> Compared:
    """log_probs, truth: for each rollout its tokens', [T]."""
    off = 0.0
    for mine, true in zip(log_probs, truth, strict=True):
        mean = float((mine.double().cpu() - true.double()).abs().mean())
        off = mean if not mean <= off else off  # NaN stays
    return Compared(off, BOUNDS[model.dtype])


def _reported(rollouts: Sequence[Rollout]) -> list[Tensor]:
    return [torch.tensor(one.log_probs) for one in rollouts]


@torch.no_grad()
def single_log_probs(model: Any, rollout: Rollout, temperature: float) -> Tensor:
    """Of the completion's tokens, by the model's own pass over this sequence alone. [T], float32, on the CPU."""
    ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids], device=model.device)
    begin = len(rollout.prompt_ids)
    logits = model(input_ids=ids, use_cache=False).logits[0, begin - 1 : -1].float()
    found = torch.log_softmax(logits / temperature, dim=-1).gather(1, ids[0, begin:, None])
    return found.squeeze(1).cpu()


def trained_log_probs(model: Any, rollouts: Sequence[Rollout], profile: Profile, row_tokens: int) -> list[Tensor]:
    """Log-probs of each rollout's tokens, [T] each, by the pass that training makes."""
    units = packing.units_of([one.prompt_ids for one in rollouts], [one.completion_ids for one in rollouts], row_tokens)
    found: dict[int, Tensor] = {}
    # With gradient if layers are recomputed, because those passes differ; elsewhere both are the same.
    with torch.set_grad_enabled(bool(plain.reason_of(model)) and profile.model.gradient_checkpointing):
        for batch in packing.micro_batches(units, len(rollouts), row_tokens):
            members = [member for row in batch for unit in row for member in unit.members]
            scored = score(model, packing.pack(batch).to(model.device), profile.sampling.temperature)
            sizes = [len(rollouts[member].completion_ids) for member in members]
            found |= zip(members, torch.split(scored.log_probs.detach().cpu(), sizes), strict=True)
    return [found[number] for number in range(len(rollouts))]


@contextmanager
def plainly(model: Any) -> Iterator[None]:
    """Inside, the model computes as transformers built it: eager attention, no fused layers. Adapters stay."""
    kept = model.config._attn_implementation
    with fused_layers.undone(model):
        with suppress(ValueError, NotImplementedError, AttributeError):  # a model without such attention keeps its own
            model.set_attn_implementation("eager")
        try:
            yield
        finally:
            if model.config._attn_implementation != kept:
                model.set_attn_implementation(kept)
