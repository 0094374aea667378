"""Arithmetic with a calculator: a reply that ends with `=` gets the value of the expression before it.

It is an inline tool: the text `=` ends a reply, and the value is what follows. Any model can use it, with or without a
chat template.
"""

from __future__ import annotations

import re
from typing import Any

from workers.environments.protocol import Message
from workers.verifiers.verify import judge

EXPRESSION = re.compile(r"(\d{1,9}) ?([-+*/]) ?(\d{1,9}) ?=$")


class Calculator:
    """reward: 1 if the last reply gives the right answer."""

    stop = ("=",)

    def reset(self, row: dict[str, Any]) -> list[Message]:
        self.answer = str(row["answer"])
        return [{"role": "user", "content": f"{row['prompt']}\n"}]

    def step(self, messages: list[Message], reply: str) -> tuple[list[Message], float, bool]:
        if not reply.endswith("="):
            return [], float(judge(self.answer, reply).correct), True
        return [{"role": "tool", "content": value_of(reply)}], 0.0, False


def value_of(text: str) -> str:
    """The value of the operation at the end of the text; `?` if there is none, or it has no whole value. (pure)"""
    found = EXPRESSION.search(text)
    if found is None:
        return "?"
    left, right = int(found[1]), int(found[3])
    match found[2]:
        case "+":
            return str(left + right)
        case "-":
            return str(left - right)
        case "*":
            return str(left * right)
        case _:
            return str(left // right) if right and left % right == 0 else "?"
