"""What a function is given: copies of the call's values, under the names that it asks for. (pure)"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from workers.rewards.functions.protocol import Call, Given, Signature

OWN_COLUMNS = frozenset({"prompt", "completion", "completion_ids"})
"""Of a row, not handed on as columns: TRL gives them under other names."""


class Problem:
    """The `problem` of a function: `prompt`, `answer`, `messages`, and every column, as attributes and by [name].

    A column of one of these names is reached by [name].
    """

    def __init__(self, call: Call) -> None:
        self.prompt, self.answer, self.messages = call.prompt, call.answer, call.messages
        self._columns = call.columns

    def __getattr__(self, name: str) -> Any:
        # copy and pickle ask an object without attributes.
        columns = self.__dict__.get("_columns", {})
        if name in columns:
            return columns[name]
        raise AttributeError(f"this problem has no column {name!r}; it has {', '.join(sorted(columns)) or 'none'}")

    def __getitem__(self, name: str) -> Any:
        if name in self._columns:
            return self._columns[name]
        if name in ("prompt", "answer", "messages"):
            return getattr(self, name)
        raise KeyError(f"{name}: this problem has the columns {', '.join(sorted(self._columns)) or 'none'}")

    def __contains__(self, name: str) -> bool:
        return name in self._columns or name in ("prompt", "answer", "messages")

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


def of_one(signature: Signature, call: Call) -> dict[str, Any]:
    """The arguments of a function of one rollout."""
    (given,) = call.rollouts
    known = {"problem": Problem(call), "completion": given.completion, "facts": given.facts}
    return {name: value for name, value in known.items() if signature.takes_any or name in signature.names}


def of_group(
    signature: Signature,
    call: Call,
    log_extra: Callable[[str, list[Any]], None],
    log_metric: Callable[[str, float], None],
) -> dict[str, Any]:
    """The arguments of a function in TRL's form: lists with a value for each rollout, of columns too.

    A required column that this row lacks is None. `answer` is the right answer where no column has that name.
    """
    columns = {name: value for name, value in call.columns.items() if name not in OWN_COLUMNS}
    if call.answer:
        columns.setdefault("answer", call.answer)
    for name in signature.required:
        columns.setdefault(name, None)
    prompt = call.messages or call.prompt
    found: dict[str, Any] = {name: _each(value, call) for name, value in columns.items()}
    found |= {
        "prompts": _each(prompt, call),
        "completions": [_completion(given, is_conversation=bool(call.messages)) for given in call.rollouts],
        "completion_ids": [given.completion_ids for given in call.rollouts],
        "trainer_state": SimpleNamespace(**call.state) if call.state else None,
        "log_extra": log_extra,
        "log_metric": log_metric,
    }
    return {name: value for name, value in found.items() if signature.takes_any or name in signature.names}


def _each(value: Any, call: Call) -> list[Any]:
    """A copy of the value for each rollout: a function may change one of them."""
    return [copy.deepcopy(value) for _ in call.rollouts]


def _completion(given: Given, *, is_conversation: bool) -> Any:
    """TRL hands on messages where the prompt is a conversation."""
    if is_conversation and isinstance(given.completion, str):
        return [{"role": "assistant", "content": given.completion}]
    return given.completion
