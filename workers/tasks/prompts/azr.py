"""The six cells of Absolute Zero as published, for any model that reads English: prompts, and what counts as an answer.

`azr` talks to base models in one plain text, `azr-chat` to instruct models through their own chat template. Both end
with an open `<think>`, and differ in nothing else. Stands alone: no model, no sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.tasks import programs
from workers.tasks.kinds import Problem, Task, Triplet
from workers.tasks.pairs import shown_of
from workers.tasks.prompts import response, wording
from workers.tasks.prompts.style import Proposal

NUM_INPUTS = 10
ANSWER_FENCES: dict[Task, str] = {"abd": "input", "ded": "output", "ind": "python"}


@dataclass(frozen=True)
class Form:
    """What of the form is a choice; the knobs of [azr] with these names say more."""

    program_fence: str = "first"
    seed_parse: str = "whole_response"
    lenient_fallbacks: bool = False
    hide_input: bool = False
    seconds: float = 10.0
    """Time that a program may take, as it is told to the model."""


class AzrStyle:
    """A `PromptStyle`.

    wrap: from the text of a task to the whole prompt. marks: special tokens of the model, which no part of a task may
    contain, or a program could end the prompt that it is shown in.
    """

    num_inputs = NUM_INPUTS
    num_shown: int | None = None
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
        self._wrap, self._form = wrap, form or Form()
        self._marks = tuple(marks)

    # --- prompts -------------------------------------------------------------------------------------------------

    def propose(
        self, task: Task, references: Sequence[Triplet], parts: Sequence[str] = (), *, is_seeding: bool = False
    ) -> str:
        """Up to K references for deduction and abduction; for induction the one program, without its outputs."""
        if task == "ind":
            text = wording.PROPOSE_IND.format(count=self.num_inputs, program=references[0].program)
            return self._wrap(text)
        rules = [wording.CODE_RULES.format(seconds=self._form.seconds)]
        rules += [wording.SEEDING_RULE] if is_seeding else []
        inputs = [wording.INPUT_RULES] + ([wording.HIDE_INPUT] if self._form.hide_input else [])
        shown = [(one.program, one.input, one.output) for one in references]
        return self._wrap(
            wording.join(
                wording.GOALS[task],
                wording.CLASSES,
                "## Rules for the code\n" + "\n".join(rules),
                wording.BANNED,
                "## Rules for the input\n" + "\n".join(inputs),
                "## Form of the answer\n" + wording.FORMAT,
                "## Example of the form\n" + wording.EXAMPLE,
                "## What counts\n" + wording.CRITERIA.format(hard=wording.JUDGED[task].capitalize()),
                wording.PLAN,
                "## Programs that exist already\n" + wording.numbered_references(shown) if shown else "",
                _parts_block(parts),
            )
        )

    def solve(self, task: Task, item: Triplet | Problem) -> str:
        """Shows all but the part to be found; of induction the first half of the pairs, rounded down."""
        if isinstance(item, Problem):
            pairs = list(zip(item.inputs, item.outputs, strict=True))[: shown_of(len(item.inputs), self.num_shown)]
            blocks = [
                f"{wording.fence(f'input_{number}', argument)}\n{wording.fence(f'output_{number}', value)}"
                for number, (argument, value) in enumerate(pairs)
            ]
            rules = wording.CODE_RULES.format(seconds=self._form.seconds)
            return self._wrap(
                wording.SOLVE_IND.format(
                    pairs="\n\n".join(blocks), message=item.message, rules=rules, banned=wording.BANNED
                )
            )
        if task == "ded":
            return self._wrap(wording.SOLVE_DED.format(program=item.program, input=item.input))
        return self._wrap(wording.SOLVE_ABD.format(program=item.program, output=item.output))

    def ask(self, text: str) -> str:
        """Prompt for a question of any other kind, in words."""
        return self._wrap(text)

    # --- completions ---------------------------------------------------------------------------------------------

    def parse_proposal(self, task: Task, completion: str, *, is_seeding: bool = False) -> Proposal | None:
        """Program and input, or inputs and message. Tags that are wrong leave it standing, but not well-formed.

        In seeding the whole response is read: a base model rarely keeps the tags, and nobody is paid for them yet.
        """
        read = response.read(self._clean(completion))
        text = read.text if is_seeding and self._form.seed_parse == "whole_response" else read.answer
        found = response.fences(text)
        if task == "ind":
            return self._induction(text, found, read.is_well_formed)
        inputs = response.tagged(found, "input") or [response.after_comment(text, "Input") or ""]
        written = response.programs(found)
        if not written or not inputs[0]:
            return None
        program = programs.with_entry(written[0 if self._form.program_fence == "first" else -1])
        if is_seeding:
            program = programs.stripped(program)
        return Proposal(program, (inputs[0],), is_well_formed=read.is_well_formed)

    def _induction(self, text: str, found: Sequence[response.Fence], is_well_formed: bool) -> Proposal | None:
        inputs = response.tagged(found, "input")
        messages = response.tagged(found, "message") or [
            response.element(text, "message") or response.after_comment(text, "Message") or ""
        ]
        if len(inputs) < self.num_inputs or not messages[0]:
            return None
        return Proposal("", tuple(inputs[-self.num_inputs :]), messages[0], is_well_formed)

    def render_answer(self, task: Task, answer: str) -> str:
        """Without a thought: the answer in its fence and tags."""
        return f"</think>\n<answer>\n{wording.fence(ANSWER_FENCES[task], answer)}\n</answer>"

    def parse_answer(self, task: Task, completion: str) -> str | None:
        """The last fence of the answer, else (deduction, abduction) the whole of it."""
        answer = response.read(self._clean(completion)).answer
        found = response.fences(answer)
        if task == "ind":
            written = response.programs(found)
            return programs.with_entry(written[-1]) if written else None
        name = ANSWER_FENCES[task]
        if fenced := response.tagged(found, name):
            return fenced[-1]
        return (response.guessed(answer, name) if self._form.lenient_fallbacks else None) or answer

    def is_well_formed(self, task: Task, completion: str) -> bool:
        """Thought and answer stand in their tags from the first character on; an induction answer has a program."""
        is_tagged = response.read(self._clean(completion)).is_well_formed
        return is_tagged and (task != "ind" or self.parse_answer(task, completion) is not None)

    def said(self, completion: str) -> str | None:
        """The whole answer of a well-formed completion; None of a malformed one."""
        read = response.read(self._clean(completion))
        return read.answer if read.is_well_formed else None

    def is_worked(self, task: Task, completion: str) -> bool:
        """Whether something was thought."""
        return bool(response.thought_of(completion))

    def _clean(self, text: str) -> str:
        """The text without special tokens, also those that appear when one is taken out of another."""
        before = None
        while before != text:
            before = text
            for mark in self._marks:
                text = text.replace(mark, "")
        return text

    def is_showable(self, text: str) -> bool:
        """Whether no special token is written in it. They are taken out of completions, but values may spell one."""
        return not any(mark in text for mark in self._marks)


def _parts_block(parts: Sequence[str]) -> str:
    if not parts:
        return ""
    shown = "\n\n".join(wording.fence("python", programs.part(text, number)) for number, text in enumerate(parts))
    names = ", ".join(f"g_{number}" for number in range(len(parts)))
    return wording.PARTS.format(parts=shown, names=names)
