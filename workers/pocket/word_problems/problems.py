"""The word problems that the second built-in model learns on by reinforcement: made when they are asked for, no file.

    python -m workers.pocket.word_problems.problems --count 2000 > train.jsonl
    python -m workers.pocket.word_problems.problems --held-out --count 300 > validation.jsonl

Lines are {"prompt", "answer"}, as every GRPO run reads them; the answer has its steps, then `####` and the number.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from random import Random

from workers.pocket.word_problems.story import MOST_STEPS, Story, draw_of_fold

NAME = "pocket-words"
"""Name to use in a profile instead of a file."""
NUM_PROBLEMS = 1024
SEED = 20_251_123


def draw_problems(count: int = NUM_PROBLEMS, seed: int = SEED, *, held_out: bool = False) -> list[Story]:
    """`count` stories with distinct texts from one fold, of one, two and three operations in turn."""
    rng = Random(seed)
    found: dict[str, Story] = {}
    while len(found) < count:
        story = draw_of_fold(rng, 1 + len(found) % MOST_STEPS, held_out=held_out)
        found.setdefault(story.text, story)
    return list(found.values())


def answer_of(story: Story) -> str:
    """Steps and final number, in GSM8K format."""
    return "\n".join([*map(str, story.steps), f"#### {story.answer}"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.pocket.word_problems.problems",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=NUM_PROBLEMS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--held-out", action="store_true", help="of the fold that validation is drawn from")
    args = parser.parse_args(arguments)
    for story in draw_problems(args.count, args.seed, held_out=args.held_out):
        sys.stdout.write(json.dumps({"prompt": story.text, "answer": answer_of(story)}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
