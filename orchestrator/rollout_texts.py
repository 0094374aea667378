"""Reads the newest rollouts of a run as text. A worker spells them; nothing is judged anew."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from orchestrator.line_worker import started
from orchestrator.sampled import Sample
from profiles.built_in import BUILT_IN
from profiles.errors import LonghaulError
from profiles.schema import Profile
from state.history import History
from state.layout import RunDir
from workers.line_contract import RolloutsSpec, RolloutText, RolloutTexts


def newest_rollouts(run: RunDir, history: History, profile: Profile, limit: int) -> list[Sample]:
    """Of the newest whole file: the group whose rewards differ most. None if there is no file that can be read."""
    path = newest_file(run, history.current.cycle if history.current else 0)
    if path is None:
        return []
    spec = RolloutsSpec(str(path.absolute()), tokenizers(run, history, profile), profile.model.prompt_style)
    try:
        with started("workers.rollouts", spec, name="rollouts", kept="the run, unchanged") as worker:
            told = next((one for one in worker.hear() if isinstance(one, RolloutTexts)), None)
    except LonghaulError:  # deleted meanwhile, or of a worker whose rollouts have no text
        return []
    if told is None:
        return []
    group = next((one for one in told.groups if one.key == told.chosen), None)
    role, task = (group.role, group.task) if group is not None else ("", "")
    return [sample_of(one, told.step, role, task, told.prompt) for one in told.rollouts[:limit]]


def newest_file(run: RunDir, cycle: int) -> Path | None:
    """Of the newest step of this cycle, or of those before; the last file may still be half written."""
    for number in range(cycle, max(-1, cycle - 3), -1):
        # A longer name has a higher number: step 1000000 comes after step 999999.
        paths = sorted(run.rollouts(number).glob("step-*.jsonl"), key=lambda path: (len(path.name), path.name))
        for path in reversed(paths):
            with suppress(OSError):
                if b'"sha256"' in path.read_bytes()[-100:]:
                    return path
    return None


def tokenizers(run: RunDir, history: History, profile: Profile) -> tuple[str, ...]:
    """Folders that may hold the tokenizer: the head, and the model that the run began with."""
    known = BUILT_IN.get(profile.model.path)
    model = known.directory if known else Path(profile.model.path).expanduser()
    head = [run.root / history.head.path] if history.head is not None else []
    return tuple(str(folder.absolute()) for folder in (*head, model))


def sample_of(told: RolloutText, step: int, role: str, task: str, prompt: str) -> Sample:
    if role == "propose":
        verdict = "a valid new task" if told.is_correct else "no valid task"
    else:
        verdict = "right" if told.is_correct else "wrong" if told.is_answered else "no answer found"
    cut = ", cut at the limit" if told.is_cut else ""
    failed = f", not judged: {told.failure}" if told.failure else ""
    answer = "".join(text for _, text in told.pieces)
    found = (("found", told.answer),) if told.answer is not None and role != "propose" else ()
    texts = (("prompt", prompt), ("answer", answer), *found)
    return Sample("rollout", step, " ".join(filter(None, (role, task))), texts, f"{verdict}{cut}{failed}", told.reward)
