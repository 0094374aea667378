"""Checks across the knobs of [data], each returning a Finding or None; none raises. (pure)"""

from __future__ import annotations

from contextlib import suppress

from profiles.finding import Finding
from profiles.schema import Profile
from profiles.suites import UnknownSuite, record_of


def sources_fill_buffers(p: Profile) -> Finding | None:
    if not p.data.sources or (p.run.worker == "azr" and not p.data.tasks):
        return None
    return Finding(
        ("data.sources", "data.tasks", "run.worker"),
        "fills the buffers of self-play: it needs the worker azr, and no finite source of tasks (data.tasks)",
    )


def weights_fit_the_files(p: Profile) -> Finding | None:
    if not p.data.weights or len(p.data.weights) == len(p.data.names) > 1:
        return None
    return Finding(
        ("data.weights", "data.tasks"),
        f"has {len(p.data.weights)} weights for {len(p.data.names)} files: one for each of several files, or none",
    )


def files_differ(p: Profile) -> Finding | None:
    if "" not in p.data.names and len(set(p.data.names)) == len(p.data.names):
        return None
    return Finding(("data.tasks",), "names nothing, or the same file twice; data.weights says how often it is drawn")


def several_files_need_problems(p: Profile) -> Finding | None:
    if p.run.worker == "grpo" or (not p.data.weights and p.data.held_out == 0 and isinstance(p.data.tasks, str)):
        return None
    return Finding(
        ("data.tasks", "data.weights", "data.held_out", "run.worker"),
        "names several files, weights or a held-out share: only the worker grpo reads these",
    )


def weights_decide_alone(p: Profile) -> Finding | None:
    if not p.data.weights or not (p.grpo.sent.enabled or p.grpo.problems):
        return None
    return Finding(
        ("data.weights", "grpo.sent.enabled", "grpo.problems"),
        "decides how often each file is drawn, and so does a curriculum or the first N problems: leave one of them out",
    )


def held_out_problems_are_kept(p: Profile) -> Finding | None:
    if p.data.held_out > 0:
        return None
    for name in p.validation.suites:
        with suppress(UnknownSuite):
            if record_of(name).asks_own_data:
                return Finding(
                    ("validation.suites", "data.held_out"), f"has {name}, which asks the share data.held_out: set it"
                )
    return None


RULES = (
    sources_fill_buffers,
    weights_fit_the_files,
    files_differ,
    several_files_need_problems,
    weights_decide_alone,
    held_out_problems_are_kept,
)
