"""A kind of task with one pair, in words for models that read English. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.tasks import programs
from workers.tasks.items import Item, Triplet
from workers.tasks.prompts import response, wording
from workers.tasks.prompts.style import Form, Proposal


@dataclass(frozen=True)
class OnePair:
    """`Words` of a kind whose proposer writes a program and one input.

    goal: the proposer's task. judged: what makes a proposal good. question: the solver's, with placeholders for
    program, input and output. fence: the tag of the answer's fence.
    """

    goal: str
    judged: str
    question: str
    fence: str

    def propose(self, references: Sequence[Triplet], parts: Sequence[str], form: Form, *, is_seeding: bool) -> str:
        """Shows all references, then the programs to build on."""
        rules = [wording.CODE_RULES.format(seconds=form.seconds)]
        rules += [wording.SEEDING_RULE] if is_seeding else []
        inputs = [wording.INPUT_RULES] + ([wording.HIDE_INPUT] if form.hide_input else [])
        shown = [(one.program, one.input, one.output) for one in references]
        return wording.join(
            self.goal,
            wording.CLASSES,
            "## Rules for the code\n" + "\n".join(rules),
            wording.BANNED,
            "## Rules for the input\n" + "\n".join(inputs),
            "## Form of the answer\n" + wording.FORMAT,
            "## Example of the form\n" + wording.EXAMPLE,
            "## What counts\n" + wording.CRITERIA.format(hard=self.judged.capitalize()),
            wording.PLAN,
            "## Programs that exist already\n" + wording.numbered_references(shown) if shown else "",
            _parts_block(parts),
        )

    def solve(self, item: Item, form: Form) -> str:
        assert isinstance(item, Triplet)
        return self.question.format(program=item.program, input=item.input, output=item.output)

    def proposal(self, text: str, form: Form, *, is_seeding: bool) -> Proposal | None:
        found = response.fences(text)
        inputs = response.tagged(found, "input") or [response.after_comment(text, "Input") or ""]
        written = response.programs(found)
        if not written or not inputs[0]:
            return None
        program = programs.with_entry(written[0 if form.program_fence == "first" else -1])
        if is_seeding:
            program = programs.stripped(program)
        return Proposal(program, (inputs[0],))

    def render(self, answer: str) -> str:
        return wording.fence(self.fence, answer)

    def answer(self, text: str, form: Form) -> str | None:
        """The last fence, else the whole text."""
        if fenced := response.tagged(response.fences(text), self.fence):
            return fenced[-1]
        return (response.guessed(text, self.fence) if form.lenient_fallbacks else None) or text


def _parts_block(parts: Sequence[str]) -> str:
    if not parts:
        return ""
    shown = "\n\n".join(wording.fence("python", programs.part(text, number)) for number, text in enumerate(parts))
    names = ", ".join(f"g_{number}" for number in range(len(parts)))
    return wording.PARTS.format(parts=shown, names=names)
