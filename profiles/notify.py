"""The section [notify]: messages to a person while a run trains. (pure)"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from profiles.section import FREE, Count, Seconds, Section


class Notify(Section, frozen=True):
    """[notify]: what a person is told of, and by what (docs/away.md). No message can stop or delay a run."""

    on: Annotated[tuple[Literal["end", "crash", "stagnation", "best", "disk"], ...], FREE] = (
        "end",
        "crash",
        "stagnation",
        "best",
        "disk",
    )
    """What is told: the run ended, it failed or its master vanished, the rule of [stagnation] fired, a new best score,
    a full disk."""
    command: Annotated[tuple[str, ...], FREE] = ()
    """A program and its arguments; it gets each event as JSON on standard input. Everybody can see it: no secrets."""
    urls_env: Annotated[str, FREE] = ""
    """Environment variable with URLs of ntfy, Slack, e-mail and others (apprise, extra `notify`), separated by spaces.
    """
    urls_file: Annotated[str, FREE] = ""
    """File with such URLs, one a line. Neither is copied anywhere."""
    pass_env: Annotated[tuple[str, ...], FREE] = ()
    """Environment variables that the command gets besides those of a worker, such as a token's."""
    timeout_s: Annotated[Seconds, FREE] = 30.0
    """Time limit of one try."""
    retries: Annotated[Count, FREE] = 5
    """Further tries of a message that was not taken, after 2, 4, 8 ... seconds."""
    best_every_minutes: Annotated[float, Meta(ge=0), FREE] = 60.0
    """Shortest time between two messages of a new best score; the last one in between is sent late."""

    @property
    def is_used(self) -> bool:
        return bool(self.on and (self.command or self.urls_env or self.urls_file))
