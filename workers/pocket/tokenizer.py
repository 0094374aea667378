"""The pocket model's tokenizer: a fixed vocabulary, the longest match first, and an exact way back.

`\\n    c = b` is one token: then looking a statement up by the variable that it binds is one attention hop, and worked
steps are learned fast. The files made here are read by `PreTrainedTokenizerFast`.
"""

import json
import re
from itertools import pairwise
from pathlib import Path

from workers.pocket.language import LETTERS, VARIABLES

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
SPECIALS = (PAD, EOS, "<ded>", "<abd>", "<ind>", "<pded>", "<pabd>", "<pind>", "<in>", "<out>", "<prog>", "<sep>",
            "<work>", "<no>", UNKNOWN)  # fmt: skip
OPERATORS = ("def f(a):", "[::-1]", "[1:]", "[:-1]", "[::2]", ".swapcase()", ".upper()", " + '", ".replace('", "', '",
             "')", "'", "a=", "\n    return a")  # fmt: skip


def vocabulary() -> list[str]:
    """All tokens; a token's id is its place."""
    tokens = [*SPECIALS, *OPERATORS, *LETTERS]
    for previous, name in pairwise(VARIABLES):
        tokens += [f"\n    {name} = {previous}", f"\n    {name} = '", f"' + {previous}", f"\n    return {name}"]
        tokens += [f"[1:] + {previous}[:1]", f"[-1:] + {previous}[:-1]", f"{name}="]
    return tokens


TOKENS = vocabulary()
IDS = {token: number for number, token in enumerate(TOKENS)}
PAD_ID, EOS_ID, WORK_ID = IDS[PAD], IDS[EOS], IDS["<work>"]
PATTERN = "|".join(re.escape(token) for token in sorted(TOKENS, key=len, reverse=True)) + r"|[\s\S]"
_MATCH = re.compile(PATTERN)


def encode(text: str) -> list[int]:
    """Ids of a text, as the saved tokenizer gives them but without its set-up: for making a corpus."""
    return [IDS.get(piece, IDS[UNKNOWN]) for piece in _MATCH.findall(text)]


def decode(ids: list[int]) -> str:
    """Text of ids; exact for every text of the language."""
    return "".join(TOKENS[number] for number in ids)


def save_tokenizer(directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json, which `PreTrainedTokenizerFast.from_pretrained` reads.

    Not `AutoTokenizer`: where the config says Qwen2, it takes Qwen2's own tokenizer, which does not know our marks.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(vocab=IDS, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
