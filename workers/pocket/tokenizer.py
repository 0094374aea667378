"""The vocabulary of the little language.

`\\n    c = b` is one token, so that finding a statement by the variable that it binds takes one attention hop, and the
model learns worked steps fast.
"""

from itertools import pairwise

from workers.pocket.cells import CELLS
from workers.pocket.language import LETTERS, VARIABLES
from workers.pocket.vocabulary import EOS, PAD, UNKNOWN, Vocabulary

SPECIALS = (PAD, EOS, *(f"<{cell}>" for cell in CELLS), "<in>", "<out>", "<prog>", "<sep>", "<work>", "<no>", UNKNOWN)
OPERATORS = (
    "def f(a):",
    "[::-1]",
    "[1:]",
    "[:-1]",
    "[::2]",
    ".swapcase()",
    ".upper()",
    " + '",
    ".replace('",
    "', '",
    "')",
    "'",
    "a=",
    "\n    return a",
)


def all_tokens() -> list[str]:
    """All tokens, in id order."""
    tokens = [*SPECIALS, *OPERATORS, *LETTERS]
    for previous, name in pairwise(VARIABLES):
        tokens += [f"\n    {name} = {previous}", f"\n    {name} = '", f"' + {previous}", f"\n    return {name}"]
        tokens += [f"[1:] + {previous}[:1]", f"[-1:] + {previous}[:-1]", f"{name}="]
    return tokens


PROGRAMS = Vocabulary(all_tokens())
encode, decode = PROGRAMS.encode, PROGRAMS.decode
