"""How induction is worked: try a statement, write what it makes of the pairs, look whether the rest can follow, go on.

Each look is easy; the search wins by its length. This is the teacher that writes such searches for the corpus. It
knows all programs of up to three statements whose last one may mention letters, and the program that made the pairs.
"""

from functools import lru_cache
from random import Random

from workers.pocket.language import LETTERS, PLAIN, Program, Statement, apply, is_held_out, render, render_statement

MAX_WRONG_TRIES = (2, 3)
"""Wrong tries shown for the first of three statements, and for the one before last."""
Pairs = list[tuple[str, str]]


def last_statements(left: str, right: str) -> list[Statement]:
    """All statements that map one value to the other; for equal values also a `replace` without effect."""
    growth = len(right) - len(left)
    if growth == 1:
        one_longer = [Statement("append", right[-1]), Statement("prepend", right[0])]
        return [statement for statement in one_longer if apply(statement, left) == right]
    found = [statement for statement in PLAIN if apply(statement, left) == right]
    if growth == 0:
        found += [s for s in [_replacement(left, right)] if s and apply(s, left) == right]
    return found


def _replacement(left: str, right: str) -> Statement | None:
    """The `replace` that the first difference asks for; one of a letter that is not there if there is none."""
    for x, y in zip(left, right, strict=True):
        if x != y:
            return Statement("replace", x, y) if x.islower() == y.islower() else None
    return next((Statement("replace", x, "u" if x.islower() else "U") for x in LETTERS[1:] if x not in left), None)


def explanations(pairs: Pairs, num_statements: int) -> list[set[Program]]:
    """Programs that explain the first pair, the first two, and so on; only the last statement mentions letters.

    A `replace` without effect on the first pair is lost on later ones: the teacher then falls back on the truth.
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
    """Whether that many statements can turn values of lengths `before` into lengths `after`."""
    if num_statements == 0:
        return before == after
    changes = [tuple(n + change for n in before) for change in (-1, 0, 1)] + [tuple((n + 1) // 2 for n in before)]
    return any(lengths_fit(changed, after, num_statements - 1) for changed in changes)


def search(rng: Random, truth: Program, pairs: Pairs) -> tuple[str, Program] | None:
    """A worked search for the program behind `pairs`, and the program that it finds.

    Returns None where no search may be shown: what it finds is held out.
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
    """Some statements after `head` that lead nowhere, each worked up to the first pair that shows it."""
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
    """The last statement of `tried`, and what the whole makes of the first `count` inputs."""
    values = "<sep>".join(_run(tried, value) for value, _ in pairs[:count])
    return f"{render_statement(tried[-1], len(tried))}<out>{values}"
