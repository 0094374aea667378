"""The answer format that an evaluation names, for the model in a directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from profiles.errors import LonghaulError
from profiles.schema import Profile
from workers.models.files import unusable
from workers.problems.problem import Message
from workers.suites.answer_format import (
    AnswerFormat,
    BoxedFormat,
    ChatFormat,
    PlainFormat,
    Render,
    StyleFormat,
    Talk,
    VerbatimFormat,
)
from workers.tasks.prompts import chat
from workers.tasks.styles import style_of


def format_of(style: str, profile: Profile, directory: Path) -> AnswerFormat:
    """`run`: the profile's prompt style. `plain`, `plain-chat`; `auto`: the latter if the model has a chat template.

    Raises LonghaulError (INPUT) if a chat template is needed but missing or broken; ModelFileError without a tokenizer,
    which every style needs.
    """
    _check_tokenizer(directory / "tokenizer.json")
    if style == "run":
        return format_of_run(profile, directory)
    if style == "auto":
        style = "plain-chat" if chat.has_template(directory) else "plain"
    marks = chat.special_tokens(directory)
    if style == "plain":
        return PlainFormat(marks=marks)
    return PlainFormat("plain-chat", chat.template_of(directory, profile.model.thinking), marks)


def format_of_run(profile: Profile, directory: Path) -> AnswerFormat:
    """The format in which a run of this profile is trained. Raises LonghaulError (INPUT) if its template is missing."""
    thinking = profile.model.thinking
    if profile.model.prompt_style == "verbatim":
        return VerbatimFormat(chat.special_tokens(directory))
    if profile.model.prompt_style == "boxed":
        return BoxedFormat("boxed", lambda text: f"{text}\n", chat.special_tokens(directory))
    if profile.model.prompt_style == "boxed-chat":
        return BoxedFormat("boxed-chat", chat.template_of(directory, thinking), *_chats(directory, thinking))
    if profile.model.prompt_style == "chat":
        return ChatFormat("chat", chat.template_of(directory, thinking), *_chats(directory, thinking))
    return StyleFormat(style_of(profile, directory))


def _chats(directory: Path, thinking: chat.Thinking) -> tuple[tuple[str, ...], Render, Talk]:
    return chat.special_tokens(directory), chat_of(directory, thinking), talk_of(directory, thinking)


def talk_of(directory: Path, thinking: chat.Thinking = "template") -> Talk:
    """Renders messages and tools of an environment. Raises LonghaulError (INPUT) if the template is missing or broken.

    Where a template knows no messages of tools, or no system message, they become ones of the user.
    """
    render = chat.conversation_of(directory, thinking)

    def rendered(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        given = [dict(one) for one in messages]
        try:
            text = render(given, tools)
        except LonghaulError:
            return render(_simple(given), tools)
        return text if all(str(one["content"]).strip() in text for one in given) else render(_simple(given), tools)

    return rendered


def _simple(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same chat in the roles user and assistant alone, which take turns. (pure)"""
    found: list[dict[str, Any]] = []
    for one in messages:
        role = "assistant" if one["role"] == "assistant" else "user"
        if found and found[-1]["role"] == role:
            found[-1]["content"] += f"\n\n{one['content']}"
        else:
            found.append({"role": role, "content": str(one["content"])})
    return found


def chat_of(directory: Path, thinking: chat.Thinking = "template") -> Render:
    """Renders chats by the model's template. Raises LonghaulError (INPUT) if it is missing or broken.

    Some templates refuse a system message, and some drop it; its text then begins the first message of the user.
    """
    render = chat.conversation_of(directory, thinking)

    def rendered(messages: Sequence[Message]) -> str:
        given = [msgspec.to_builtins(one) for one in messages]
        if given[0]["role"] not in ("system", "developer"):
            return render(given)
        try:
            text = render(given)
        except LonghaulError:
            return render(_merged(given))
        return text if given[0]["content"].strip() in text else render(_merged(given))

    return rendered


def _merged(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """The same chat without its system message, whose text begins the first message of the user. (pure)"""
    system, *rest = messages
    first = next(place for place, one in enumerate(rest) if one["role"] == "user")
    asked = f"{system['content'].rstrip()}\n\n{rest[first]['content']}"
    return [{**one, "content": asked} if place == first else one for place, one in enumerate(rest)]


def _check_tokenizer(path: Path) -> None:
    try:
        json.loads(path.read_bytes())
    except FileNotFoundError:
        raise unusable(path, "is missing") from None
    except ValueError as error:
        raise unusable(path, f"is not valid JSON: {error}") from error
