"""A corpus packed into bytes: generated from a seed on all cores, kept on the training device, read in batches."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from workers.pocket.example import Example
from workers.pocket.vocabulary import EOS_ID, PAD_ID, Vocabulary

SHARD = 20_000
BATCHES_SORTED_TOGETHER = 16
WIDTH_STEP = 8


@dataclass(frozen=True)
class Corpus:
    """Concatenated sequences and their offsets."""

    tokens: Tensor  # [total] uint8
    starts: Tensor  # [S]
    lengths: Tensor  # [S] of prompt, completion and stop token
    prompt_lengths: Tensor  # [S]
    worked: Tensor  # [S] bool
    styled: Tensor  # [S] bool: the task has a worked and a direct form

    def batch(self, rows: Tensor) -> Tensor:
        """The selected sequences, right-padded. rows: [B]; returns [B, T]."""
        width = -(-int(self.lengths[rows].max()) // WIDTH_STEP) * WIDTH_STEP
        columns = torch.arange(width, device=rows.device)[None]
        places = (self.starts[rows][:, None] + columns).clamp(max=len(self.tokens) - 1)
        return torch.where(columns < self.lengths[rows][:, None], self.tokens[places].long(), PAD_ID)

    def shuffled_batches(self, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the row numbers of one epoch in batches of similar sequence length."""
        order = torch.randperm(len(self.lengths), generator=generator).to(self.lengths.device)
        span = batch_size * BATCHES_SORTED_TOGETHER
        for begin in range(0, len(order), span):
            together = order[begin : begin + span]
            together = together[self.lengths[together].argsort()]
            batches = list(torch.split(together, batch_size))
            for i in torch.randperm(len(batches), generator=generator).tolist():
                yield batches[i]


Draw = Callable[[Random], Example]
"""A picklable function that draws one training sequence."""


def make_shard(seed: int, size: int, draw: Draw, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Concatenated tokens as uint8, and int32 [size, 4] of length, prompt length, worked, styled."""
    rng = Random(seed)
    tokens: list[int] = []
    facts = np.empty((size, 4), dtype=np.int32)
    for i in range(size):
        example = draw(rng)
        prompt = vocabulary.encode(example.prompt)
        completion = vocabulary.encode(example.completion) + [EOS_ID] * example.complete
        tokens += prompt + completion
        facts[i] = (len(prompt) + len(completion), len(prompt), example.worked, example.styled)
    return np.array(tokens, dtype=np.uint8), facts


def make_corpus(
    num_sequences: int, draw: Draw, vocabulary: Vocabulary, seed: int, device: str, cache: Path | None = None
) -> Corpus:
    """A corpus on `device`. With `cache`, it is read from that folder if present, else generated and saved there."""
    file = cache / "corpus.safetensors" if cache else None
    if file and file.exists():
        packed = load_file(file)
        return _corpus(packed["tokens"], packed["facts"], device)
    num_shards = -(-num_sequences // SHARD)
    sizes = [min(SHARD, num_sequences - i * SHARD) for i in range(num_shards)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        seeds = [seed * 1_000_003 + i for i in range(num_shards)]
        shards = list(pool.map(make_shard, seeds, sizes, [draw] * num_shards, [vocabulary] * num_shards))
    tokens = torch.from_numpy(np.concatenate([shard[0] for shard in shards]))
    facts = torch.from_numpy(np.concatenate([shard[1] for shard in shards]))
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"tokens": tokens, "facts": facts}, file)
    return _corpus(tokens, facts, device)


def _corpus(tokens: Tensor, facts: Tensor, device: str) -> Corpus:
    lengths = facts[:, 0].long()
    starts = lengths.cumsum(0) - lengths
    return Corpus(
        tokens=tokens.to(device),
        starts=starts.to(device),
        lengths=lengths.to(device),
        prompt_lengths=facts[:, 1].long().to(device),
        worked=(facts[:, 2] == 1).to(device),
        styled=(facts[:, 3] == 1).to(device),
    )
