"""What an environment may return: messages with text, a finite reward, and whether it is over. Else it is told so in
words. (pure)"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from workers.environments.protocol import Message
from workers.rewards.functions.values import NoReward, number, shown
from workers.user_code.errors import BadReturn

FIRST = ("system", "developer", "user", "assistant", "tool")
"""Roles of the first messages."""
LATER = ("system", "user", "tool")
"""Roles of the messages that answer a reply."""
LONGEST = 1_000_000
"""Characters of a message."""


class BadAnswer(BadReturn):
    """What an environment returned is not what its protocol says."""


def messages_of(found: Any, roles: Sequence[str] = LATER) -> list[Message]:
    """The messages, with role, content and what else JSON can hold. Raises BadAnswer."""
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise BadAnswer(f"it returned {shown(found)} where a list of messages was expected")
    return [_message(place, one, roles) for place, one in enumerate(found, start=1)]


def _message(place: int, found: Any, roles: Sequence[str]) -> Message:
    if not isinstance(found, Mapping):
        raise BadAnswer(f"message {place} is {shown(found)}; a dict with role and content was expected")
    role, content = found.get("role"), found.get("content")
    if role not in roles:
        raise BadAnswer(f"message {place} has the role {shown(role)}; possible are {', '.join(roles)}")
    if not isinstance(content, str):
        raise BadAnswer(f"message {place} has the content {shown(content)}; a text was expected")
    if len(content) > LONGEST:
        raise BadAnswer(f"message {place} has {len(content)} characters, more than {LONGEST}")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise BadAnswer(f"message {place} has a lone surrogate character") from None
    return {"role": role, "content": content}


def first_of(found: Any) -> list[Message]:
    """What `reset` returned. Raises BadAnswer."""
    messages = messages_of(found, FIRST)
    if not any(one["content"].strip() for one in messages):
        raise BadAnswer("reset returned no text, and the model has nothing to answer")
    return messages


def step_of(found: Any) -> tuple[list[Message], float, bool]:
    """What `step` returned. Raises BadAnswer."""
    if not isinstance(found, tuple | list) or len(found) != 3:
        raise BadAnswer(f"step returned {shown(found)}; (messages, reward, is over) was expected")
    messages, reward, is_over = found
    if not isinstance(is_over, bool | int):
        raise BadAnswer(f"step returned {shown(is_over)} for whether it is over; True or False was expected")
    earned = reward_of(reward)
    said = [] if is_over else messages_of(messages)
    if not is_over and not any(one["content"] for one in said):
        raise BadAnswer("step returned no text although the episode is not over")
    return said, earned, bool(is_over)


def reward_of(found: Any) -> float:
    """A finite number. Raises BadAnswer."""
    try:
        return number(found)
    except NoReward as error:
        raise BadAnswer(str(error)) from error


def schemas_of(tools: Any) -> list[dict[str, Any]]:
    """JSON schemas of tools that are functions or schemas. Raises BadAnswer."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        raise BadAnswer(f"tools is {shown(tools)}; a list of functions or schemas was expected")
    return [_schema(one) for one in tools]


def _schema(tool: Any) -> dict[str, Any]:
    if isinstance(tool, Mapping):
        return dict(tool)
    if not callable(tool):
        raise BadAnswer(f"a tool is {shown(tool)}; a function or a schema was expected")
    return schema_of(tool)


def schema_of(tool: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a function with type hints and a docstring (`Args:` names each parameter). Raises
    BadAnswer."""
    from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException
    from transformers.utils.chat_template_utils import get_json_schema as schema

    try:
        found: dict[str, Any] = schema(tool)
    except (DocstringParsingException, TypeHintParsingException, ValueError, TypeError) as error:
        name = getattr(tool, "__name__", "a tool")
        raise BadAnswer(f"the tool {name}{inspect.signature(tool)} cannot be described: {error}"[:500]) from error
    return found


def rows_of(found: Any) -> list[dict[str, Any]]:
    """Rows of the environment's own, as JSON values. Raises BadAnswer."""
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise BadAnswer(f"rows returned {shown(found)}; dicts were expected")
    rows = []
    for place, one in enumerate(found, start=1):
        if not isinstance(one, Mapping):
            raise BadAnswer(f"row {place} is {shown(one)}; a dict was expected")
        try:
            rows.append(msgspec.json.decode(msgspec.json.encode(dict(one)), type=dict[str, Any]))
        except (TypeError, ValueError, RecursionError) as error:
            raise BadAnswer(f"row {place} holds what JSON cannot: {error}"[:300]) from error
    if not rows:
        raise BadAnswer("rows returned none")
    return rows
