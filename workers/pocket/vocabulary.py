"""The tokenizer of a pocket model: a fixed vocabulary, longest match first, with exact decoding.

`PreTrainedTokenizerFast` reads the files that it saves.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
PAD_ID, EOS_ID = 0, 1
"""The same ids in every vocabulary."""


class Vocabulary:
    """tokens: all tokens, with `<pad>` and `<eos>` first and `<unk>` anywhere; a token's id is its index."""

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
        """Ids of a text, identical to the saved tokenizer's but without its set-up cost."""
        unknown = self.ids[UNKNOWN]
        return [self.ids.get(piece, unknown) for piece in self._match.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; exact for every text that the vocabulary covers."""
        return "".join(self.tokens[number] for number in ids)

    def save(self, directory: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json for `PreTrainedTokenizerFast.from_pretrained`.

        Do not load with `AutoTokenizer`: for a Qwen2 config it uses Qwen2's tokenizer, which lacks our special tokens.
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
