"""How a model is asked, and how its answer is found: the same way for every kind of question in every suite.

`StyleFormat` asks as self-play does, so a run is scored in the form that it was trained in. `PlainFormat` asks in a few
plain sentences, for any model. Neither judges answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from profiles.errors import ExitCode, LonghaulError
from workers.problems.problem import Message
from workers.suites.question import CODE, MATHS, CodeProblem, Kind, WordProblem
from workers.tasks.items import HiddenProgram, Triplet
from workers.tasks.kinds import registry
from workers.tasks.prompts.azr import AzrStyle
from workers.tasks.prompts.response import last_program
from workers.tasks.prompts.style import PromptStyle
from workers.verifiers.answers import after_mark, extract

Item = Triplet | HiddenProgram | WordProblem | CodeProblem
Render = Callable[[Sequence[Message]], str]
"""Turns the messages of a chat into a prompt."""
Talk = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]
"""Turns messages and tools into a prompt."""
SOME_REPLY = "reply-7c1d"
"""No message of an environment holds this text."""
FENCE = "a fence that begins with ```python"


class AnswerFormat(Protocol):
    """Turns a question into a prompt, and a completion into an answer."""

    name: str
    stop: tuple[str, ...]
    """Texts that end a completion."""
    kinds: frozenset[Kind]
    """The kinds that it has words for."""

    def ask(self, kind: Kind, item: Item) -> str:
        """The prompt."""
        ...

    def answer(self, kind: Kind, completion: str) -> str | None:
        """The literal, argument list, program or number in a completion, as text; None if malformed."""
        ...

    def is_worked(self, kind: Kind, completion: str) -> bool:
        """Whether the completion reasons before it answers."""
        ...


class StyleFormat:
    """The solver's prompts of a style. An answer that is not in the requested form does not count."""

    def __init__(self, style: PromptStyle) -> None:
        self._style = style
        self.name, self.stop = style.name, style.stop
        self.kinds: frozenset[Kind] = frozenset(name for name in registry.names() if style.words_of(name))
        if isinstance(style, AzrStyle):
            self.kinds |= {MATHS, CODE}

    def ask(self, kind: Kind, item: Item) -> str:
        if isinstance(item, WordProblem | CodeProblem):
            assert isinstance(self._style, AzrStyle)
            number, program = "a number: give it alone, without words", f"the whole program in {FENCE}"
            wanted = number if isinstance(item, WordProblem) else program
            return self._style.ask(f"{item.text}\n\nThe answer is {wanted}.")
        return self._style.solve(kind, item)

    def answer(self, kind: Kind, completion: str) -> str | None:
        if kind in (MATHS, CODE):
            assert isinstance(self._style, AzrStyle)
            answer = self._style.answer_text(completion)
            if kind == CODE:
                return None if answer is None else last_program(answer)
            return None if answer is None else after_mark(answer, NUMBER_MARK) or answer
        return self._style.parse_answer(kind, completion) if self._style.is_well_formed(kind, completion) else None

    def is_worked(self, kind: Kind, completion: str) -> bool:
        return self._style.is_worked(kind, completion)


class VerbatimFormat:
    """Asks problems as they are, on a line of their own. Finds answers by the rules of GRPO's verifier, and programs in
    the last fence.

    marks: special tokens of the model, which are removed from an answer.
    """

    name = "verbatim"
    stop: tuple[str, ...] = ()
    kinds: frozenset[Kind] = frozenset({MATHS, CODE})

    def __init__(self, marks: Sequence[str] = ()) -> None:
        self._marks = tuple(marks)

    def ask(self, kind: Kind, item: Item) -> str:
        """Raises LonghaulError (INPUT) for a chat of several messages, which only a chat template can render."""
        assert isinstance(item, WordProblem | CodeProblem)
        return f"{_only_text(item, self.name)}\n"

    def answer(self, kind: Kind, completion: str) -> str | None:
        for mark in self._marks:
            completion = completion.replace(mark, "")
        whole = self.whole(completion)
        return last_program(whole) if kind == CODE else extract(whole).text

    def whole(self, completion: str) -> str:
        """The completion, preceded by any part of it that the prompt already holds."""
        return completion

    def opening(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt of an environment's first messages. Without a chat template: their texts, exactly as they are."""
        return "".join(str(one["content"]) for one in messages)

    def following(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """What stands between a reply and the next, if these are the messages between them.

        It begins where the text of the reply ends: a stop token that the model drew is part of it.
        """
        return "".join(str(one["content"]) for one in messages)

    def is_worked(self, kind: Kind, completion: str) -> bool:
        """Whether there are thoughts before the answer."""
        return "<think>" in completion or "</think>" in completion


def as_trained(answer_format: AnswerFormat) -> VerbatimFormat:
    """The format, if the reward of a run of GRPO can read its completions. Raises LonghaulError (INPUT) if not."""
    if isinstance(answer_format, VerbatimFormat):
        return answer_format
    raise LonghaulError(
        f"the run's own reward judges this suite, and reads completions as the run asks for them, not in the style "
        f"{answer_format.name}",
        kept="everything; nothing was asked yet",
        next_command="the same command without --style",
        exit_code=ExitCode.INPUT,
    )


BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
"""The words with which the published reasoning models of R1's family were trained."""
FENCED = f"Please reason step by step, and put your final program in {FENCE}."
"""The same for programs."""


class ChatFormat(VerbatimFormat):
    """Asks problems in the model's chat template, without added words.

    wrap: turns the words into the whole prompt. chat: the same for all messages of a chat; None without a template.
    talk: the same for messages and tools of an environment.
    """

    words = code_words = ""
    """Added at the end of what the user says, for an answer and for a program."""

    def __init__(
        self,
        name: str,
        wrap: Callable[[str], str],
        marks: Sequence[str] = (),
        chat: Render | None = None,
        talk: Talk | None = None,
    ) -> None:
        super().__init__(marks)
        self.name, self._wrap, self._chat, self._talk = name, wrap, chat, talk
        self._begun = "<think>" if wrap("").rstrip().endswith("<think>") else ""

    def ask(self, kind: Kind, item: Item) -> str:
        """Raises LonghaulError (INPUT) if there are messages that the template, or a missing one, cannot render."""
        assert isinstance(item, WordProblem | CodeProblem)
        words = self.words if isinstance(item, WordProblem) else self.code_words
        if not item.messages or self._chat is None:
            return self._wrap(_only_text(item, self.name) + words)
        last = max(place for place, one in enumerate(item.messages) if one.role == "user")
        return self._chat(
            [
                Message(one.role, one.content + words) if place == last else one
                for place, one in enumerate(item.messages)
            ]
        )

    def opening(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return super().opening(messages) if self._talk is None else self._talk(messages, tools)

    def following(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if self._talk is None:
            return super().following(messages)
        reply = {"role": "assistant", "content": SOME_REPLY}
        return self._talk([{"role": "user", "content": "-"}, reply, *messages], ()).partition(SOME_REPLY)[2]

    def whole(self, completion: str) -> str:
        """Includes the thoughts that the template opened; if they do not end, nothing in them is an answer."""
        return self._begun + completion


class BoxedFormat(ChatFormat):
    """Asks for an answer in a box, or for a program in a fence, in the model's chat template if it has one."""

    words, code_words = f"\n{BOXED}", f"\n{FENCED}"


def _only_text(item: WordProblem | CodeProblem, style: str) -> str:
    if len(item.messages) < 2:
        return item.text
    roles = ", ".join(one.role for one in item.messages)
    raise LonghaulError(
        f"a prompt is a chat ({roles}), and the prompt style {style} has no chat template to render it",
        kept="everything; nothing was asked yet",
        next_command="the same command with --set model.prompt_style=chat   (for a model that has a chat template)",
        exit_code=ExitCode.INPUT,
    )


NUMBER_MARK = "####"
_MATHS = (
    "{text}\n\nThink step by step. Then end with one line that begins with `" + NUMBER_MARK + "`, followed by "
    "the answer as a number and nothing else."
)
_CODE = f"{{text}}\n\nThink step by step. Then end with the whole program in {FENCE}."


class PlainFormat:
    """A few sentences, in the model's chat template if it has one.

    wrap: turns them into the whole prompt. marks: special tokens of the model, which are removed from an answer.
    """

    stop: tuple[str, ...] = ()

    def __init__(
        self,
        name: str = "plain",
        wrap: Callable[[str], str] = lambda text: f"{text}\n\nSolution:\n",
        marks: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._wrap, self._marks = wrap, tuple(marks)
        self._words = {kind.name: kind.plain for kind in registry.known() if kind.plain}
        self.kinds: frozenset[Kind] = frozenset({MATHS, CODE, *self._words})

    def ask(self, kind: Kind, item: Item) -> str:
        if isinstance(item, WordProblem):
            return self._wrap(_MATHS.format(text=item.text))
        if isinstance(item, CodeProblem):
            return self._wrap(_CODE.format(text=item.text))
        return self._wrap(self._words[kind].ask(item))

    def answer(self, kind: Kind, completion: str) -> str | None:
        """By the kind's own words; for a word problem, the text after the first mark; for a program, the last fence."""
        for mark in self._marks:
            completion = completion.replace(mark, "")
        if kind == MATHS:
            return after_mark(completion, NUMBER_MARK)
        if kind == CODE:
            return last_program(completion)
        return self._words[kind].answer(completion)

    def is_worked(self, kind: Kind, completion: str) -> bool:
        """Whether there are words before the answer."""
        mark = {MATHS: NUMBER_MARK, CODE: "```"}.get(kind) or self._words[kind].mark
        return len(completion.partition(mark)[0].split()) > 3
