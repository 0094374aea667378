"""Environments of the library verifiers (0.2 and 0.3), single-turn, multi-turn and with tools, as they are.

Each episode runs the library's own rollout, with a client of ours: what the library asks its model for is what `reset`
and `step` return, and a reply of ours is what it gets. Its rubric gives the reward, when the episode ends. Nothing here
reaches a network; what an environment itself reaches is its own matter.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from functools import cache
from typing import Any

import verifiers as vf
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage, ToolCall

from workers.environments.protocol import Message
from workers.environments.tool_calls import tool_calls
from workers.environments.tools import readable

MODEL = "longhaul"
_TAGGED = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)|\[TOOL_CALLS\].*", re.DOTALL)


class Rewritten(Exception):
    """An environment changed what was said before. The tokens of a conversation cannot follow that."""


@cache
def _loaded(id: str, options: str) -> Any:
    return vf.load_environment(id, **json.loads(options))


class VerifiersEnvironment:
    """id: of the environment, whose package must be installed. options: what its `load_environment` takes."""

    @staticmethod
    def prepare(id: str, **options: Any) -> None:
        """Load the environment, which all episodes share. The library sets signals then."""
        _loaded(id, json.dumps(options, sort_keys=True))

    def __init__(self, id: str, **options: Any) -> None:
        self._env = _loaded(id, json.dumps(options, sort_keys=True))
        self._client: _Client | None = None
        self._said: list[Message] = []
        """All messages of the last request."""
        self._rollout: asyncio.Task[Any] | None = None

    @property
    def tools(self) -> list[dict[str, Any]]:
        found = getattr(self._env, "tool_defs", None) or []
        return [
            {
                "type": "function",
                "function": {"name": one.name, "description": one.description, "parameters": one.parameters},
            }
            for one in found
        ]

    def rows(self) -> list[dict[str, Any]]:
        """The training data that the environment brings."""
        return [{key: value for key, value in row.items() if value is not None} for row in self._env.get_dataset()]

    async def reset(self, row: dict[str, Any]) -> list[Message]:
        prompt = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        asked = {"prompt": prompt, "example_id": row.get("example_id", 0), "answer": str(row.get("answer", ""))}
        asked |= {name: row[name] for name in ("info", "task") if name in row}
        self._client = _Client(bool(self.tools))
        self._rollout = asyncio.create_task(self._env._run_rollout_state(asked, self._client, MODEL, {}))
        said = await self._next()
        if said is None:
            await self._reward()  # says why, if it failed
            raise RuntimeError("the environment ended before it asked the model anything")
        self._said = said
        return said

    async def step(self, messages: list[Message], reply: str) -> tuple[list[Message], float, bool]:
        assert self._client is not None
        self._client.answer(reply)
        said = await self._next()
        if said is None:
            return [], await self._reward(), True
        before = len(self._said)
        if said[:before] != self._said or said[before : before + 1] == [] or said[before]["role"] != "assistant":
            raise Rewritten("the environment changes messages of earlier turns, which a conversation cannot follow")
        self._said = said
        return said[before + 1 :], 0.0, False

    async def end(self, messages: list[Message]) -> float:
        """A limit cut the episode short: the rubric judges it as it is."""
        assert self._client is not None
        self._client.cut()
        return await self._reward() if await self._next() is None else 0.0

    async def _next(self) -> list[Message] | None:
        """The messages of the library's next request; None if its rollout is over."""
        assert self._rollout is not None and self._client is not None
        asked = asyncio.create_task(self._client.asked.get())
        await asyncio.wait({asked, self._rollout}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        return None

    async def _reward(self) -> float:
        assert self._rollout is not None
        state = await self._rollout
        if (error := state.get("error")) is not None:
            raise RuntimeError(f"{type(error).__name__}: {error.__cause__ or error}")
        return float(state["reward"])


class _Client(Client):  # type: ignore[misc]  # the library has no types that mypy can read
    """The model of one episode, as the library sees it."""

    def __init__(self, has_tools: bool) -> None:
        super().__init__(None)
        self.asked: asyncio.Queue[list[Message]] = asyncio.Queue()
        self._has_tools = has_tools
        self._reply: asyncio.Future[str] | None = None

    def answer(self, reply: str) -> None:
        assert self._reply is not None
        self._reply.set_result(reply)

    def cut(self) -> None:
        """The library then judges what there is."""
        assert self._reply is not None
        self._reply.set_exception(vf.OverlongPromptError("the longest length is reached"))

    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **more: Any) -> Any:
        self._reply = asyncio.get_running_loop().create_future()
        self.asked.put_nowait([_plain(one) for one in prompt])
        return _response(await self._reply, self._has_tools)

    def setup_client(self, config: Any) -> None:
        """Nothing to set up."""

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> Any:
        return messages, {}

    async def get_native_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("get_response answers")

    async def raise_from_native_response(self, response: Any) -> None:
        """No response of ours is an error."""

    async def from_native_response(self, response: Any) -> Any:
        return response

    async def close(self) -> None:
        """Nothing is open."""


def _plain(message: Any) -> Message:
    """Role and text. Parts that are no text cannot be shown to a language model."""
    found = message if isinstance(message, dict) else message.model_dump()
    content = found.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    if found["role"] == "tool":
        content = readable(content or "")
    return {"role": str(found["role"]), "content": content or ""}


def _response(reply: str, has_tools: bool) -> Any:
    calls = tool_calls(reply) if has_tools else []
    made = [
        # Text that is no JSON makes the library say so to the model.
        ToolCall(id=f"call-{place}", name=one.name or "unknown", arguments=one.problem or json.dumps(one.arguments))
        for place, one in enumerate(calls)
    ]
    message = ResponseMessage(
        content=_TAGGED.sub("", reply).strip() if made else reply,
        tool_calls=made or None,
        finish_reason="tool_calls" if made else "stop",
        is_truncated=False,
    )
    return Response(id=MODEL, created=int(time.time()), model=MODEL, message=message)
