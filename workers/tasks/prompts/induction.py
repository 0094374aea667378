"""The words of induction in each style. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from workers.tasks import programs
from workers.tasks.items import HiddenProgram, Item, Triplet
from workers.tasks.pairs import num_shown_of
from workers.tasks.prompts import plain, response, wording
from workers.tasks.prompts.marks import STRING, after_work, is_program
from workers.tasks.prompts.style import Form, Proposal

GOAL = """\
# Task: write inputs for a given program, and a hint
Below is a Python program. Write {count} inputs for it, and a message. They become a question of an I.Q. test: a test \
subject is shown some of the inputs with the outputs that the program gives, and your message, and has to deduce the \
program. The other inputs check the answer.

## Inputs
- Exactly {count} of them, each in a fence of its own that begins with ```input
- Varied: together they cover what the program can do, and give outputs that differ from each other.
- Separate the arguments of one input by commas and put strings in quotes. Every argument is a literal.

## Message
- One message in a fence that begins with ```message
- Any form will do: a puzzle, a coding question, a description. It may not contain the code.
- Inputs and message together must be enough to find the program, yet hard to find it with.

First make a plan: what does the program do, and which inputs and which message make it hard but possible to deduce? \
Then write the final inputs and the message.

## The program
```python
{program}
# each of your inputs is plugged in between these parentheses:
f(YOUR INPUT)
```

## Example of the form
```input
'John', {{'age': 20, 'city': 'New York'}}
```
```input
'Sammy', {{'age': 37, 'city': 'Los Angeles'}}
```
```message
The function takes a person's name and facts. What does it make of them?
```"""

QUESTION = """\
# Task: deduce a program from inputs and outputs
Find the function that turns each of these inputs into the output beside it. A message from its author is added. Think \
step by step, check your function against every pair, then give it in a fence that begins with ```python
It is also tried on inputs that you do not see.

## Pairs
{pairs}

## Message
```message
{message}
```

## Rules for the code
{rules}
- {banned}

## Example of the form
```python
def f(a):
    return a
```"""


def shown_pairs(item: Item, form: Form) -> list[tuple[str, str]]:
    """The pairs that a prompt shows, which are the first ones."""
    assert isinstance(item, HiddenProgram)
    return list(zip(item.inputs, item.outputs, strict=True))[: num_shown_of(len(item.inputs), form.num_shown)]


class English:
    """`Words` for models that read English."""

    def propose(self, references: Sequence[Triplet], parts: Sequence[str], form: Form, *, is_seeding: bool) -> str:
        """Shows the program, without its outputs."""
        return GOAL.format(count=form.num_inputs, program=references[0].program)

    def solve(self, item: Item, form: Form) -> str:
        assert isinstance(item, HiddenProgram)
        blocks = [
            f"{wording.fence(f'input_{number}', argument)}\n{wording.fence(f'output_{number}', value)}"
            for number, (argument, value) in enumerate(shown_pairs(item, form))
        ]
        rules = wording.CODE_RULES.format(seconds=form.seconds)
        return QUESTION.format(pairs="\n\n".join(blocks), message=item.message, rules=rules, banned=wording.BANNED)

    def proposal(self, text: str, form: Form, *, is_seeding: bool) -> Proposal | None:
        """The last inputs, and the first message."""
        found = response.fences(text)
        inputs = response.tagged(found, "input")
        messages = response.tagged(found, "message") or [
            response.element(text, "message") or response.after_comment(text, "Message") or ""
        ]
        if len(inputs) < form.num_inputs or not messages[0]:
            return None
        return Proposal("", tuple(inputs[-form.num_inputs :]), messages[0])

    def render(self, answer: str) -> str:
        return wording.fence("python", answer)

    def answer(self, text: str, form: Form) -> str | None:
        """The last fence with a program."""
        written = response.programs(response.fences(text))
        return programs.with_entry(written[-1]) if written else None


class Pocket:
    """`Words` in the marks of the pocket model."""

    begins = "def f(a):"

    def propose(self, references: Sequence[Triplet], parts: Sequence[str], form: Form, *, is_seeding: bool) -> str:
        """Shows the program for which inputs are wanted."""
        return f"<pind>{references[0].program}<in>"

    def solve(self, item: Item, form: Form) -> str:
        return (
            "<ind>" + "".join(f"{argument}<out>{value}<sep>" for argument, value in shown_pairs(item, form)) + "<prog>"
        )

    def proposal(self, text: str, form: Form, *, is_seeding: bool) -> Proposal | None:
        """`'uvw'<sep>'xy'<sep>…` with exactly `num_inputs` inputs."""
        inputs = tuple(text.split("<sep>"))
        well_formed = len(inputs) == form.num_inputs and all(STRING.fullmatch(part) for part in inputs)
        return Proposal(program="", inputs=inputs) if well_formed else None

    def render(self, answer: str) -> str:
        return answer

    def answer(self, text: str, form: Form) -> str | None:
        """The text after the last `<prog>` of worked steps, else the whole text."""
        found = after_work(text, "<prog>")
        return found if found is not None and is_program(found) else None


ENGLISH = English()
POCKET = Pocket()
PLAIN = plain.LastFence(
    "Write a Python function `f` that gives for each of these inputs the output beside it. It is also tried on inputs "
    "that you do not see.\n\n{pairs}\n\nThink step by step. Then end with the function in a fence that begins with "
    "```python"
)
