"""One training sequence of a pocket model's corpus."""

from dataclasses import dataclass

from workers.pocket.language import Program


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence as text. cell: the task. programs: every program in it, for the held-out check."""

    cell: str
    prompt: str
    completion: str
    worked: bool
    programs: tuple[Program, ...] = ()
    complete: bool = True
    """False: the completion is cut after its start and has no stop token."""
    styled: bool = True
    """Whether the task has both a worked and a direct form."""
