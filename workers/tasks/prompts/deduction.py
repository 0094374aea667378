"""The words of deduction in each style. (pure)"""

from __future__ import annotations

from workers.tasks.prompts import english, marks, plain

GOAL = """\
# Task: write a program whose output is hard to deduce
Design a new and unique Python program, together with one input for it, that takes deep algorithmic reasoning to \
follow. Both become a question of an I.Q. test: a test subject is shown the program and the input, and has to deduce \
the output."""

QUESTION = """\
# Task: deduce the output of a program
What does `f` return for the given input? Think step by step, then give the output in a fence that begins with ```output
Put strings in quotes. If several values are returned, write them as one tuple.

## Program
```python
{program}
```

## Input
```input
{input}
```

## Example of the form
```output
{{'age': 20, 'city': 'New York'}}
```"""

ENGLISH = english.OnePair(
    GOAL, "how hard it is to deduce the output from the program and the input", QUESTION, fence="output"
)

POCKET = marks.OnePair("<pded>{program}<in>{input}<sep>", "<ded>{program}<in>{input}<out>")

PLAIN = plain.MarkedLine(
    "What does this Python function return for the given input?\n\n```python\n{program}\n```\n\n"
    "The call: f({input})\n\n" + plain.ENDING.format(what="the returned value as a Python literal")
)
