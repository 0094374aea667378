"""What may never enter a buffer: the programs of every suite whose data is at hand, whatever they are dressed in.

One registry for all. A program is refused if any of its functions, with all that it reaches, is a held-out program
(`closures` says what counts as equal): other imports, statements, helpers, names or a wrapper around it hide nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from profiles.schema import Profile
from workers.pocket import language
from workers.pocket.evaluation import held_out_problems
from workers.suites.data_files import data_folder, is_at_hand
from workers.suites.pocket import NUM_EACH
from workers.suites.question import WordProblem
from workers.suites.registry import FILES, READERS
from workers.tasks.closures import Definitions, Key


class HeldOutPrograms:
    """Programs that self-play must not find, seed or be given."""

    def __init__(self, programs: Iterable[str], folds: Iterable[Callable[[str], bool]] = ()) -> None:
        """folds: rules that hold out a share of all programs, by their normal text."""
        self._keys = _keys_of(frozenset(programs))
        self._max_size = max((key.size for key in self._keys), default=0)
        self._folds = tuple(folds)

    def __call__(self, program: str) -> bool:
        """Whether `program` is held out. Raises SyntaxError or ValueError where it has no syntax tree."""
        if any(not self._keys.isdisjoint(found.function_keys(self._max_size)) for found in _definitions(program)):
            return True
        return any(fold(ast.unparse(ast.parse(program))) for fold in self._folds)


@cache
def _keys_of(programs: frozenset[str]) -> frozenset[Key]:
    """Takes seconds for thousands of programs, and a worker asks once or twice for the same."""
    return frozenset(key for program in programs for found in _definitions(program) for key in found.entry_keys())


def _definitions(program: str) -> Iterator[Definitions]:
    """As it is, and without dead code: what stands around a function may keep some of its dead code alive."""
    for keeps_dead_code in (True, False):
        yield Definitions(program, keeps_dead_code=keeps_dead_code)


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
