"""The six cells of Absolute Zero as published, for any model that reads English: prompts, and how answers are found.

`azr` addresses base models in one plain text, `azr-chat` instruct models through their chat template. Both end with an
open `<think>`; otherwise they are the same. Needs neither model nor sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from workers.tasks.items import Item, Task, Triplet
from workers.tasks.kinds.registry import kind_of
from workers.tasks.prompts import response, wording
from workers.tasks.prompts.style import Form, Proposal, Words, wordless


class AzrStyle:
    """A `PromptStyle`.

    wrap: turns the text of a task into the whole prompt. marks: special tokens of the model. No part of a task may
    contain one, because a program could then end the prompt that shows it.
    """

    stop: tuple[str, ...] = (response.END,)
    min_references = 0

    def __init__(
        self,
        name: str = "azr",
        wrap: Callable[[str], str] = lambda task: wording.WRAPPER.format(task=task),
        form: Form | None = None,
        marks: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._wrap, self.form = wrap, form or Form()
        self._marks = tuple(marks)

    def words_of(self, task: Task) -> Words | None:
        return kind_of(task).english

    def _words(self, task: Task) -> Words:
        return self.words_of(task) or wordless(task, self.name)

    # --- prompts -------------------------------------------------------------------------------------------------

    def propose(
        self, task: Task, references: Sequence[Triplet], parts: Sequence[str] = (), *, is_seeding: bool = False
    ) -> str:
        return self._wrap(self._words(task).propose(references, parts, self.form, is_seeding=is_seeding))

    def solve(self, task: Task, item: Item) -> str:
        """Shows everything except the part to be found."""
        return self._wrap(self._words(task).solve(item, self.form))

    def ask(self, text: str) -> str:
        """Prompt for any other question, given in words."""
        return self._wrap(text)

    # --- completions ---------------------------------------------------------------------------------------------

    def parse_proposal(self, task: Task, completion: str, *, is_seeding: bool = False) -> Proposal | None:
        """A proposal with wrong tags still counts, but not as well-formed.

        Seeding reads the whole response: a base model rarely keeps to the tags, and nothing is rewarded yet.
        """
        read = response.read(self._clean(completion))
        text = read.text if is_seeding and self.form.seed_parse == "whole_response" else read.answer
        found = self._words(task).proposal(text, self.form, is_seeding=is_seeding)
        return replace(found, is_well_formed=read.is_well_formed) if found else None

    def render_answer(self, task: Task, answer: str) -> str:
        """The answer in its fence and tags, without a thought."""
        return f"</think>\n<answer>\n{self._words(task).render(answer)}\n</answer>"

    def parse_answer(self, task: Task, completion: str) -> str | None:
        return self._words(task).answer(response.read(self._clean(completion)).answer, self.form)

    def is_well_formed(self, task: Task, completion: str) -> bool:
        """Whether thought and answer are in their tags from the first character on, and there is an answer."""
        is_tagged = response.read(self._clean(completion)).is_well_formed
        return is_tagged and self.parse_answer(task, completion) is not None

    def answer_text(self, completion: str) -> str | None:
        """The whole answer of a well-formed completion; None of a malformed one."""
        read = response.read(self._clean(completion))
        return read.answer if read.is_well_formed else None

    def is_worked(self, task: Task, completion: str) -> bool:
        """Whether the thought is not empty."""
        return bool(response.thought_of(completion))

    def _clean(self, text: str) -> str:
        """The text without special tokens, including any that appear when one is removed from inside another."""
        before = None
        while before != text:
            before = text
            for mark in self._marks:
                text = text.replace(mark, "")
        return text

    def is_showable(self, text: str) -> bool:
        """Whether it contains no special token. They are removed from completions, but a value can still spell one."""
        return not any(mark in text for mark in self._marks)
