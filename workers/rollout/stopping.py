"""Where a completion ends: at a stop token, at the token that completes a stop text, or at the length limit. (pure)

One rule for all engines, by whole tokens: text that a token adds beyond the stop text stays, because it was drawn with
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workers.rollout.engine import Decode, FinishReason, Request, Rollout, Sampling

MARGIN = 4
"""Ids decoded before those that can hold the text: the first may be part of a character, or lose its space."""


class StopTexts:
    """Texts that end a completion, with a fast way to detect them.

    Few tokens can complete a stop text, so each token's own text is decoded and checked once, and most are ruled out.
    """

    def __init__(self, decode: Decode | None, texts: Sequence[str], stop_ids: Iterable[int] = ()) -> None:
        """stop_ids: a stop text that is the text of one of these tokens is dropped, because the token ends already."""
        self.stop_ids = frozenset(stop_ids)
        self.texts: tuple[str, ...] = ()
        self._may_end: dict[int, bool] = {}
        if texts:
            if decode is None:
                raise ValueError(f"stop texts {texts} need a tokenizer")
            self._decode = decode
            marks = {decode([token]) for token in self.stop_ids}
            self.texts = tuple(text for text in texts if text not in marks)
        # A token has at least one byte, so this many tokens hold any stop text.
        self.window = max((len(text.encode()) for text in self.texts), default=0) + MARGIN

    def __bool__(self) -> bool:
        return bool(self.texts)

    def may_end_in(self, token: int) -> bool:
        """Whether this token could complete a stop text. May be wrongly True, never wrongly False."""
        found = self._may_end.get(token)
        if found is None:
            found = self._may_end[token] = bool(self.texts) and self._could_complete(self._decode([token]))
        return found

    def _could_complete(self, piece: str) -> bool:
        if "\ufffd" in piece or not piece:  # part of a character: only the context shows what it completes
            return True
        # Some decoders drop the space before a leading word.
        pieces = (piece, " " + piece)
        tails = [text[begin:] for text in self.texts for begin in range(len(text))]
        return any(one.startswith(tail) for one in pieces for tail in tails) or any(
            text in one for one in pieces for text in self.texts
        )

    def are_in(self, ids: Sequence[int]) -> bool:
        """Whether the last `window` ids hold a stop text."""
        text = self._decode(list(ids[-self.window :]))
        return any(stop in text for stop in self.texts)

    def end_at(self, ids: Sequence[int], length: int) -> bool:
        """As `end_in` of the first `length` ids, at least one. It copies ids only where the last may complete a text:
        a slice for each token would take most of the time."""
        return self.may_end_in(ids[length - 1]) and self.are_in(ids[max(0, length - self.window) : length])

    def end_in(self, ids: Sequence[int]) -> bool:
        """Whether the last id completes a stop text, given that no earlier one did."""
        return bool(ids) and self.end_at(ids, len(ids))


def stops_of(sampling: Sampling, decode: Decode | None, stop_ids: Iterable[int]) -> StopTexts:
    """The stop texts of a sampling."""
    return StopTexts(decode, ()) if sampling.ignore_stop else StopTexts(decode, sampling.stop, stop_ids)


def ending(ids: Sequence[int], stops: StopTexts, limit: int) -> tuple[int, FinishReason]:
    """Length of the completion at the start of `ids`, and why it ends there. ids: at least one. (pure)"""
    for length, token in enumerate(ids[:limit], 1):
        if token in stops.stop_ids:
            return length, "stop"
        if stops.end_at(ids, length):
            return length, "stop_text"
    return min(len(ids), limit), "length"


def rollout_of(
    request: Request,
    ids: Sequence[int],
    log_probs: Sequence[float],
    stops: StopTexts,
    limit: int,
    entropies: Sequence[float] = (),
) -> Rollout:
    """The rollout, cut where it ends. ids, log_probs, entropies: as drawn, possibly with more after the end."""
    length, reason = ending(ids, stops, limit)
    return Rollout(
        request.prompt_ids, tuple(ids[:length]), tuple(log_probs[:length]), reason, tuple(entropies[:length])
    )
