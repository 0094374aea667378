"""What an environment is: a class of the user's, one object for each episode. docs/environments.md explains it."""

from __future__ import annotations

from typing import Any, Protocol

Message = dict[str, Any]
"""role and content, as in a chat."""


class Environment(Protocol):
    """Answers a model. One object plays one episode; it is made by `NAME(**options)`. Both methods may be coroutines.

    Optional attributes:

    - `stop`, of the class: texts that end a reply, beside the stop token.
    - `tools`: functions, or JSON schemas, that the chat template shows to the model.
    - `prepare(**options)`, of the class: called once in the process, before any episode.
    - `rows()`, of the class: rows of its own, for a profile that names no data.
    - `end(messages)`: a last reward for an episode that a limit cuts short; without it 0.
    """

    def reset(self, row: dict[str, Any]) -> list[Message]:
        """The messages that the model first sees. row: a row of the data by column, with `prompt` and `answer`."""
        ...

    def step(self, messages: list[Message], reply: str) -> tuple[list[Message], float, bool]:
        """The messages that answer the reply, what it earns, and whether the episode is over.

        messages: the conversation so far; the reply is its last message. The reward of an episode is the sum over its
        steps.
        """
        ...
