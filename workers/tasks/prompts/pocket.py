"""Prompts and answers of the pocket model: a few marks around program text, and work before the answer if it likes.

Nothing inside the work is judged; only what follows its last mark is the answer.
"""

import ast
import re
from collections.abc import Sequence

from workers.tasks.kinds import Problem, Task, Triplet
from workers.tasks.pairs import shown_of
from workers.tasks.prompts.style import Proposal

_STRING = re.compile(r"'[a-zA-Z]*'")
_WORK = "<work>"


class PocketStyle:
    """The six cells as the pocket model was pretrained on them; a `PromptStyle`."""

    name = "pocket"
    num_inputs = 4
    num_shown = 3
    stop: tuple[str, ...] = ("<eos>",)
    min_references = 1

    def propose(
        self, task: Task, references: Sequence[Triplet], parts: Sequence[str] = (), *, is_seeding: bool = False
    ) -> str:
        """Shows the first reference: program and input; for induction the program whose inputs are wanted."""
        program, argument = references[0].program, references[0].input
        return f"<pind>{program}<in>" if task == "ind" else f"<p{task}>{program}<in>{argument}<sep>"

    def solve(self, task: Task, item: Triplet | Problem) -> str:
        """Shows all but the part to be found. An induction prompt holds the first `num_shown` pairs, half of fewer."""
        if isinstance(item, Problem):
            shown = list(zip(item.inputs, item.outputs, strict=True))[: shown_of(len(item.inputs), self.num_shown)]
            return "<ind>" + "".join(f"{argument}<out>{value}<sep>" for argument, value in shown) + "<prog>"
        if task == "ded":
            return f"<ded>{item.program}<in>{item.input}<out>"
        return f"<abd>{item.program}<out>{item.output}<in>"

    def parse_proposal(self, task: Task, completion: str, *, is_seeding: bool = False) -> Proposal | None:
        """`program<in>'uvw'`, or for induction `'uvw'<sep>'xy'<sep>…` with exactly `num_inputs` inputs."""
        text = completion.removesuffix("<eos>")
        if task == "ind":
            inputs = tuple(text.split("<sep>"))
            well_formed = len(inputs) == self.num_inputs and all(_STRING.fullmatch(part) for part in inputs)
            return Proposal(program="", inputs=inputs) if well_formed else None
        program, mark, argument = text.partition("<in>")
        if not mark or not _STRING.fullmatch(argument) or not _is_program(program):
            return None
        return Proposal(program=program, inputs=(argument,))

    def render_answer(self, task: Task, answer: str) -> str:
        """Without work: the answer alone."""
        return f"{answer}<eos>"

    def parse_answer(self, task: Task, completion: str) -> str | None:
        """What follows the last `=` of worked steps (induction: the last `<prog>`), else the whole completion."""
        text = completion.removesuffix("<eos>")
        if text.startswith(_WORK):
            _, mark, text = text.rpartition("<prog>" if task == "ind" else "=")
            if not mark:
                return None
        if task == "ind":
            return text if _is_program(text) else None
        return text if _STRING.fullmatch(text) else None

    def is_well_formed(self, task: Task, completion: str) -> bool:
        """Whether there is an answer: this style has one form only."""
        return self.parse_answer(task, completion) is not None

    def is_worked(self, task: Task, completion: str) -> bool:
        """Whether the completion begins with the mark of worked steps."""
        return completion.startswith(_WORK)

    def is_showable(self, text: str) -> bool:
        """Its answers can only be written in ten letters."""
        return True


def _is_program(text: str) -> bool:
    """Whether the text parses as one function `f`."""
    if not text.startswith("def f("):
        return False
    try:
        return len(ast.parse(text).body) == 1
    except SyntaxError:
        return False
