"""Makes foreign text harmless to a terminal: what a model, another program or a file's author wrote. (pure)"""

from __future__ import annotations

import unicodedata

_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that can control a terminal, reorder a line or cannot be encoded."""


def harmless(text: str) -> str:
    """One line of text that cannot control a terminal.

    An escape becomes `␛`, a newline `⏎`, a tab a space, and any other harmful character `�`. Apply it to all model
    output before display.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_harmless_character(character) for character in text)


def harmless_lines(text: str) -> str:
    """Like `harmless`, but keeps newlines."""
    return "\n".join(harmless(line) for line in text.split("\n"))


def _harmless_character(character: str) -> str:
    if character == "\n":
        return "⏎"
    if character == "\t":
        return " "
    if unicodedata.category(character) not in _HARMFUL:
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "�"
