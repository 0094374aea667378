"""The environment of a model with tools: plain functions, called as the model asks, until it replies without a call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from workers.environments.protocol import Message
from workers.environments.tool_calls import ToolCall, tool_calls
from workers.user_code.imports import brief

LONGEST = 20_000
"""Characters of a tool's result that the model sees."""
NO_TEXT = "(no text)"
"""What the model sees of a result that is empty."""


class ToolEnvironment:
    """Subclass it: name the tools, and say what a finished episode earns.

    A call that is no JSON, of an unknown tool, with wrong arguments, or of a tool that raises is answered with a
    message that says so; nothing ends. The episode ends with the first reply without a call.
    """

    tools: ClassVar[Sequence[Callable[..., Any]]] = ()
    """Functions with type hints and a docstring, which are what the model is shown. They may be coroutines."""
    prompt = ""
    """A system message; empty: none."""

    def reward(self, row: dict[str, Any], reply: str, messages: list[Message]) -> float:
        """What the last reply earns. messages: the whole conversation."""
        raise NotImplementedError(f"{type(self).__name__} has no method reward(row, reply, messages)")

    def reset(self, row: dict[str, Any]) -> list[Message]:
        self._row = row
        first = [{"role": "system", "content": self.prompt}] if self.prompt else []
        return [*first, *(row.get("messages") or [{"role": "user", "content": row["prompt"]}])]

    def step(self, messages: list[Message], reply: str) -> tuple[list[Message], float, bool]:
        calls = tool_calls(reply)
        if not calls:
            return [], self.reward(self._row, reply, messages), True
        return [{"role": "tool", "content": readable(self._result(call))} for call in calls], 0.0, False

    def _result(self, call: ToolCall) -> str:
        if call.problem:
            return call.problem
        known = {tool.__name__: tool for tool in self.tools}
        if call.name not in known:
            return f"There is no tool {call.name!r}. There are: {', '.join(known) or 'none'}."
        tool = known[call.name]
        try:
            inspect.signature(tool).bind(**call.arguments)
        except TypeError as error:
            return f"The tool {call.name}{inspect.signature(tool)} cannot take these arguments: {error}."
        try:
            found = tool(**call.arguments)
            text = str(asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found)
        except Exception as error:  # the model may ask for anything; the user's tool says no
            return f"The tool {call.name} failed: {brief(error)}."
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def readable(result: str) -> str:
    """A result as a message: with some text, and without the lone surrogates that a model can write in JSON. (pure)"""
    return result.encode("utf-8", "replace").decode() or NO_TEXT


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found
