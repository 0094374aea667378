"""Tool calls in the forms that chat templates teach."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.environments.answers import step_of
from workers.environments.tool_calls import LONGEST, ToolCall, tool_calls
from workers.environments.tools import ToolEnvironment

ADD = ToolCall("add", {"a": 1, "b": 2})
BODY = '{"name": "add", "arguments": {"a": 1, "b": 2}}'


@pytest.mark.parametrize(
    "reply",
    [
        f"<tool_call>\n{BODY}\n</tool_call>",
        f"I add.\n<tool_call>{BODY}</tool_call> and more",
        f"<tool_call>{BODY}",  # the stop token came first
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n"
        "</tool_call>",
        f"[TOOL_CALLS] [{BODY}]",
        '[TOOL_CALLS]add{"a": 1, "b": 2}',
        '{"name": "add", "parameters": {"a": 1, "b": 2}}',
        f"<|python_tag|>{BODY}",
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>',
        '<tool_call>{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}</tool_call>',
        f"<think>perhaps <tool_call>{{}}</tool_call></think>\n<tool_call>{BODY}</tool_call>",
    ],
)
def test_a_call_is_found_in_the_form_of_every_template(reply: str) -> None:
    assert tool_calls(reply) == [ADD]


def test_several_calls_keep_their_order() -> None:
    other = ToolCall("sub", {"a": 3})
    said = f'<tool_call>{BODY}</tool_call>\n<tool_call>{{"name": "sub", "arguments": {{"a": 3}}}}</tool_call>'
    assert tool_calls(said) == [ADD, other]
    assert tool_calls(f'[TOOL_CALLS] [{BODY}, {{"name": "sub", "arguments": {{"a": 3}}}}]') == [ADD, other]


@pytest.mark.parametrize(
    "reply", ["", "12", "The answer is {12}.", '{"answer": 12}', "<think><tool_call>{}</think> 12"]
)
def test_a_reply_without_a_call_has_none(reply: str) -> None:
    assert tool_calls(reply) == []


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("<tool_call>{add 1 2}</tool_call>", "The tool call is not JSON"),
        ("<tool_call></tool_call>", "The tool call is not JSON"),
        ("[TOOL_CALLS] [{", "The tool call is not JSON"),
        ("<tool_call>[1]</tool_call>", 'has no "name"'),
        ('<tool_call>{"arguments": {}}</tool_call>', 'has no "name"'),
        ('<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>', "no JSON object"),
        ("<tool_call>" + "[" * 100_000, "The tool call is not JSON"),
    ],
)
def test_a_call_that_is_none_says_why(reply: str, problem: str) -> None:
    (call,) = tool_calls(reply)
    assert problem in call.problem


PIECES = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<function=", ">", "{", "}", '"name"', ":", "[", "\ud800", "x"]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_has_calls_or_none_and_never_raises(reply: str) -> None:
    for call in tool_calls(reply):
        json.dumps(call.arguments)


def test_only_the_end_of_a_long_reply_is_searched() -> None:
    assert tool_calls("x" * 2 * LONGEST + f"<tool_call>{BODY}</tool_call>") == [ADD]


def echo(text: str) -> str:
    """The same text."""
    return text


def fail(text: str) -> str:
    """Nothing."""
    raise ValueError(f"no {text}")


class Echo(ToolEnvironment):
    tools = (echo, fail)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("echo", "fine", "fine"),
        ("echo", "", "(no text)"),
        ("echo", r"\ud800", "?"),
        ("fail", r"\ud800", "The tool fail failed: ValueError: no ?."),
    ],
)
def test_whatever_a_tool_returns_is_a_message_and_ends_no_episode(name: str, text: str, said: str) -> None:
    reply = f'<tool_call>{{"name": "{name}", "arguments": {{"text": "{text}"}}}}</tool_call>'
    assert step_of(Echo().step([], reply)) == ([{"role": "tool", "content": said}], 0.0, False)
