"""Words that the kinds of task share, for models that read English. (pure)

The content follows section C of arXiv 2505.03335 and the published prompts; the wording is ours. The prompts also state
two rules of our own, because they are enforced: refused calls, and values that can be written as literals.
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.sandbox.screen import CALLS, TOLD

WRAPPER = """\
Below is a dialogue between a User and an Assistant. The User sets a task and the Assistant carries it out. First the \
Assistant thinks the task through, step by step, and only then does it give the User its answer. The thinking stands \
between <think> and </think>, the answer between <answer> and </answer>, like this: <think> thinking </think> \
<answer> answer </answer>
User: {task}
Assistant: <think>"""

CHAT = """\
{task}

First think the task through, step by step, and only then answer. Put the thinking between <think> and </think> and \
the answer between <answer> and </answer>, like this: <think> thinking </think> <answer> answer </answer>"""

CLASSES = "You may define classes of your own at the top of the program, if they make it more demanding."

CODE_RULES = """\
- The entry function is named `f`; it may contain nested definitions.
- `f` has at least one parameter and returns a value that can be written as a Python literal.
- It is deterministic: the same input gives the same output, always.
- It takes several steps and keeps track of state over them.
- It ends within {seconds:g} seconds.
- It uses no randomness, no date or time, no files or network, no printing or logging, nothing outside itself.
- Imports (pure modules of the standard library only) and classes stand at the very top.
- The program ends with the `return` of `f`; whatever follows is removed."""

SEEDING_RULE = "- All variables live inside functions; global ones are removed."

BANNED = (
    f"These words must not occur anywhere in the program, not even in comments: {', '.join(TOLD)}. "
    f"These calls are refused: {', '.join(CALLS)}."
)

INPUT_RULES = """\
- Exactly one test input. If `f` has several parameters, separate the arguments by commas.
- Put strings in quotes. Every argument is a literal: a number, string, tuple, list, dict, set, True, False or None."""

HIDE_INPUT = "- The test input itself does not occur in the program, in no comment either."

FORMAT = """\
- The program in a fence that begins with ```python
- The input in a fence that begins with ```input"""

EXAMPLE = """\
```python
def f(name: str, info: dict):
    # some steps of reasoning
    return result
```

```input
'John', {'age': 20, 'city': 'New York'}
```"""

CRITERIA = """\
- The program runs with the given input.
- {hard}: the harder, the better.
- It is creative, and different from the programs below.
- It has no banned word or call."""

PLAN = """\
First make a plan: say what makes the program hard to reason about, how it differs from the programs below, and what \
is creative about it. Then write the final program and its input."""

PARTS = """\
# Functions to build on
These functions exist already:

{parts}

Your `f` has to call every one of them ({names}). Do not define them again: they are put above your program. `f` must \
add a demanding step of its own; passing its arguments on to one of them does not count."""


def fence(tag: str, text: str) -> str:
    return f"```{tag}\n{text}\n```"


def numbered_references(references: Sequence[tuple[str, str, str]]) -> str:
    """A numbered block for each (program, input, output)."""
    blocks = [
        f"### Program {number}\n{fence('python', program)}\n{fence('input', argument)}\n{fence('output', value)}"
        for number, (program, argument, value) in enumerate(references, start=1)
    ]
    return "\n\n".join(blocks)


def join(*sections: str) -> str:
    return "\n\n".join(section for section in sections if section)
