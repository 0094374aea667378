"""Prints one line per fact when there is no terminal: to files, pipes and scheduler logs."""

from __future__ import annotations

import errno
import os
from typing import IO

from orchestrator.display.browse import Page
from orchestrator.display.scores import TaskScores
from orchestrator.display.view import View
from orchestrator.display.wording import TASK_NAMES, count, duration, harmless, percent, points, score
from orchestrator.ready import is_writable
from profiles.metrics import ACCURACY, KEPT_TOKENS, SKIPPED_SHARE, label_of
from state import event_kinds

STEP_EVERY_S = 5.0
"""Minimum time between two lines about steps."""
SLOW_AFTER_S = 30.0
"""After this long without output, print what the run is waiting for."""
MAX_LINE_BYTES = 4000
"""Less than PIPE_BUF (4096), which a pipe that is ready accepts without blocking the master."""
GONE = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET})
SHARES = (ACCURACY.name, SKIPPED_SHARE.name, KEPT_TOKENS.name)
"""GRPO signals shown in a step line."""
EVENTS_SHOWN = event_kinds.names(
    event_kinds.WARNING,
    event_kinds.OOM_RETRY,
    event_kinds.NOT_FINITE,
    event_kinds.EXHAUSTED,
    event_kinds.UNPARSED,
    event_kinds.CONFLICT,
    event_kinds.RESEED,
    event_kinds.IMPORT,
    event_kinds.PROBLEMS,
)


class Plain:
    """Same interface as the dashboard. A lost (EPIPE, EIO) or slow reader loses lines but never stops the run."""

    def __init__(self, stream: IO[str] | None) -> None:
        self.stream = stream
        self.dropped = 0
        self._last: View | None = None
        self._line_at = float("-inf")
        self._step_line_at = float("-inf")
        self._step_said = -1
        self._stage: tuple[str, str, int | None] = ("", "", None)
        self._stage_since = 0.0
        self._has_said, self._page = False, ""
        self.extent = (0, 1)

    def update(self, view: View) -> None:
        """Print what has changed since the last call."""
        if (stage := (view.phase, view.stage, view.step_now)) != self._stage:
            self._stage, self._stage_since = stage, view.now
        for line in self._news(view, self._last):
            self._write(line, view.now)
        self._last, self._has_said = view, False

    def say(self, text: str) -> None:
        """Print a message of the master."""
        self._has_said = True
        for line in text.splitlines():
            self._write(line, None)

    def turn_to(self, page: Page | None) -> None:
        """Print a page of text when it is opened; what changes in it later is not printed again."""
        if page is not None and page.title != self._page:
            self.say("\n".join((f"{page.title}:", *(line for entry in page.entries for line in entry.lines))))
        self._page = page.title if page is not None else ""

    def close(self, summary_text: str) -> None:
        self.say(summary_text)

    def _news(self, view: View, last: View | None) -> list[str]:
        lines = events_news(view, last)
        if _validated_at(view) != _validated_at(last):
            lines += validation_lines(view)
        if last is None or (view.cycle, view.phase) != (last.cycle, last.phase):
            lines.append(phase_line(view))
        if view.note and not self._has_said and (last is None or view.note != last.note):
            lines.append(view.note)
        cycle_over = view.step_in_cycle == view.steps_in_cycle
        if view.step > max(self._step_said, 0) and (cycle_over or view.now - self._step_line_at >= STEP_EVERY_S):
            if self._step_said >= 0 or view.step_in_cycle:
                lines.append(step_line(view))
            self._step_said, self._step_line_at = view.step, view.now
        if not lines and view.now - self._line_at >= SLOW_AFTER_S:
            lines.append(slow_line(view, view.now - self._stage_since))
        return lines

    def _write(self, line: str, now: float | None) -> None:
        if now is not None:
            self._line_at = now
        if self.stream is None:
            return
        missing = f"({self.dropped} lines could not be shown)\n" if self.dropped else ""
        try:
            self.dropped = 0 if write_line(self.stream, missing + harmless(line)) else self.dropped + 1
        except OSError as error:
            self.dropped += 1
            if error.errno in GONE:
                self.stream = None
        except ValueError:  # closed
            self.stream = None


def write_line(stream: IO[str], line: str) -> bool:
    """Write a line, or return False if the reader is not ready.

    Bypasses the stream's buffer if there is a descriptor: data left in the buffer of a broken pipe would fail again at
    interpreter exit and change the exit code.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    encoded = line.encode(encoding, "replace")[:MAX_LINE_BYTES] + b"\n"
    try:
        fd = stream.fileno()
    except (AttributeError, OSError, ValueError):
        stream.write(encoded.decode(encoding, "replace"))
        return True
    stream.flush()
    if not is_writable(fd):
        return False
    while encoded:
        encoded = encoded[os.write(fd, encoded) :]
    return True


def _validated_at(view: View | None) -> int:
    return view.scores[-1].last.step if view and view.scores else -1


def events_news(view: View, last: View | None) -> list[str]:
    """Warnings and similar events that are new since `last`."""
    known = set(last.events) if last is not None else set(view.events)
    return [f"{event.type}: {event.text}" for event in view.events if event.type in EVENTS_SHOWN and event not in known]


def phase_line(view: View) -> str:
    """The line for the start of a cycle or phase."""
    if view.phase == "waiting":
        return f"waiting {duration(view.waiting_left_s)}: {view.last_failure or view.note or 'before the next attempt'}"
    where = f"cycle {view.cycle}" + (f" of {view.max_cycles}" if view.max_cycles else "")
    steps = f", {view.steps_in_cycle} steps from step {view.step - view.step_in_cycle + 1}"
    return f"{where}: {view.phase}" + (steps if view.phase == view.kind.training else f" at step {view.step}")


def step_line(view: View) -> str:
    """The line for a finished step."""
    parts = [f"step {view.step}", f"{view.step_in_cycle} of {view.steps_in_cycle} in cycle {view.cycle}"]
    if view.last_reward is not None:
        parts.append(f"reward {view.last_reward:+.3f}")
    if view.worked:
        parts.append("worked " + " ".join(f"{c.task} {percent(c.last)}" for c in view.worked))
    if view.tokens:
        parts.append("tokens " + " ".join(f"{c.task} {c.last:.0f}" for c in view.tokens))
    if not view.kind.finds_tasks:
        parts += [f"{label_of(c.name)} {percent(c.last)}" for c in view.signals if c.name in SHARES]
        parts += [view.reading.place] if view.reading else []
    else:
        parts.append(f"{count(view.examples)} tasks found")
    if view.last_seconds is not None:
        parts.append(f"{view.last_seconds:.2f} s")
    if view.cycle_left_s is not None:
        parts.append(f"{duration(view.cycle_left_s)} left in cycle")
    return " · ".join(parts)


def validation_lines(view: View) -> list[str]:
    """The newest validation: a line per task, and the mean."""
    return [f"validation at step {row.last.step}: {score_text(row)}" for row in view.scores]


def score_text(row: TaskScores) -> str:
    """`deduction greedy 0.753 [0.70, 0.80] (+52 since the start), sampled 0.480, worked 88 %, 31 tokens`."""
    last = row.last
    text = f"{TASK_NAMES.get(row.task, harmless(row.task))} greedy {score(last.greedy)}"
    text += f" [{last.low:.2f}, {last.high:.2f}]"
    if len(row.scores) > 1:
        text += f" ({points(row.change)} since the start)"
    if last.sampled is not None:
        text += f", sampled {score(last.sampled)}"
    if last.reward is not None:
        text += f", mean reward {last.reward:.3g}"
    if last.worked is not None:
        text += f", worked {percent(last.worked)}"
    if last.tokens is not None:
        text += f", {last.tokens:.0f} tokens"
    return text


def slow_line(view: View, stage_s: float) -> str:
    """What the run is doing while nothing finishes. stage_s: seconds in the same step and stage."""
    if view.phase == "waiting":
        return phase_line(view)
    text = f"still in {view.phase}, cycle {view.cycle}"
    if view.step_now is not None and view.role == "train":
        text += f", step {view.step_now}"
    text += f": {harmless(view.stage) or 'starting the worker'} for {duration(stage_s)}"
    if view.step_elapsed_s is not None and view.step_median_s is not None:
        text += f" (step: {duration(view.step_elapsed_s)}, usually {duration(view.step_median_s)})"
    return text + (f", worker {view.worker_pid}" if view.worker_pid else "")
