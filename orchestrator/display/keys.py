"""Turns the bytes that a terminal sends into names of keys: `p`, `ctrl-x`, `up`, `enter`; a paste is one of its own.

Used by the master and by `top`. Incremental: a key may arrive in two reads.
"""

from __future__ import annotations

from collections.abc import Sequence

PASTE_BEGINS, PASTE_ENDS = b"\x1b[200~", b"\x1b[201~"
MOST_PENDING = 1 << 16
"""Bytes of a paste that are kept; the rest is dropped."""
NAMED = {
    b"\x03": "ctrl-c",
    b"\x04": "ctrl-d",
    b"\x18": "ctrl-x",
    b"\r": "enter",
    b"\n": "enter",
    b"\t": "tab",
    b"\x7f": "backspace",
    b"\x08": "backspace",
}
SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
    b"\x1b[5~": "page-up",
    b"\x1b[6~": "page-down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
}
MOST_AT_ONCE = 4
"""Different characters that somebody may type while the program looks elsewhere."""
PASTE = "paste"
"""The name of a paste: its text could be mistaken for commands, so nobody obeys it."""


class KeyReader:
    """`read` takes what arrived, and returns the keys in it, in order."""

    def __init__(self) -> None:
        self._pasted: bytes | None = None
        """What has come of a paste; None: there is none."""

    def read(self, data: bytes) -> list[str]:
        found: list[str] = []
        while data:
            if self._pasted is not None:
                data = self._in_paste(data, found)
            elif data.startswith(PASTE_BEGINS):
                self._pasted, data = b"", data[len(PASTE_BEGINS) :]
            elif data[:1] == b"\x1b":
                name, taken = _sequence(data)
                found += [name] if name else []
                data = data[taken:]
            else:
                name, taken = _character(data)
                found += [name] if name else []
                data = data[taken:]
        return found

    def _in_paste(self, data: bytes, found: list[str]) -> bytes:
        whole = (self._pasted or b"") + data
        _, end, rest = whole.partition(PASTE_ENDS)
        if not end:
            self._pasted = whole[-MOST_PENDING:]
            return b""
        self._pasted = None
        found.append(PASTE)
        return rest


def _sequence(data: bytes) -> tuple[str, int]:
    """(name, bytes taken) of an escape sequence; an unknown one has no name. ESC alone is a key."""
    for known, name in SEQUENCES.items():
        if data.startswith(known):
            return name, len(known)
    if data[1:2] not in (b"[", b"O"):
        return "escape", 1
    at = 2
    while at < len(data) and not 0x40 <= data[at] <= 0x7E:  # parameters, until a final byte
        at += 1
    return "", min(at + 1, len(data))


def _character(data: bytes) -> tuple[str, int]:
    """(name, bytes taken) of a control or a UTF-8 character; invalid bytes have no name."""
    first = data[:1]
    if first in NAMED:
        return NAMED[first], 1
    if first < b" ":
        return "", 1
    length = 1 if first < b"\x80" else 2 if first < b"\xe0" else 3 if first < b"\xf0" else 4
    try:
        text = data[:length].decode()
    except UnicodeDecodeError:
        return "", 1
    return (text if text.isprintable() else ""), length


def deliberate(keys: Sequence[str]) -> list[str]:
    """The keys of one read that a person pressed. Many different characters at once are a paste that is not marked."""
    is_typed = len(keys) <= MOST_AT_ONCE or len(set(keys)) == 1
    return [key for key in keys if key != PASTE and (is_typed or len(key) > 1)]
