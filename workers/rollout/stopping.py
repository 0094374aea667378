"""Where a completion ends: at a stop token, at the token that completes a stop text, or at its longest length. (pure)

One rule for all engines, by token: what a token brings beyond the stop text stays, as it was drawn together with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workers.rollout.engine import Decode, FinishReason, Request, Rollout, Sampling

MARGIN = 4
"""Ids that are decoded before those that can hold the text: the first may be part of a character, or lose a space."""


class StopTexts:
    """Texts that end a completion, and the quickest way to see one.

    Few tokens can be the last of a stop text, so most are known by their own text alone, which is looked up once.
    """

    def __init__(self, decode: Decode | None, texts: Sequence[str], stop_ids: Iterable[int] = ()) -> None:
        """stop_ids: a text that is only what one of these tokens looks like is left out: the token ends already."""
        self.stop_ids = frozenset(stop_ids)
        self.texts: tuple[str, ...] = ()
        self._may_end: dict[int, bool] = {}
        if texts:
            if decode is None:
                raise ValueError(f"stop texts {texts} need a tokenizer")
            self._decode = decode
            marks = {decode([token]) for token in self.stop_ids}
            self.texts = tuple(text for text in texts if text not in marks)
        # A token has a byte at least, so this many hold any stop text.
        self.window = max((len(text.encode()) for text in self.texts), default=0) + MARGIN

    def __bool__(self) -> bool:
        return bool(self.texts)

    def may_end_in(self, token: int) -> bool:
        """Whether a stop text could be completed by this token; never wrongly False."""
        found = self._may_end.get(token)
        if found is None:
            found = self._may_end[token] = bool(self.texts) and self._could_complete(self._decode([token]))
        return found

    def _could_complete(self, piece: str) -> bool:
        if "\ufffd" in piece or not piece:  # part of a character: what it completes shows in context only
            return True
        # Some decoders drop the space before a word that comes first.
        pieces = (piece, " " + piece)
        tails = [text[begin:] for text in self.texts for begin in range(len(text))]
        return any(one.startswith(tail) for one in pieces for tail in tails) or any(
            text in one for one in pieces for text in self.texts
        )

    def are_in(self, ids: Sequence[int]) -> bool:
        """Whether the last `window` of the ids hold a stop text."""
        text = self._decode(list(ids[-self.window :]))
        return any(stop in text for stop in self.texts)

    def end_in(self, ids: Sequence[int]) -> bool:
        """Whether the ids end with the token that completes a stop text, given that none came before it."""
        return bool(self.texts) and bool(ids) and self.may_end_in(ids[-1]) and self.are_in(ids)


def stops_of(sampling: Sampling, decode: Decode | None, stop_ids: Iterable[int]) -> StopTexts:
    """What ends the completions of a sampling."""
    return StopTexts(decode, ()) if sampling.ignore_stop else StopTexts(decode, sampling.stop, stop_ids)


def ending(ids: Sequence[int], stops: StopTexts, limit: int) -> tuple[int, FinishReason]:
    """Length of the completion that begins `ids`, and why it ends there. ids: at least one. (pure)"""
    for length in range(1, min(len(ids), limit) + 1):
        if ids[length - 1] in stops.stop_ids:
            return length, "stop"
        if stops.end_in(ids[max(0, length - stops.window) : length]):
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
    """The rollout, cut where it ends. ids, log_probs, entropies: as drawn, perhaps with more behind the end."""
    length, reason = ending(ids, stops, limit)
    return Rollout(
        request.prompt_ids, tuple(ids[:length]), tuple(log_probs[:length]), reason, tuple(entropies[:length])
    )
