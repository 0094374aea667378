"""Judge answers to maths problems: `python -m workers.verifiers.verify < in.jsonl > out.jsonl`.

Each input line is {"gold", "response"}, with "truncated": true if the response was cut. For each, in order, the output
has {"correct", "extracted", "reason"}. Numbers are compared exactly; other expressions by math-verify, in a process of
its own with limits, if it is installed (extra `math`). Nothing of a response is run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import BinaryIO

import msgspec
from msgspec import Struct

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Grpo
from workers.verifiers.answers import extract, gold_of, plain, read_number, written
from workers.verifiers.symbolic import Symbolic, is_askable, is_installed

MOST_NAMED = 5
"""How many bad lines an error lists."""


class Verdict(Struct, frozen=True):
    """`extracted`: the answer as written, or None. `reason`: why it is right, wrong or missing."""

    correct: bool
    extracted: str | None
    reason: str

    @property
    def score(self) -> float:
        """1 for a right answer, else 0."""
        return float(self.correct)


def judge(
    gold: str, response: str, *, truncated: bool = False, lenient: bool = False, symbolic: Symbolic | None = None
) -> Verdict:
    """Whether a response is right. gold: a data row's answer, with or without `####`. symbolic: None for exact only."""
    found = extract(response, truncated=truncated, lenient=lenient)
    if found.text is None or found.reason:
        return Verdict(False, None, found.reason)
    expected, answer = gold_of(gold), found.text
    number, wanted = read_number(answer), read_number(expected)
    if number is not None and wanted is not None:
        return Verdict(number == wanted, answer, "the same number" if number == wanted else "another number")
    if wanted is None and expected and plain(answer) is not None and plain(answer) == plain(expected):
        return Verdict(True, answer, "the same text")
    if found.rule not in ("boxed", "answer tag", "mark") or symbolic is None or not is_askable(expected, answer):
        return Verdict(False, answer, "not a number" if number is None else "another text")
    equality = symbolic.compare(expected, answer)
    return Verdict(equality.is_equal, answer, equality.reason)


def sameness(gold: str, symbolic: Symbolic | None) -> Callable[[str, str], bool]:
    """A function that tells whether two answers to the problem with this gold are the same, by the rules of `judge`.

    They are compared as numbers if the gold is one, as texts if it is neither, else by math-verify. An answer that
    these rules cannot read equals nothing, not even itself. gold and symbolic: as in `judge`.
    """
    expected = gold_of(gold)
    is_text = read_number(expected) is None

    def same(first: str, second: str) -> bool:
        one, other = read_number(first), read_number(second)
        if one is not None and other is not None:
            return one == other
        if is_text and plain(first) is not None and plain(first) == plain(second):
            return True
        # Strip what only surrounds a number (`$18`, `5 eggs`); math-verify need not see it.
        left, right = (first if one is None else str(one)), (second if other is None else str(other))
        if symbolic is None or not (is_askable(expected, left) and is_askable(expected, right)):
            return False
        return symbolic.compare(left, right).is_equal

    return same


def verifier_of(grpo: Grpo) -> Symbolic | None:
    """The comparer of expressions under this profile. Raises LonghaulError (INPUT) if it is not installed.

    The profile names it explicitly, because with another verifier the same rollouts would earn other rewards.
    """
    if grpo.verifier == "exact":
        return None
    if not is_installed():
        raise missing('grpo.verifier = "math-verify"')
    return Symbolic()


def missing(what: str) -> LonghaulError:
    return LonghaulError(
        f"{what} needs math-verify, which is not installed",
        kept="everything; nothing was judged",
        next_command='pip install "longhaul[math]"',
        exit_code=ExitCode.INPUT,
    )


class _Line(Struct):
    """An input line. A right answer may be a number without quotes, as in a file of problems."""

    gold: str | int | float
    response: str
    truncated: bool = False


def run(lines: Iterable[bytes], out: BinaryIO, *, lenient: bool, symbolic: Symbolic | None) -> list[str]:
    """Judge line by line, including lines that cannot be read. Returns what was wrong with those."""
    bad: list[str] = []
    for number, text in enumerate(lines, start=1):
        try:
            if not text.strip():
                raise msgspec.DecodeError("an empty line")
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            bad.append(f"line {number}: {error}")
            verdict = Verdict(False, None, f"bad input: {error}")
        else:
            gold = line.gold if isinstance(line.gold, str) else written(line.gold)
            verdict = judge(gold, line.response, truncated=line.truncated, lenient=lenient, symbolic=symbolic)
        out.write(msgspec.json.encode(verdict) + b"\n")
    out.flush()
    return bad


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or INPUT if lines could not be read; the message names them."""
    options = _parser().parse_args(arguments)
    try:
        if options.verifier == "math-verify" and not is_installed():
            raise missing("--verifier math-verify")
        use = options.verifier == "math-verify" or (options.verifier == "auto" and is_installed())
        with Symbolic() if use else nullcontext() as symbolic:
            bad = run(sys.stdin.buffer, sys.stdout.buffer, lenient=options.lenient, symbolic=symbolic)
    except BrokenPipeError:
        # The reader has gone. Replace the stream, or Python would complain on closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except LonghaulError as error:
        sys.stderr.write(error.render() + "\n")
        return int(error.exit_code)
    if not bad:
        return 0
    refusal = LonghaulError(
        f"{len(bad)} {'lines are' if len(bad) > 1 else 'line is'} not {{gold, response}}:"
        + "".join(f"\n  {one}" for one in bad[:MOST_NAMED]),
        kept="a verdict for every line, in order; these count as wrong",
        next_command="correct these lines, then the same command again",
        exit_code=ExitCode.INPUT,
    )
    sys.stderr.write(refusal.render() + "\n")
    return int(refusal.exit_code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workers.verifiers.verify", description=__doc__)
    parser.add_argument("--lenient", action="store_true", help="take the last number where no answer is marked")
    parser.add_argument(
        "--verifier",
        choices=("auto", "exact", "math-verify"),
        default="auto",
        help="what compares expressions that are not numbers (auto: math-verify if installed)",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
