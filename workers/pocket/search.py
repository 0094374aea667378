"""How induction is worked: try a first statement, look whether one more statement explains the pairs, else try again.

Each look is easy; the search wins by its length. This is the teacher that writes such searches for the corpus.
"""

from random import Random

from workers.pocket.language import LETTERS, PLAIN, Program, Statement, apply, is_held_out, render

MAX_WRONG_TRIES = 5
WRONG_LETTER_RATE = 0.15
"""Share of searches with an extra wrong try that mentions a letter, so that these get rejected too."""
Pairs = list[tuple[str, str]]


def explain(pairs: Pairs) -> Statement | None:
    """The first statement, in a fixed order of kinds, that maps every left value to its right one.

    Equal values on all sides count as explained by some `replace` without effect.
    """
    for statement in PLAIN:
        if all(apply(statement, left) == right for left, right in pairs):
            return statement
    left, right = pairs[0]
    growth = len(right) - len(left)
    if growth == 1:
        candidates = [Statement("append", right[-1]), Statement("prepend", right[0])]
    elif growth == 0:
        candidates = [_replacement(pairs)]
    else:
        candidates = []
    for statement in candidates:
        if statement and all(apply(statement, one) == other for one, other in pairs):
            return statement
    return None


def _replacement(pairs: Pairs) -> Statement | None:
    """The `replace` that the first difference asks for; one without effect if there is no difference."""
    for left, right in pairs:
        for x, y in zip(left, right, strict=False):
            if x != y:
                return Statement("replace", x, y) if x.islower() == y.islower() else None
    present = "".join(left for left, _ in pairs)
    return next((Statement("replace", x, "u" if x.islower() else "U") for x in LETTERS[1:] if x not in present), None)


def verdict(first: Statement, pairs: Pairs) -> tuple[list[str], Statement | None]:
    """Intermediate values up to the first pair that no second statement explains, and that statement or None."""
    middles: list[str] = []
    second = None
    for count, (left, _) in enumerate(pairs, start=1):
        middles.append(apply(first, left))
        second = explain([(middle, right) for middle, (_, right) in zip(middles, pairs[:count], strict=True)])
        if second is None:
            break
    return middles, second


def lengths_fit(first: Statement, pairs: Pairs) -> bool:
    """Whether some second statement gives the right lengths: what a look at the pairs can tell before any work."""
    lengths = [(len(apply(first, left)), len(right)) for left, right in pairs]
    changes = {after - before for before, after in lengths}
    return changes in ({-1}, {0}, {1}) or all(after == (before + 1) // 2 for before, after in lengths)


def search(rng: Random, program: Program, pairs: Pairs) -> tuple[str, Program] | None:
    """A worked search for a two-statement program, and the program that it finds.

    Returns None where no search of this kind may be shown: nothing to find, or what it finds is held out.
    """
    plain = [(first, *verdict(first, pairs)) for first in PLAIN if lengths_fit(first, pairs)]
    right = [trial for trial in plain if trial[2] is not None]
    wrong = [trial for trial in plain if trial[2] is None]
    if not right:
        right = [(program[0], *verdict(program[0], pairs))]
    if rng.random() < WRONG_LETTER_RATE:
        first = Statement(rng.choice(("append", "prepend")), rng.choice(LETTERS))
        trial = (first, *verdict(first, pairs))
        if trial[2] is None and lengths_fit(first, pairs):
            wrong.append(trial)
    first, middles, second = rng.choice(right)
    if second is None:
        return None
    found = (first, second)
    if is_held_out(render(found)):
        return None
    tries = rng.sample(wrong, rng.randint(0, min(len(wrong), MAX_WRONG_TRIES)))
    work = "".join(f"{_head(one)}{'<sep>'.join(values)}<no>" for one, values, _ in tries)
    text = render(found)
    last_line = text[text.index("\n    c") : text.index("\n    return")]
    return f"<work>{work}{_head(first)}{'<sep>'.join(middles)}{last_line}<prog>{text}", found


def _head(first: Statement) -> str:
    text = render((first,))
    return text[text.index("\n    b") : text.index("\n    return")] + "<out>"
