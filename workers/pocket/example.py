"""One training sequence of a pocket model's corpus."""

from dataclasses import dataclass

from workers.pocket.language import Program


@dataclass(frozen=True, slots=True)
class Example:
    """As text. `cell`: what is asked for. `programs` are all programs in it, for the held-out test."""

    cell: str
    prompt: str
    completion: str
    worked: bool
    programs: tuple[Program, ...] = ()
    complete: bool = True
    """False: only the start of the completion is shown, without a stop token."""
    styled: bool = True
    """Whether it could have been worked or direct."""
