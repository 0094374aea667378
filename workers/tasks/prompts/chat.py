"""The chat template of an instruct model: turns messages into the text of a prompt. Reads only the model's directory.

Renders with jinja2's sandbox and transformers' settings, with one difference: templates that write the date get a fixed
one, because a prompt must be the same after a resume.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

from profiles.errors import ExitCode, LonghaulError
from workers.tasks.prompts import wording
from workers.tasks.prompts.response import OPEN

FIXED_DATE = datetime(2024, 7, 26, tzinfo=UTC)
"""The date that templates of Llama 3 write if they are given none."""


Thinking = Literal["template", "on", "off"]
SWITCHES = ("enable_thinking", "thinking")
"""Names under which templates read whether the model is to think: Qwen 3, SmolLM 3, GLM 4.5; Granite, DeepSeek."""


def wrapper_of(directory: Path, thinking: Thinking = "template") -> Callable[[str], str]:
    """Turns the text of a task into a prompt: one user message, the assistant's turn, and the open think tag.

    Raises LonghaulError (INPUT) if the model has no chat template, or an unusable one.
    """
    render = template_of(directory, thinking)

    def wrap(task: str) -> str:
        text = render(wording.CHAT.format(task=task))
        # Templates of models that always think open the tag already.
        return text if text.rstrip().endswith(OPEN) else text + OPEN

    return wrap


def template_of(directory: Path, thinking: Thinking = "template") -> Callable[[str], str]:
    """Turns one user message into a prompt that ends where the assistant begins. Raises like `wrapper_of`."""
    render = partial(_render, *_prepared(directory, thinking))
    render("the template is tried before anything is trained")
    return render


class Conversation(Protocol):
    """Turns messages ({"role", "content"}) into a prompt. tools: JSON schemas that the template shows."""

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str: ...


def conversation_of(directory: Path, thinking: Thinking = "template") -> Conversation:
    """Like `template_of`, for several messages."""
    return partial(_rendered, *_prepared(directory, thinking))


def _prepared(directory: Path, thinking: Thinking) -> tuple[Any, dict[str, Any]]:
    """The template, and what it is given besides messages. Raises LonghaulError (INPUT) where it has no switch."""
    settings = _settings(directory)
    source = _template(directory, settings)
    given: dict[str, Any] = {
        name: _text(settings.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
    }
    template = _compiled(source)
    if thinking != "template":
        switches = _variables(source) & set(SWITCHES)
        if not switches:
            raise LonghaulError(
                f'model.thinking = "{thinking}", and the chat template of the model in {directory} has no such switch',
                kept="the run, unchanged",
                next_command="the same command with --set model.thinking=template",
                exit_code=ExitCode.INPUT,
            )
        given |= dict.fromkeys(switches, thinking == "on")
    return template, given


def _variables(source: str) -> set[str]:
    """Names that a template reads and does not set."""
    from jinja2.meta import find_undeclared_variables

    return set(find_undeclared_variables(_environment().parse(source)))


def has_template(directory: Path) -> bool:
    """Whether the model has a chat template, usable or not."""
    files = ("chat_template.jinja", "chat_template.json")
    return any((directory / name).is_file() for name in files) or bool(_settings(directory).get("chat_template"))


def _render(template: Any, tokens: dict[str, Any], text: str) -> str:
    return _rendered(template, tokens, [{"role": "user", "content": text}])


def _rendered(
    template: Any,
    tokens: dict[str, Any],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    from jinja2 import TemplateError

    given = list(messages)
    try:
        return str(
            template.render(
                messages=given,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=True,
                **tokens,
            )
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        what = "a single user message" if len(given) == 1 else f"a conversation of {len(given)} messages"
        raise _unusable(f"fails on {what}: {error}") from error


def _compiled(source: str) -> Any:
    from jinja2 import TemplateError

    try:
        return _environment().from_string(source)
    except TemplateError as error:
        raise _unusable(f"is not a template: {error}") from error


def _environment() -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = FIXED_DATE.strftime
    return environment


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _settings(directory: Path) -> dict[str, Any]:
    return _json(directory / "tokenizer_config.json")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _unusable(f"cannot be read: {path.name} is not valid JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _template(directory: Path, settings: dict[str, Any]) -> str:
    """The template. Its own file takes precedence, as in transformers; of several named ones, `default` is used."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = next((one["template"] for one in found if one.get("name") == "default"), None)
    if found is None and (directory / "chat_template.json").is_file():  # as processors of several kinds of input had it
        found = _json(directory / "chat_template.json").get("chat_template")
    if not isinstance(found, str):
        raise _unusable("is missing: neither chat_template.jinja nor tokenizer_config.json holds one")
    return found


def _text(token: Any) -> str:
    """The text of a special token, in the older or the newer file format."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def special_tokens(directory: Path) -> tuple[str, ...]:
    """Texts that the tokenizer reads as control tokens, except our own tags."""
    found = json.loads((directory / "tokenizer.json").read_bytes()).get("added_tokens") or []
    texts = [str(one["content"]) for one in found if one.get("special")]
    return tuple(text for text in texts if text.strip() and text.strip("</>") not in ("think", "answer"))


def _unusable(why: str) -> LonghaulError:
    return LonghaulError(
        f"the model's chat template {why}",
        kept="the run, unchanged",
        next_command='name an instruct model in model.path, or set model.prompt_style = "azr" for a base model',
        exit_code=ExitCode.INPUT,
    )
