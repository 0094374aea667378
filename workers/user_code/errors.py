"""What can be wrong with the user's code, as its process finds it."""

from __future__ import annotations


class NotUsable(Exception):
    """Why a name leads to nothing that can be used, in words."""


class BadReturn(Exception):
    """What the user's code returned is not what it should be, in words."""
