"""What may never enter a buffer: the programs of every suite whose data is at hand, by normalised syntax tree.

One registry for all: comments, docstrings, annotations and spacing hide nothing. Renamed variables are another program.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from profiles.schema import Profile
from workers.pocket import language
from workers.pocket.evaluation import held_out_problems
from workers.sandbox.normalise import program_key
from workers.suites.data_files import data_folder, is_at_hand
from workers.suites.pocket import NUM_EACH
from workers.suites.question import WordProblem
from workers.suites.registry import FILES, READERS


class HeldOutPrograms:
    """Programs that self-play must not find, seed or be given."""

    def __init__(self, programs: Iterable[str], folds: Iterable[Callable[[str], bool]] = ()) -> None:
        """folds: rules that hold out a share of all programs, by their normal text."""
        self.keys = frozenset(program_key(program) for program in programs)
        self._folds = tuple(folds)

    def __call__(self, program: str) -> bool:
        """Whether `program` is held out. Raises SyntaxError or ValueError where it has no syntax tree."""
        if program_key(program) in self.keys:
            return True
        return any(fold(ast.unparse(ast.parse(program))) for fold in self._folds)


def held_out_of(profile: Profile) -> HeldOutPrograms:
    """The registry of a run: suites that it names, and all others whose files are at hand.

    A run in the pocket style also leaves out the whole fold that the built-in model was never pretrained on. Raises
    LonghaulError (INPUT) where a suite of the profile has no data.
    """
    folder = data_folder(profile.validation.data)
    programs: list[str] = []
    folds: list[Callable[[str], bool]] = []
    if profile.model.prompt_style == "pocket":
        folds.append(language.is_held_out)  # all of its problems are of this fold
    else:
        num_each = max(NUM_EACH, profile.validation.examples_per_task)
        programs += [problem.item.program for problem in held_out_problems(num_each)]
    for name, read in READERS.items():
        if name in profile.validation.suites or is_at_hand(FILES[name], folder):
            items = [question.item for question in read(folder)]
            programs += [item.program for item in items if not isinstance(item, WordProblem)]
    return HeldOutPrograms(dict.fromkeys(programs), folds)
