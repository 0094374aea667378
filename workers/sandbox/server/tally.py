"""Counts responses by kind, and decides when too many were not verdicts for a run to continue.

The rule is for both sides: the server counts its responses, a client what it got in the end, after it asked again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

MOST_LOST = 0.01
"""Maximum share of responses without a verdict."""
WINDOW = 500
"""Newest responses that are judged. A run stops as soon as so many lost ones are among them that their share must
pass MOST_LOST, however the window fills: a dead server is noticed after six requests."""

VERDICT = "verdicts"
"""Requests judged, whether the program was right or wrong."""
LOST = ("late", "refused", "broken", "turned_away")
"""Responses of the server without a verdict: the client's deadline passed or the server was stopping (504); the request
could not be read or granted (400, 413); the sandbox lost the program twice or the server has a bug (500, or
`SandboxError`); connections over the limit (`--connections`), closed before a request."""
BESIDE = ("wrong_secret", "from_wall")
"""In no share: requests with a wrong secret; verdicts affected by the wall limit, which a busy machine can cause."""


class Tally:
    """Responses of one server since it started, as reported by `GET /SECRET/stats`."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys((VERDICT, *LOST, *BESIDE), 0)
        self._newest: deque[str] = deque(maxlen=WINDOW)

    def count(self, kind: str) -> None:
        """kind: VERDICT, or one of LOST or BESIDE."""
        self.counts[kind] += 1
        if kind not in BESIDE:
            self._newest.append(kind)

    @property
    def stop_reason(self) -> str | None:
        """Why a run must stop, by the newest responses."""
        return stop_reason(self._newest)


def stop_reason(newest: Iterable[str]) -> str | None:
    """Why a run must stop, or None. newest: kinds of the last WINDOW responses; all but VERDICT are lost. (pure)"""
    kinds = Counter(newest)
    answers = kinds.total()
    del kinds[VERDICT]
    if kinds.total() <= MOST_LOST * WINDOW:
        return None
    said = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    return f"{kinds.total()} of the last {answers} answers of the code server were no verdicts ({said})"
