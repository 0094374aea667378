"""The stage before training with a curriculum: measures how hard each problem is for the initial policy.

It works in slices, each durable in the run directory, and resumes after a kill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from profiles.errors import ExitCode, LonghaulError
from workers.cycle.train import Interrupted
from workers.grpo.collecting import Asker
from workers.grpo.curriculum import Curriculum, curriculum_of
from workers.grpo.difficulty import Measured, Sample
from workers.grpo.difficulty_cache import DifficultyCache, OnStale, measured_in, open_cache
from workers.models.adapters import count_trained
from workers.problems.problem import Problems
from workers.rng import derive
from workers.rollout.engine import Rollout
from workers.rollout.fewer_rows import with_fewer_rows
from workers.runtime import Attempt
from workers.suites.prompts import prompt_of
from workers.verifiers import answers

SLICE = 16
"""Fewest problems in a slice; a kill loses at most one slice."""
ROUNDS = 4
"""How often a slice fills all rows. In a smaller slice most rows would wait for its longest answer."""


def slice_of(rows: int, samples: int) -> int:
    """Problems in a slice if `rows` rollouts decode side by side, `samples` per problem. (pure)"""
    return max(SLICE, ROUNDS * rows // samples)


class Measuring:
    """Fills the cache at `path`, and builds the curriculum from it."""

    def __init__(self, asker: Asker, problems: Problems, model: Any, path: Path, num_problems: int = SLICE) -> None:
        """num_problems: per slice."""
        self._asker, self._problems, self._model, self._path = asker, problems, model, path
        self._num_problems = num_problems
        self._grpo = asker.profile.grpo

    def run(self, stop_asked: Callable[[], bool], attempt: Attempt) -> Curriculum | None:
        """Measure what is missing. None: the cache is stale and the profile says to train without an order.

        Raises Interrupted after the current slice if it was asked to stop.
        """
        measured = measured_of(self._asker, self._problems, model_hashes(self._model))
        cache = open_cache(self._path, measured, self._grpo.sent.on_stale)
        if cache is None:
            attempt.warn(f"{self._path.name} belongs to another model, file or setting: training without an order")
            return None
        # Below the rows of training, the trainer's own backoff decides what to shrink.
        engine, least = self._asker.engine, self._asker.profile.sampling.max_rows
        try:
            left = [one.number for one in self._problems.problems if one.number not in cache.done]
            for at in range(0, len(left), self._num_problems):
                if stop_asked():
                    raise Interrupted
                done = len(self._problems.problems) - len(left) + at
                attempt.at(0, f"measuring, problem {done} of {len(self._problems.problems)}")
                slice_ = left[at : at + self._num_problems]
                samples = with_fewer_rows(engine, partial(self._samples, slice_), attempt.warn, least)
                cache.measure(slice_, samples.__getitem__, self._asker.sameness)
        finally:
            cache.close()
        return self._curriculum(cache, measured)

    def resumed(self) -> Curriculum | None:
        """The curriculum of a run that has begun. Raises LonghaulError (INPUT) if the cache is incomplete: the policy
        that it was measured with no longer exists."""
        # The policy has been trained since; the checkpoint's curriculum knows which one the file belongs to.
        stored = measured_in(self._path)
        hashes = (stored.model, stored.adapter) if stored is not None else ("none", "none")
        measured = measured_of(self._asker, self._problems, hashes)
        on_stale: OnStale = "shuffle" if self._grpo.sent.on_stale == "shuffle" else "fail"
        cache = open_cache(self._path, measured, on_stale, has_begun=True)
        if cache is None:
            return None
        cache.close()
        if missing := len(self._problems.problems) - len(cache.done):
            raise LonghaulError(
                f"{self._path} lacks the difficulties of {missing} problems, and they cannot be measured any more: the "
                "policy has been trained since",
                kept="the head and the file, unchanged",
                next_command="restore the file, or: python -m orchestrator run --run NEW-NAME",
                exit_code=ExitCode.INPUT,
            )
        return self._curriculum(cache, measured)

    def _curriculum(self, cache: DifficultyCache, measured: Measured) -> Curriculum:
        found = [cache.done[one.number] for one in self._problems.problems]
        return curriculum_of(found, measured, self._grpo.sent, self._asker.profile.run.seed)

    def _samples(self, problems: list[int]) -> dict[int, list[Sample]]:
        """Answers to each problem. Seeds depend on the problem, so slices and interruptions change nothing."""
        seed = self._asker.profile.run.seed

        def seeds(place: int, sample: int) -> int:
            return derive(seed, problems[place], "difficulty", sample)

        rollouts = self._asker.rollouts(problems, seeds, self._grpo.sent.samples)
        return {
            number: [self._sample(number, one) for one in group]
            for number, group in zip(problems, rollouts, strict=True)
        }

    def _sample(self, problem: int, rollout: Rollout) -> Sample:
        verdict = self._asker.case(problem, rollout).verdict
        is_cut = rollout.finish_reason == "length"
        return Sample(None if is_cut else verdict.extracted, verdict.correct, len(rollout.completion_ids))


def measured_of(asker: Asker, problems: Problems, model: tuple[str, str]) -> Measured:
    """Everything that the difficulties depend on. model: hashes of the weights and of the adapter."""
    profile = asker.profile
    grpo, sampling = profile.grpo, profile.sampling
    return Measured(
        data=problems.digest,
        model=model[0],
        adapter=model[1],
        quantization=f"{profile.model.quantization} {profile.model.dtype}",
        tokenizer=hashlib.sha256(asker.tokenizer.to_json().encode()).hexdigest(),
        chat_template=hashlib.sha256(prompt_of(asker.answer_format, "a problem").encode()).hexdigest(),
        prompt=asker.answer_format.name,
        samples=grpo.sent.samples,
        temperature=sampling.temperature,
        top_p=1.0,
        max_completion_tokens=sampling.max_completion_tokens,
        seed=profile.run.seed,
        verifier=f"{grpo.verifier} {answers.VERSION}{' lenient' if grpo.lenient_answers else ''}",
    )


def model_hashes(model: Any) -> tuple[str, str]:
    """Hashes of the weights without an adapter, and of the adapter; `none` while it has no effect."""
    weights, adapter = hashlib.sha256(), hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        into = adapter if ".lora_" in name else weights
        into.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        into.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return weights.hexdigest(), adapter.hexdigest() if count_trained(model) else "none"
