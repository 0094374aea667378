"""Seeded word problems: a short story of one to three operations, with its steps and answer. (pure)

    Tom has 3 boxes with 4 pens each. He gives 5 to Ann. How many pens does Tom have now?

All intermediate results are integers from 1 to 99. The fold of a problem is a hash of its computation, not of its
words: a held-out computation (`3*4=12`, `12-5=7`) appears in no training problem, whatever names and things it uses.
Single steps are not held out: `12-5=7` may be part of another computation.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

HE = ("Ben", "Leo", "Max", "Sam", "Tom")
SHE = ("Ann", "Eva", "Lea", "Mia", "Zoe")
THINGS = ("apples", "books", "cards", "eggs", "nuts", "pears", "pens", "plums", "shells", "stamps", "stones", "toys")
BOXES = ("bags", "boxes", "jars")

HAS = ("{name} has {n} {things}.", "{name} finds {n} {things}.")
PRODUCT = ("{name} has {n} {boxes} with {m} {things} each.", "{name} buys {n} {boxes} of {m} {things}.")
MORE = ("{he} buys {n} more.", "{he} finds {n} more.", "{other} gives {him} {n} more.")
FEWER = ("{he} loses {n} of them.", "{he} gives {n} to {other}.", "{he} sells {n} of them.")
NOW = ("How many {things} does {name} have now?",)
TIMES = (
    "{other} has {n} times as many. How many {things} does {other} have?",
    "{he} sells each for {n} coins. How many coins does {name} get?",
)
SHARE = ("{he} shares them equally among {n} friends. How many {things} does each friend get?",)

MOST = 99
"""Largest result of any step."""
MOST_STEPS = 3
NUM_FOLDS = 8
"""One in NUM_FOLDS computations is held out."""
NAMES_OF_STEPS = ("ops1", "ops2", "ops3")
"""Task names of problems with 1, 2 and 3 operations."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation."""

    left: int
    sign: str
    right: int

    @property
    def value(self) -> int:
        match self.sign:
            case "+":
                return self.left + self.right
            case "-":
                return self.left - self.right
            case "*":
                return self.left * self.right
            case _:
                return self.left // self.right

    def __str__(self) -> str:
        return f"{self.left}{self.sign}{self.right}={self.value}"


@dataclass(frozen=True, slots=True)
class Story:
    """A problem text and its solution steps."""

    text: str
    steps: tuple[Step, ...]

    @property
    def prompt(self) -> str:
        """The prompt for a model: the text and a newline."""
        return f"{self.text}\n"

    @property
    def answer(self) -> int:
        return self.steps[-1].value

    @property
    def task(self) -> str:
        """Task name by number of operations."""
        return NAMES_OF_STEPS[len(self.steps) - 1]

    @property
    def is_held_out(self) -> bool:
        """Whether the problem is reserved for validation and must not be in any corpus or training file."""
        computation = ";".join(map(str, self.steps))
        return hashlib.md5(computation.encode(), usedforsecurity=False).digest()[0] % NUM_FOLDS == 0


def draw_story(rng: Random, num_steps: int) -> Story:
    """A story of `num_steps` operations (1 to 3), of either fold."""
    while True:
        steps = _draw_steps(rng, num_steps)
        if steps is not None:
            return Story(_tell(rng, steps), steps)


def draw_of_fold(rng: Random, num_steps: int, *, held_out: bool) -> Story:
    """A story of one fold."""
    while True:
        story = draw_story(rng, num_steps)
        if story.is_held_out == held_out:
            return story


def _draw_steps(rng: Random, num_steps: int) -> tuple[Step, ...] | None:
    """An optional product first, sums and differences, and an optional product or quotient last.

    None if a quotient is not exact or a result is not in 1 to MOST.
    """
    shapes = [(first, last) for first in (0, 1) for last in (0, 1) if first + last <= num_steps]
    has_product, has_end = rng.choice(shapes)
    steps: list[Step] = []
    if has_product:
        steps.append(Step(rng.randint(2, 9), "*", rng.randint(2, 9)))
    for _ in range(num_steps - has_product - has_end):
        left = steps[-1].value if steps else rng.randint(2, 40)
        steps.append(Step(left, rng.choice("+-"), rng.randint(2, 12)))
    if has_end:
        left = steps[-1].value if steps else rng.randint(2, 40)
        sign = rng.choice("*/") if left <= 20 else "/"
        steps.append(Step(left, sign, rng.randint(2, 6)))
    exact = all(step.sign != "/" or step.left % step.right == 0 for step in steps)
    return tuple(steps) if exact and all(1 <= step.value <= MOST for step in steps) else None


def _tell(rng: Random, steps: tuple[Step, ...]) -> str:
    """Tell a computation as a story."""
    name, other = rng.sample((*HE, *SHE), 2)
    is_he = name in HE
    words = {
        "name": name,
        "other": other,
        "he": "He" if is_he else "She",
        "him": "him" if is_he else "her",
        "things": rng.choice(THINGS),
        "boxes": rng.choice(BOXES),
    }
    first, parts = steps[0], []
    has_product = first.sign == "*" and (len(steps) > 1 or rng.random() < 0.5)
    if has_product:
        parts.append(rng.choice(PRODUCT).format(n=first.left, m=first.right, **words))
    else:
        parts.append(rng.choice(HAS).format(n=first.left, **words))
    question = rng.choice(NOW)
    for step in steps[has_product:]:
        sentences = {"+": MORE, "-": FEWER, "*": TIMES, "/": SHARE}[step.sign]
        parts.append(rng.choice(sentences).format(n=step.right, **words))
    if steps[-1].sign in "+-" or len(steps) == has_product:  # TIMES and SHARE sentences contain their own question
        parts.append(question.format(**words))
    return " ".join(parts)
