"""Shows the progress of an evaluation: one line per suite, updated in place on a terminal."""

from __future__ import annotations

import time
from typing import TextIO

from orchestrator.display.wording import count, duration, harmless, percent
from workers.line_contract import Answered, Loading, Note, Said, SuiteBegun

EVERY_S = 10.0
"""Seconds between two progress lines without a terminal."""


class Progress:
    """Shows progress: one line updated in place on a terminal, otherwise occasional lines."""

    def __init__(self, out: TextIO, *, on_terminal: bool | None = None) -> None:
        self._out = out
        self._is_terminal = out.isatty() if on_terminal is None else on_terminal
        self._is_open = False
        self._reported_at = float("-inf")
        self._totals: dict[str, int] = {}
        self._began: dict[str, tuple[float, int]] = {}
        self._right: dict[str, tuple[float, int]] = {}
        self._told: tuple[str, int] | None = None

    @property
    def answered(self) -> int:
        return sum(n for _, n in self._right.values())

    @property
    def total(self) -> int:
        return sum(self._totals.values())

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._out.write(("\n" if self._is_open else "") + harmless(text) + "\n")
        self._out.flush()
        self._is_open = False

    def hear(self, message: Said) -> None:
        """Process one message from the worker."""
        match message:
            case SuiteBegun(suite=suite):
                self._totals[suite] = message.n
                self._right[suite] = (0.0, 0)
            case Answered(suite=suite, rows=rows):
                right, answered = self._right[suite]
                right += sum(num_right / samples for _, _, samples, num_right in rows)
                self._right[suite] = (right, answered + len(rows))
                self._tell(suite, time.monotonic())
            case Loading():
                if self.answered:
                    self.say(f"{count(self.answered)} of {count(self.total)} were already answered")
                self.say("loading the model")
            case Note(text=text):
                self.say(f"note: {text}")

    def _tell(self, suite: str, now: float) -> None:
        right, answered = self._right[suite]
        total = self._totals[suite]
        if suite not in self._began:  # earlier answers or the first batch give no rate
            self._began[suite] = (now, answered)
        began, before = self._began[suite]
        if not self._is_terminal and now - self._reported_at < EVERY_S and answered < total:
            return
        if (suite, answered) == self._told:  # answers of jobs are heard as they come, and again when they are collected
            return
        self._told = (suite, answered)
        self._reported_at = now
        text = f"{suite}: {count(answered)} of {count(total)}, {percent(right / answered)} right so far"
        if answered > before and answered < total:
            text += f", {duration((total - answered) * (now - began) / (answered - before))} left"
        if self._is_terminal:
            self._out.write("\r\x1b[K" + harmless(text))
            self._out.flush()
            self._is_open = True
        else:
            self.say(text)
