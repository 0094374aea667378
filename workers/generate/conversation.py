"""Turns typed text into a prompt: as a conversation, in the style in which a run is trained, or verbatim."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from profiles.schema import Profile
from workers.suites.answer_formats import format_of_run
from workers.suites.question import WordProblem
from workers.tasks.prompts import chat
from workers.tasks.prompts.azr import AzrStyle
from workers.tasks.styles import style_of


class Words:
    """Owns the conversation, if there is one.

    name: the style that `auto` resolved to. stop: texts that end a completion.
    """

    def __init__(self, style: str, profile: Profile, directory: Path) -> None:
        """Raises LonghaulError (INPUT) if a chat template is needed but missing or broken."""
        if style == "auto":
            style = "chat" if chat.has_template(directory) else "raw"
        self.name = style
        self.stop: tuple[str, ...] = ()
        self._messages: list[dict[str, str]] = []
        self._render = chat.conversation_of(directory, profile.model.thinking) if style == "chat" else None
        self._wrap: Callable[[str], str] = lambda text: text
        if style == "run":
            self._wrap, self.stop = _trained_words(profile, directory)

    def prompt(self, text: str) -> str:
        """The whole prompt; in a conversation, including all earlier turns."""
        if self._render is None:
            return self._wrap(text)
        return self._render([*self._messages, {"role": "user", "content": text}])

    def heard(self, text: str, answer: str) -> None:
        """Add both to the conversation."""
        self._messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    def forget(self) -> None:
        self._messages = []


def _trained_words(profile: Profile, directory: Path) -> tuple[Callable[[str], str], tuple[str, ...]]:
    if profile.model.prompt_style == "pocket":
        return (lambda text: text), ()
    if profile.model.prompt_style in ("azr", "azr-chat"):
        style = style_of(profile, directory)
        assert isinstance(style, AzrStyle)
        return style.ask, style.stop
    answer_format = format_of_run(profile, directory)
    return (lambda text: answer_format.ask("maths", WordProblem(text, Fraction(0)))), answer_format.stop
