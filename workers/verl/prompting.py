"""How verl turns one of our prompts into tokens: as it stands. Loaded by `plugin.py`, in processes of verl alone."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

NAME = "longhaul"


@register(NAME)
class Prompting(SingleTurnAgentLoop):  # type: ignore[misc]
    """One prompt, one completion. verl's rules for the marks between turns, by model family, have nothing to do here:
    some of them refuse a tokenizer without these marks."""

    def __init__(self, *args: Any, hf_model_type: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, hf_model_type=None, **kwargs)
