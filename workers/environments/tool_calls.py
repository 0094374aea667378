"""Finds the tool calls in a reply, in the forms that chat templates teach. (pure)

| form | models |
| --- | --- |
| `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them | Hermes, Qwen 2.5, Qwen 3 |
| `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>` | Qwen 3 Coder |
| `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]` | Mistral |
| the whole reply is `{"name": ..., "parameters": {...}}`, perhaps behind `<|python_tag|>` | Llama 3.1 and later |
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

MOST_CALLS = 32
LONGEST = 200_000
"""Characters of a reply that are searched, from its end."""
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\s]{1,200})>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]{1,200})>\n?(.*?)\n?</parameter>", re.DOTALL)
_LISTED = "[TOOL_CALLS]"
_TAG = "<|python_tag|>"
_AFTER_THOUGHT = "</think>"


@dataclass(frozen=True)
class ToolCall:
    """A call, or why it is none. arguments: by name."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    """What is wrong with it, as a sentence for the model; empty: nothing."""


def tool_calls(reply: str) -> list[ToolCall]:
    """The calls of a reply in order. A thought that ended before them does not count."""
    text = reply[-LONGEST:].rpartition(_AFTER_THOUGHT)[2]
    if tagged := _TAGGED.findall(text)[:MOST_CALLS]:
        return [call for one in tagged for call in _tagged(one)]
    if _LISTED in text:
        return _listed(text.partition(_LISTED)[2])
    whole = text.strip().removeprefix(_TAG).strip()
    if _TAG in text or (whole.startswith("{") and '"name"' in whole):
        return [call for one in whole.split("; ") for call in _json(one)] if "}; {" in whole else _json(whole)
    return []


def _tagged(text: str) -> list[ToolCall]:
    if functions := _FUNCTION.findall(text):
        return [
            ToolCall(name, {key: _value(value) for key, value in _PARAMETER.findall(_closed(body))})
            for name, body in functions
        ]
    return _json(text)


def _closed(body: str) -> str:
    """The body up to its last closing mark: behind it, each opening mark would be searched for one to the end."""
    before, mark, _ = body.rpartition("</parameter>")
    return before + mark


def _listed(text: str) -> list[ToolCall]:
    """Mistral's list, or its newer form NAME{...}."""
    text = text.strip()
    if text.startswith("["):
        return _json(text)
    name, brace, rest = text.partition("{")
    call = _json(json.dumps({"name": name.strip()})[:-1] + ', "arguments": ' + brace + rest + "}")
    return call if name.strip() else _json(text)


def _json(text: str) -> list[ToolCall]:
    try:
        found, _ = json.JSONDecoder().raw_decode(text.strip())
    except (ValueError, RecursionError) as error:
        return [ToolCall("", problem=f"The tool call is not JSON: {error}.")]
    return [_call(one) for one in (found if isinstance(found, list) else [found])[:MOST_CALLS]]


def _call(found: Any) -> ToolCall:
    if isinstance(found, dict) and isinstance(found.get("function"), dict):  # as OpenAI nests it
        found = found["function"]
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return ToolCall("", problem='The tool call has no "name".')
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        return ToolCall(found["name"], problem='The "arguments" of the tool call are no JSON object.')
    return ToolCall(found["name"], {str(key): value for key, value in arguments.items()})


def _value(text: str) -> Any:
    """A parameter without quotes: JSON if it is, else text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
