"""Reads the newest rollouts of a run as text: prompt, answer, verdict, reward. Only for a command: it parses what a
model wrote, and loads a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.sampled import Sample
from profiles.schema import Profile
from state.history import History
from state.layout import RunDir

CUT = "length"
MOST_BYTES = 1 << 28
"""Of a rollout file; a larger one is left alone."""


def newest_rollouts(run: RunDir, history: History, profile: Profile, limit: int) -> list[Sample]:
    """The first `limit` rollouts of the newest whole file; none if there is none, or nothing can spell its tokens."""
    path = newest_file(run, history.current.cycle if history.current else 0)
    if path is None or path.stat().st_size > MOST_BYTES:
        return []
    rows = list(rows_of(path))
    if not any("completion_ids" in row for row in rows):
        return []
    decode = decoder_of(run, history, profile)
    step = int(path.stem.removeprefix("step-"))
    return [sample_of(row, step, decode) for row in rows if "completion_ids" in row][:limit] if decode else []


def newest_file(run: RunDir, cycle: int) -> Path | None:
    """Of the newest step of this cycle, or of the one before; the last file may still be half written."""
    for number in range(cycle, max(-1, cycle - 3), -1):
        for path in sorted(run.rollouts(number).glob("step-*.jsonl"), reverse=True):
            with suppress(OSError, ValueError):
                if b'"sha256"' in path.read_bytes()[-100:]:
                    return path
    return None


def rows_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """The records between header and trailer."""
    for line in path.read_bytes().splitlines()[1:-1]:
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                yield row


def decoder_of(run: RunDir, history: History, profile: Profile) -> Callable[[list[int]], str] | None:
    """Turns tokens into text, with the tokenizer of the head or of the model that the run began with."""
    folders = [run.root / history.head.path] if history.head is not None else []
    for folder in [*folders, Path(profile.model.path).expanduser()]:
        if (folder / "tokenizer.json").is_file():
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))
    return None


def sample_of(row: Mapping[str, Any], step: int, decode: Callable[[list[int]], str]) -> Sample:
    reward = row.get("reward")
    if row.get("role") == "propose":
        verdict = "a valid new task" if row.get("is_correct") else "no valid task"
    else:
        is_answered = row.get("is_answered", row.get("is_well_formed", True))
        verdict = "right" if row.get("is_correct") else "wrong" if is_answered else "no answer found"
    cut = ", cut at the limit" if row.get("finish_reason") == CUT else ""
    texts = (("prompt", decode(list(row.get("prompt_ids", ())))), ("answer", decode(list(row["completion_ids"]))))
    task = " ".join(filter(None, (str(row.get("role", "")), str(row.get("task", "")))))
    number = float(reward) if isinstance(reward, int | float) else None
    return Sample("rollout", step, task, texts, f"{verdict}{cut}", number)
