"""Held-out problems as verl is asked them, and its answers as our suites judge them.

verl answers them after the last step of a cycle, with the weights that its checkpoint holds, and the checkpoint keeps
the answers: who validates it then needs no GPU. Where they do not fit the question any more, a job of verl answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from profiles.schema import Profile
from workers.models.load import Tokenizer
from workers.suites.answer_formats import format_of_run
from workers.suites.data_files import data_folder, short_hash
from workers.suites.registry import load_suites
from workers.suites.scoring import Outcome
from workers.suites.suite import Answer, Suite
from workers.tasks.judge import Correctness
from workers.verl.tasks import row, write_rows

ANSWERS = "answers.json"
"""In a checkpoint: what was asked, by its hash, and what was answered."""


def load(profile: Profile, *, all_problems: bool = False) -> list[Suite]:
    """The suites of the profile. Raises LonghaulError (INPUT) where a suite's data is missing."""
    folder, count = data_folder(profile.validation.data), profile.validation.examples_per_task
    return load_suites(profile.validation.suites, folder, count, all_of_files=all_problems, profile=profile)


@dataclass(frozen=True)
class HeldOut:
    """All problems of all suites. model: directory with its tokenizer. longest: tokens of a prompt."""

    profile: Profile
    suites: Sequence[Suite]
    model: Path

    @cached_property
    def _format(self) -> Any:
        return format_of_run(self.profile, self.model)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(self.model)

    @cached_property
    def _asked(self) -> list[tuple[int, int, str]]:
        """Suite, question and prompt; what is too long is not asked, and counts as wrong."""
        longest = self.profile.sampling.max_prompt_tokens
        return [
            (number, place, prompt)
            for number, suite in enumerate(self.suites)
            for place, prompt in enumerate(suite.prompts(self._format))
            if len(self._tokenizer.encode(prompt)) <= longest
        ]

    @property
    def fingerprint(self) -> str:
        """Equal only where every prompt, right answer and limit is the same."""
        limits = self.profile.sampling
        parts = [suite.fingerprint(self._format) for suite in self.suites]
        return short_hash("\0".join([*parts, f"{limits.max_prompt_tokens} {limits.max_completion_tokens}"]))

    def rows(self) -> list[dict[str, Any]]:
        """For verl; the index of a row is its place."""
        return [
            row(self.suites[number].name, prompt, self.suites[number].questions[place].gold, index)
            for index, (number, place, prompt) in enumerate(self._asked)
        ]

    def write(self, path: Path) -> Path:
        write_rows(path, self.rows())
        return path

    def answers_in(self, dump: Path) -> list[str]:
        """What verl wrote of its validation, in the order of `rows`. Raises ValueError unless each has one answer."""
        found: dict[int, str] = {}
        try:
            for line in dump.read_bytes().splitlines():
                one: Mapping[str, Any] = json.loads(line)
                found[int(one["index"])] = str(one["output"])
        except (OSError, KeyError, TypeError) as error:
            raise ValueError(f"{dump.name}: {error}") from error
        if sorted(found) != list(range(len(self._asked))):
            raise ValueError(f"{dump.name}: {len(found)} of {len(self._asked)} problems are answered")
        return [found[index] for index in range(len(found))]

    def keep(self, answers: Sequence[str], folder: Path) -> None:
        """Put them into a checkpoint that is being written."""
        (folder / ANSWERS).write_text(json.dumps({"asked": self.fingerprint, "answers": list(answers)}))

    def kept_in(self, head: Path) -> list[str] | None:
        """The answers that a verified checkpoint holds; None: it has none to these questions."""
        if not (head / ANSWERS).is_file():
            return None
        found = json.loads((head / ANSWERS).read_bytes())
        return list(found["answers"]) if found["asked"] == self.fingerprint else None

    def outcomes(self, answers: Sequence[str]) -> list[list[Outcome]]:
        """The suites' own judgement, in their order."""
        said = {(number, place): text for (number, place, _), text in zip(self._asked, answers, strict=True)}
        return [
            [self._outcome(suite, place, said.get((number, place))) for place in range(len(suite.questions))]
            for number, suite in enumerate(self.suites)
        ]

    def _outcome(self, suite: Suite, place: int, text: str | None) -> Outcome:
        question = suite.questions[place]
        if text is None:
            return Outcome(question.question_id, question.task, (False,), (0,), too_long=True)
        answer = self._format.answer(question.kind, text)
        (verdict,) = suite.judge([Answer(question, answer)], None)
        return Outcome(
            question.question_id,
            question.task,
            right=(verdict is Correctness.CORRECT,),
            tokens=(len(self._tokenizer.encode(text)),),
            malformed=int(answer is None),
            worked=int(self._format.is_worked(question.kind, text)),
        )
