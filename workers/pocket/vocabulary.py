"""A fixed vocabulary, the longest match first, and an exact way back: the tokenizer of a pocket model.

The files made here are read by `PreTrainedTokenizerFast`.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
PAD_ID, EOS_ID = 0, 1
"""Of every vocabulary here."""


class Vocabulary:
    """tokens: all of them, `<pad>` and `<eos>` first, `<unk>` anywhere; a token's id is its place."""

    def __init__(self, tokens: Sequence[str]) -> None:
        assert tuple(tokens[:2]) == (PAD, EOS) and UNKNOWN in tokens and len(set(tokens)) == len(tokens)
        self.tokens = tuple(tokens)
        self.ids = {token: number for number, token in enumerate(tokens)}
        pieces = sorted(tokens, key=len, reverse=True)
        self._pattern = "|".join(re.escape(token) for token in pieces) + r"|[\s\S]"
        self._match = re.compile(self._pattern)

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, as the saved tokenizer gives them but without its set-up: for making a corpus."""
        unknown = self.ids[UNKNOWN]
        return [self.ids.get(piece, unknown) for piece in self._match.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; exact for every text of the vocabulary."""
        return "".join(self.tokens[number] for number in ids)

    def save(self, directory: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json, which `PreTrainedTokenizerFast.from_pretrained` reads.

        Not `AutoTokenizer`: where the config says Qwen2, it takes Qwen2's own tokenizer, which does not know our marks.
        """
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        tokenizer = Tokenizer(models.WordLevel(vocab=self.ids, unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(self._pattern), behavior="isolated")
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
