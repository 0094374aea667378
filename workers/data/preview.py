"""Shows problems as the model will see them: prompt, tokens, part, and the reward of a given completion."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from profiles.hub_model import directory_of
from profiles.rewards import ENVIRONMENT, is_slow, part_name
from profiles.schema import Profile
from workers.environments.of_profile import environment_of, own_rows_of
from workers.models import random_init
from workers.models.files import unusable
from workers.models.load import Tokenizer
from workers.problems.of_profile import grpo_problems
from workers.problems.problem import Problem, Problems
from workers.problems.reader import summary
from workers.problems.rows import types_of
from workers.problems.split import is_held_out
from workers.rewards.earned import case_of
from workers.rewards.of_profile import quick_parts, weights_of
from workers.rewards.reward import score
from workers.rollout.engine import Rollout
from workers.suites.answer_format import VerbatimFormat
from workers.suites.answer_formats import format_of_run
from workers.suites.data_files import data_folder
from workers.suites.prompts import prompt_of
from workers.verifiers.verify import verifier_of

if TYPE_CHECKING:
    from workers.environments.runner import EnvironmentRunner

TYPED_ROWS = 1000
"""Rows whose values say which types a column has."""
MOST_LISTED = 20
"""Rows that cannot be used, by line and reason."""


def preview(profile: Profile, rows: int, completion: str | None) -> dict[str, Any]:
    """What the command prints, as JSON values. rows: how many to show. completion: judged as an answer to each.

    Rows that are no problems are listed even where a run would refuse them. Raises LonghaulError (INPUT).
    """
    lenient = replace(profile, grpo=replace(profile.grpo, bad_rows="skip"))
    found = grpo_problems(lenient, data_folder(profile.validation.data), own_rows=own_rows_of(profile))
    with (
        _answering(profile) as (answer_format, tokenizer),
        TemporaryDirectory(prefix="longhaul-preview-") as folder,
        environment_of(profile, Path(folder)) as environment,
    ):
        show = _Show(profile, answer_format, tokenizer, completion, environment)
        shown = [show.row(one) for one in found.problems[:rows]]
        too_long = show.too_long(found)
    return _facts(profile, found, too_long) | {"rows": shown}


def _facts(profile: Profile, found: Problems, too_long: Sequence[dict[str, Any]]) -> dict[str, Any]:
    bad = [{"line": one.line, "source": one.source, "reason": one.reason} for one in found.left_out]
    gone = {(one["source"], one["line"]) for one in too_long}
    used = [one for one in found.problems if (one.source, one.line) not in gone]
    held_out = sum(is_held_out(one, profile.data.held_out) for one in used)
    return {
        "summary": summary(found),
        "problems": len(found.problems),
        "prompt_style": profile.model.prompt_style,
        "model": profile.model.path if profile.model.random_init == "off" else profile.model.random_init,
        "max_prompt_tokens": profile.sampling.max_prompt_tokens,
        "parts": {"train": len(used) - held_out, "held_out": held_out, "left_out": len(bad) + len(too_long)},
        "sources": dict(Counter(one.source for one in used if one.source)),
        "weights": list(profile.data.weights),
        "columns": types_of([one.columns for one in found.problems[:TYPED_ROWS]]),
        "not_json": found.not_json,
        "revisions": found.revisions,
        "left_out": [*bad, *too_long][:MOST_LISTED],
        "is_refused": bool(bad) and profile.grpo.bad_rows == "refuse",
    }


class _Show:
    def __init__(
        self,
        profile: Profile,
        answer_format: VerbatimFormat,
        tokenizer: Tokenizer,
        completion: str | None,
        environment: EnvironmentRunner | None,
    ) -> None:
        self._profile, self._format, self._tokenizer = profile, answer_format, tokenizer
        self._environment = environment
        self._completion = completion
        self._symbolic = verifier_of(profile.grpo) if completion is not None else None

    def prompt(self, problem: Problem) -> str:
        """Of an episode: the environment's first messages."""
        if self._environment is None:
            return prompt_of(self._format, problem)
        opened = self._environment.open(problem.row, problem.line).result()
        return self._format.opening(opened.messages, opened.tools)

    def too_long(self, found: Problems) -> list[dict[str, Any]]:
        if self._environment is not None:  # it is asked for the rows that are shown, and no others
            return []
        allowed = self._profile.sampling.max_prompt_tokens
        counts = ((one, len(self._tokenizer.encode_prompt(self.prompt(one)))) for one in found.problems)
        return [
            {"line": one.line, "source": one.source, "reason": _too_long(tokens, allowed)}
            for one, tokens in counts
            if tokens > allowed
        ]

    def row(self, problem: Problem) -> dict[str, Any]:
        prompt = self.prompt(problem)
        tokens, allowed = len(self._tokenizer.encode_prompt(prompt)), self._profile.sampling.max_prompt_tokens
        part = "held_out" if is_held_out(problem, self._profile.data.held_out) else "train"
        return {
            "line": problem.line,
            "source": problem.source,
            "prompt": prompt,
            "tokens": tokens,
            "part": part if tokens <= allowed else "left_out",
            "reason": _too_long(tokens, allowed) if tokens > allowed else "",
            "answer": problem.gold,
            "has_tests": problem.has_tests,
            "columns": problem.columns,
            "reward": None if self._completion is None else self._reward(problem, self._completion),
        }

    def _reward(self, problem: Problem, completion: str) -> dict[str, Any]:
        """The reward of the completion as a rollout would earn it; one that is too long is cut as a rollout is."""
        longest = self._profile.sampling.max_completion_tokens
        ids = self._tokenizer.encode(completion)
        is_cut = len(ids) > longest
        text = self._format.whole(self._tokenizer.decode(ids[:longest]) if is_cut else completion)
        grpo = self._profile.grpo
        rollout = Rollout((), ids[:longest], (), "length" if is_cut else "stop")
        case = case_of(grpo, problem, text, rollout, longest, self._symbolic)
        parts, weights = [one for one in quick_parts(grpo) if one.name != ENVIRONMENT], weights_of(grpo)
        found = score(case, parts, [weights[part.name] for part in parts])
        return {
            "total": found.total,
            "parts": dict(found.parts),
            "not_computed": [part_name(name) for name in grpo.rewards if is_slow(name) or name == ENVIRONMENT],
            "extracted": case.verdict.extracted,
            "reason": case.verdict.reason,
            "is_truncated": is_cut,
        }


def _too_long(tokens: int, allowed: int) -> str:
    return f"its prompt has {tokens} tokens, {allowed} are allowed (sampling.max_prompt_tokens)"


@contextmanager
def _answering(profile: Profile) -> Iterator[tuple[VerbatimFormat, Tokenizer]]:
    """The format of the profile's run and the tokenizer of its model; no weights are read."""
    with TemporaryDirectory(prefix="longhaul-preview-") as files:
        directory = Path(files)
        if profile.model.random_init != "off":
            random_init.byte_tokenizer().save(str(directory / "tokenizer.json"))
            settings = {"eos_token": random_init.EOS, "chat_template": random_init.CHAT_TEMPLATE}
            (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        else:
            directory = directory_of(profile.model)
            if not (directory / "tokenizer.json").is_file():
                raise unusable(directory / "tokenizer.json", "is missing")
        answer_format = format_of_run(profile, directory)
        assert isinstance(answer_format, VerbatimFormat)  # a rule of the profile
        yield answer_format, Tokenizer(directory)
