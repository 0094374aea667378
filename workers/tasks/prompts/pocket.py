"""Prompts and answers of the pocket model: a few marks around program text, and optional work before the answer.

The work is not judged; the answer is the text after its last mark.
"""

from collections.abc import Sequence

from workers.tasks.items import Item, Task, Triplet
from workers.tasks.kinds.registry import kind_of
from workers.tasks.prompts.marks import WORK
from workers.tasks.prompts.style import Form, Proposal, Words, wordless

END = "<eos>"


class PocketStyle:
    """The six cells on which the pocket model was pretrained; a `PromptStyle`."""

    name = "pocket"
    form = Form(num_inputs=4, num_shown=3)
    stop: tuple[str, ...] = (END,)
    min_references = 1

    def words_of(self, task: Task) -> Words | None:
        return kind_of(task).pocket

    def _words(self, task: Task) -> Words:
        return self.words_of(task) or wordless(task, self.name)

    def propose(
        self, task: Task, references: Sequence[Triplet], parts: Sequence[str] = (), *, is_seeding: bool = False
    ) -> str:
        return self._words(task).propose(references, parts, self.form, is_seeding=is_seeding)

    def solve(self, task: Task, item: Item) -> str:
        """Shows everything except the part to be found."""
        return self._words(task).solve(item, self.form)

    def parse_proposal(self, task: Task, completion: str, *, is_seeding: bool = False) -> Proposal | None:
        return self._words(task).proposal(completion.removesuffix(END), self.form, is_seeding=is_seeding)

    def render_answer(self, task: Task, answer: str) -> str:
        """The answer alone, without work."""
        return self._words(task).render(answer) + END

    def parse_answer(self, task: Task, completion: str) -> str | None:
        """The text after the work, if any."""
        return self._words(task).answer(completion.removesuffix(END), self.form)

    def is_well_formed(self, task: Task, completion: str) -> bool:
        """Whether there is an answer; this style has only one form."""
        return self.parse_answer(task, completion) is not None

    def is_worked(self, task: Task, completion: str) -> bool:
        """Whether the completion starts with the mark of worked steps."""
        return completion.startswith(WORK)

    def is_showable(self, text: str) -> bool:
        """Whether it uses only the ten letters in which answers can be written."""
        return True
