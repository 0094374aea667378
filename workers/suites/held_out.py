"""What may never enter a buffer: the programs of every suite whose data is available, in any disguise.

One registry for all suites. A program is refused if any of its functions, with everything that it reaches, equals a
held-out program by `closures`. Other imports, statements, helpers, names or wrappers around it make no difference.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property

from profiles.schema import Profile
from workers.suites.data_files import DataFile, data_folder
from workers.suites.question import CodeProblem, WordProblem
from workers.suites.registry import sources_of
from workers.tasks.closures import Definitions, Key


class HeldOutPrograms:
    """Programs that self-play must not propose, start from or import."""

    def __init__(self, programs: Iterable[str], folds: Iterable[Callable[[str], bool]] = ()) -> None:
        """folds: rules that hold out a share of all programs, by their normal text."""
        self._programs = frozenset(programs)
        self._folds = tuple(folds)

    @cached_property
    def _keys(self) -> frozenset[Key]:
        """Computed when first asked: a worker that repeats finished rollouts begins to train without them."""
        return _keys_of(self._programs)

    @cached_property
    def _max_size(self) -> int:
        return max((key.size for key in self._keys), default=0)

    def __call__(self, program: str) -> bool:
        """Whether `program` is held out. Raises SyntaxError or ValueError if it has no syntax tree."""
        if any(not self._keys.isdisjoint(found.function_keys(self._max_size)) for found in _definitions(program)):
            return True
        return any(fold(ast.unparse(ast.parse(program))) for fold in self._folds)


@cache
def _keys_of(programs: frozenset[str]) -> frozenset[Key]:
    """Cached: thousands of programs take seconds, and a worker asks repeatedly for the same."""
    return frozenset(key for program in programs for found in _definitions(program) for key in found.entry_keys())


def _definitions(program: str) -> Iterator[Definitions]:
    """The program with and without dead code: code around a function may keep some of its dead code alive."""
    found = Definitions(program)
    yield found
    if found.had_dead_code:
        yield Definitions(program, keeps_dead_code=True)


def held_out_of(profile: Profile) -> HeldOutPrograms:
    """A run's registry: the suites that it names, and all other shipped suites whose files are available.

    If a suite has a fold for the run's style, the whole fold is held out. Raises LonghaulError: INPUT if a suite of the
    profile has no data, USAGE if it cannot be found.
    """
    folder = data_folder(profile.validation.data)
    programs: list[str] = []
    folds: list[Callable[[str], bool]] = []
    for name, source in sources_of(profile).items():
        if not source.has_programs or not (name in profile.validation.suites or source.is_at_hand(folder)):
            continue
        if fold := source.folds.get(profile.model.prompt_style):
            folds.append(fold)
            continue
        items = [question.item for question in source.largest(folder, profile.validation.examples_per_task)]
        programs += [item.program for item in items if not isinstance(item, WordProblem | CodeProblem)]
    return HeldOutPrograms(dict.fromkeys(programs), folds)


def missing_files(profile: Profile) -> list[DataFile]:
    """Files whose programs cannot be refused because the files are missing."""
    folder = data_folder(profile.validation.data)
    programs = [source for source in sources_of(profile).values() if source.has_programs]
    return list(dict.fromkeys(one.file for one in programs if one.file and not one.is_at_hand(folder)))
