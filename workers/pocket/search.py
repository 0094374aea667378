"""Writes worked induction: try a statement, write its results on the pairs, check whether the rest can follow, repeat.

Each step is easy; the length of the search makes it powerful. This teacher writes such searches for the corpus. It
knows the true program, and enumerates all programs of up to three statements in which only the last has letters.
"""

from functools import lru_cache
from random import Random

from workers.pocket.language import LETTERS, PLAIN, Program, Statement, apply, is_held_out, render, render_statement

MAX_WRONG_TRIES = (2, 3)
"""Maximum number of wrong tries: before the first of three statements, and before the last but one."""
Pairs = list[tuple[str, str]]


def last_statements(left: str, right: str) -> list[Statement]:
    """All statements that map `left` to `right`; for equal values this includes a `replace` without effect."""
    growth = len(right) - len(left)
    if growth == 1:
        one_longer = [Statement("append", right[-1]), Statement("prepend", right[0])]
        return [statement for statement in one_longer if apply(statement, left) == right]
    found = [statement for statement in PLAIN if apply(statement, left) == right]
    if growth == 0:
        found += [s for s in [_replacement(left, right)] if s and apply(s, left) == right]
    return found


def _replacement(left: str, right: str) -> Statement | None:
    """The `replace` that fixes the first difference; if there is none, one of a letter that does not occur."""
    for x, y in zip(left, right, strict=True):
        if x != y:
            return Statement("replace", x, y) if x.islower() == y.islower() else None
    return next((Statement("replace", x, "u" if x.islower() else "U") for x in LETTERS[1:] if x not in left), None)


def explanations(pairs: Pairs, num_statements: int) -> list[set[Program]]:
    """Programs that explain the first pair, the first two, and so on; only the last statement has letters.

    This misses a `replace` that has no effect on the first pair; the teacher then falls back to the true program.
    """
    left, right = pairs[0]
    chains: list[tuple[Program, str]] = [((), left)]
    for _ in range(num_statements - 1):
        chains = [((*head, s), value) for head, before in chains for s in PLAIN if (value := apply(s, before))]
    surviving = {(*head, last) for head, middle in chains for last in last_statements(middle, right)}
    levels = [surviving]
    for left, right in pairs[1:]:
        levels.append({program for program in levels[-1] if _run(program, left) == right})
    return levels


def _run(program: Program, value: str) -> str:
    for statement in program:
        value = apply(statement, value)
    return value


@lru_cache(maxsize=4096)
def lengths_fit(before: tuple[int, ...], after: tuple[int, ...], num_statements: int) -> bool:
    """Whether `num_statements` statements can turn values of lengths `before` into lengths `after`."""
    if num_statements == 0:
        return before == after
    changes = [tuple(n + change for n in before) for change in (-1, 0, 1)] + [tuple((n + 1) // 2 for n in before)]
    return any(lengths_fit(changed, after, num_statements - 1) for changed in changes)


def search(rng: Random, truth: Program, pairs: Pairs) -> tuple[str, Program] | None:
    """A worked search for the program behind `pairs`, and the program that it finds.

    Returns None if the program found is held out, so that the search must not be shown.
    """
    levels = explanations(pairs, len(truth))
    found = rng.choice(sorted(levels[-1])) if levels[-1] else truth
    if is_held_out(render(found)):
        return None
    text = ""
    for index in range(len(found) - 1):
        text += _wrong_tries(rng, truth, found[:index], levels, pairs)
        text += _tried(found[: index + 1], pairs, len(pairs))
    return f"<work>{text}{render_statement(found[-1], len(found))}<prog>{render(found)}", found


def _wrong_tries(rng: Random, truth: Program, head: Program, levels: list[set[Program]], pairs: Pairs) -> str:
    """Some dead-end statements after `head`, each worked up to the first pair that rules it out."""
    depth, left = len(head), len(truth) - len(head) - 1
    wants = tuple(len(right) for _, right in pairs)
    wrong: list[tuple[Statement, int]] = []
    for statement in PLAIN:
        tried = (*head, statement)
        lengths = tuple(len(_run(tried, value)) for value, _ in pairs)
        if tried == truth[: depth + 1] or not all(lengths) or not lengths_fit(lengths, wants, left):
            continue
        dead = [n for n, alive in enumerate(levels, start=1) if not any(p[: depth + 1] == tried for p in alive)]
        if dead:
            wrong.append((statement, dead[0]))
    most = MAX_WRONG_TRIES[1 if left == 1 else 0]
    chosen = rng.sample(wrong, rng.randint(0, min(len(wrong), most)))
    return "".join(_tried((*head, statement), pairs, count) + "<no>" for statement, count in chosen)


def _tried(tried: Program, pairs: Pairs, count: int) -> str:
    """The last statement of `tried`, and the results of `tried` on the first `count` inputs."""
    values = "<sep>".join(_run(tried, value) for value, _ in pairs[:count])
    return f"{render_statement(tried[-1], len(tried))}<out>{values}"
