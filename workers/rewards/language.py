"""The part that rewards the share of a text that is in one language. (extra `language`)"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from profiles.errors import ExitCode, LonghaulError
from workers.rewards.given import Where, stretch
from workers.rewards.reward import Case

LONGEST = 20_000
"""Characters at the start of a text that are looked at."""
_NOT_PROSE = re.compile(r"```.*?(?:```|\Z)|\$[^$\n]{0,400}\$|\\[A-Za-z]{1,32}|https?://\S{1,400}", re.DOTALL)
_SENTENCE = re.compile(r"[^\n.!?。！？]{1,400}[.!?。！？]*")


@dataclass(frozen=True)
class Language:
    """Code in fences, mathematics and addresses do not count. The rest is judged sentence by sentence."""

    wanted: str
    """The language by its code of ISO 639-1: `en`, `de`, `zh`."""
    where: Where = "all"
    """What is judged: `all`, the `final` text after the thoughts, or the `marked` answer."""
    shortest: int = 20
    """Letters that a sentence needs to be judged; shorter ones are joined to the next."""
    name: ClassVar[str] = "language"

    def __post_init__(self) -> None:
        if find_spec("py3langid") is None:
            raise _missing()
        if self.wanted not in _identifier().labels:
            raise ValueError(f"`wanted` ({self.wanted!r}) must be one of {', '.join(sorted(_identifier().labels))}")
        if self.shortest < 1:
            raise ValueError(f"`shortest` ({self.shortest}) must be at least 1")

    def __call__(self, case: Case[Any, Any]) -> float:
        """Letters of sentences in that language by all letters that were judged; 0 if there were none."""
        pieces = self._pieces((stretch(case, self.where) or "")[:LONGEST])
        judged = sum(letters for _, letters in pieces)
        right = sum(letters for piece, letters in pieces if _identifier().classify(piece)[0] == self.wanted)
        return right / judged if judged else 0.0

    def _pieces(self, text: str) -> list[tuple[str, int]]:
        """Sentences with their numbers of letters. What is left at the end, if too short, is not judged."""
        pieces: list[tuple[str, int]] = []
        piece, letters = "", 0
        for sentence in _SENTENCE.findall(_NOT_PROSE.sub(" ", text)):
            piece, letters = f"{piece} {sentence}", letters + sum(map(str.isalpha, sentence))
            if letters >= self.shortest:
                pieces.append((_encodable(piece), letters))
                piece, letters = "", 0
        return pieces


def _encodable(text: str) -> str:
    """Without lone surrogates, which have no UTF-8."""
    return text.encode("utf-8", "replace").decode()


@lru_cache(maxsize=1)
def _identifier() -> Any:
    module = import_module("py3langid.langid")
    return module.LanguageIdentifier.from_model_file(module.MODEL_FILE)


def _missing() -> LonghaulError:
    return LonghaulError(
        "the part 'language' of the reward needs py3langid, which is not installed",
        kept="everything; nothing was started",
        next_command='pip install "longhaul[language]"',
        exit_code=ExitCode.INPUT,
    )
