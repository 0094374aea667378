"""Knobs that got another name: the old one is refused with the new one. (pure)

Knobs that only moved into another section need no line: whoever reads a profile finds them by their key.
"""

RENAMED: dict[str, str] = {}
"""Old full name -> new full name."""
