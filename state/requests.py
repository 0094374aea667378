"""Requests of people that outlive the master: rows of the table `requests`, one of each kind. (pure)

`stop` and `checkpoint` are not among them: they end with the master that was asked.
"""

from __future__ import annotations

PAUSE = "pause"
"""Start no worker until somebody resumes the run. step: 0."""
VALIDATE = "validate"
"""Score the first checkpoint of this step or a later one. Deleted in the transaction that stores the scores."""
