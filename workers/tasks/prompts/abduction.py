"""The words of abduction in each style. (pure)"""

from __future__ import annotations

import re

from workers.tasks.prompts import english, marks, plain

GOAL = """\
# Task: write a program whose input is hard to deduce
Design a new and unique Python program, together with one input for it, that takes deep algorithmic reasoning to \
follow. It becomes a question of an I.Q. test: a test subject is shown the program and the output, and has to deduce \
an input that gives this output."""

QUESTION = """\
# Task: deduce an input of a program
For which input does `f` return the given output? There may be several: give one of them. Think step by step, then \
give the input in a fence that begins with ```input
Put strings in quotes and separate several arguments by commas. Write the arguments alone, without a call of `f`.

## Program
```python
{program}
```

## Output
```output
{output}
```

## Example of the form
```input
'John', {{'age': 20, 'city': 'New York'}}
```"""

ENGLISH = english.OnePair(
    GOAL, "how hard it is to deduce an input from the program and the output", QUESTION, fence="input"
)

POCKET = marks.OnePair("<pabd>{program}<in>{input}<sep>", "<abd>{program}<out>{output}<in>")

_CALL = re.compile(r"f\((.*)\)", re.DOTALL)


def _arguments(text: str) -> str:
    """The text between the parentheses, if this is a call of `f`."""
    call = _CALL.fullmatch(text)
    return call[1] if call else text


PLAIN = plain.MarkedLine(
    "For which input does this Python function return the given value? Any input that does is right.\n\n"
    "```python\n{program}\n```\n\nThe value: {output}\n\n"
    + plain.ENDING.format(what="the arguments as Python literals, separated by commas, without a call of `f`"),
    _arguments,
)
